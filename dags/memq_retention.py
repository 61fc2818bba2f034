"""Warn before retention removes what was not processed.

`memq_retention` looks every hour how much of what the topic holds is planned and processed. It
fails, and so tells whoever its callbacks tell, when retention has removed Batches that were not
processed, or will do so soon. The task's result shows every read partition.

What to set up: what `memq_ranges` needs. Settings are Airflow Variables, all optional:

- `memq_topic`: the topic (default `clicks`).
- `memq_group`: the consumer group that follows what is processed (default `range_to_parquet`, the
  one of `memq_ranges`).
- `memq_warn_before`: how long before, such as `1d` (default: half of the topic's retention).
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronTriggerTimetable, Variable

from airflow_provider_memq.operators.memq import MemqRetentionOperator
from airflow_provider_memq.range_assets import ranges_asset

TOPIC = Variable.get("memq_topic", default="clicks")

with DAG(
    dag_id="memq_retention",
    doc_md=__doc__,
    description="Warns before retention removes what was not processed.",
    schedule=CronTriggerTimetable("30 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["memq"],
) as dag:
    MemqRetentionOperator(
        task_id="retention",
        topic=TOPIC,
        ranges=ranges_asset(TOPIC),
        group="{{ var.value.get('memq_group', 'range_to_parquet') }}",
        warn_before="{{ var.value.get('memq_warn_before', '') }}",
    )
