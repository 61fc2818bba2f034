"""Process old ranges of a topic once more, on demand.

Trigger `memq_replay` with the range keys you want (as the runs of `memq_process_ranges` show them),
or with a window of time. The first run is a dry run: it lists the ranges with their Batches and
bytes, in the log and as the task's result. Trigger it again with `dry_run` off, and each of them
gets a new run of `memq_process_ranges`, which replaces its own files with the same rows.

Whole ranges are replayed, as they were planned: all that touch what you ask for. The plan itself
does not move.

What to set up: what `memq_ranges` needs. Settings are Airflow Variables:

- `memq_topic`: the topic (default `clicks`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param, Variable

from airflow_provider_memq.operators.memq import MemqReplayOperator
from airflow_provider_memq.range_assets import ranges_asset

TOPIC = Variable.get("memq_topic", default="clicks")

with DAG(
    dag_id="memq_replay",
    doc_md=__doc__,
    description="Processes old ranges once more.",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    tags=["memq"],
    params={
        "range_keys": Param(
            None,
            type=["null", "string"],
            description="Range keys with commas, such as 00000:000000000005-000000000009.",
        ),
        "start": Param(
            None,
            type=["null", "string"],
            format="date-time",
            description="Or a window of time: what was published since then.",
        ),
        "end": Param(
            None,
            type=["null", "string"],
            format="date-time",
            description="And before this time.",
        ),
        "dry_run": Param(True, type="boolean", description="Only list the ranges."),
    },
) as dag:
    MemqReplayOperator(
        task_id="replay",
        topic=TOPIC,
        ranges=ranges_asset(TOPIC),
        keys="{{ params.range_keys or '' }}",
        start="{{ params.start or '' }}",
        end="{{ params.end or '' }}",
        preview="{{ params.dry_run }}",
    )
