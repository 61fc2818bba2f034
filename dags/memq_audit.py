"""Prove every hour that nothing was lost: produced against stored against consumed.

`memq_audit` runs for each hour. It waits until the topic's watermark has passed the end of the
hour, and then compares what producers reported with what is stored, and what is stored with what
consumer groups and Spark jobs reported. When something is lost, damaged, doubled or left out, the
task `audit` fails and names the producer, the sequences and how many LogMessages. Consumers have
some more time: an hour later the task `consumed` looks at the hour again, and fails when one of
`memq_audit_consumers` has not come to its end. That is when somebody should be told: put your
notifier in place of `page_somebody` below.

Hours that wait for the watermark, in an outage, cost no worker slot, and are audited when it moves
on. Hours that pass while Airflow is down or the DAG is paused are made up for when
`memq_audit_since` says since when every hour is wanted; else use `airflow backfill create`.

All findings are kept as a table (CSV), one file per window. To audit another stretch of time,
trigger the DAG with `last` (such as `6h`) or with `start` and `end`; with `deep` Spark reads every
byte again, not only the indexes of the Batches, and adds its findings to a Parquet table as well.

What to set up: a connection `memq_default` to a broker (`memq dev` is enough), and the topic. Spark
runs on this machine unless there is a connection `memq_spark`.

Settings are Airflow Variables, all optional:

- `memq_topic`: the topic (default `clicks`).
- `memq_audit_consumers`: groups and jobs that must consume everything, with commas, such as
  `range_to_parquet,hourly` (default: all that have reported, but then one that has stopped is not
  missed).
- `memq_audit_consumed_within`: the time that they have (default `1h`).
- `memq_audit_since`: every hour since this time (such as `2026-01-01T00:00:00Z`) gets its run.
- `memq_audit_grace`: how long a job may take before what it left out counts (default `10m`).
- `memq_audit_output`: folder or URI for the tables (default `/tmp/memq/audit`).
- `memq_spark_apps`: folder with MemQ's Spark programs (default `spark_apps` beside this folder).
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, Variable

from airflow_provider_memq.operators.memq import MemqAuditOperator
from airflow_provider_memq.sensors.memq import MemqWatermarkSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

TOPIC = Variable.get("memq_topic", default="clicks")
SINCE = Variable.get("memq_audit_since", default="")
APPS = Path(__file__).resolve().parents[1] / "spark_apps"


def page_somebody(context: Context) -> None:
    """Told when an audit fails; any notifier of Airflow can stand here, such as SmtpNotifier."""
    logging.getLogger(__name__).critical("AUDIT FAILED: %s", context.get("exception"))


with DAG(
    dag_id="memq_audit",
    doc_md=__doc__,
    description="Reconciles what was produced, stored and consumed.",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime.fromisoformat(SINCE or "2026-01-01T00:00:00Z"),
    catchup=bool(SINCE),
    max_active_runs=24,  # at this limit hours would be left out; those that wait cost little
    tags=["memq"],
    params={
        "last": Param(
            None, type=["null", "string"], description="Audit so much up to now, such as 6h."
        ),
        "start": Param(
            None,
            type=["null", "string"],
            format="date-time",
            description="Or audit since this time; the data interval's start when empty.",
        ),
        "end": Param(
            None,
            type=["null", "string"],
            format="date-time",
            description="And up to this time; the data interval's end when empty.",
        ),
        "deep": Param(False, type="boolean", description="Read every byte of every Batch."),
    },
) as dag:
    complete = MemqWatermarkSensor(
        task_id="complete",
        topic=TOPIC,
        at="{{ params.end or data_interval_end | default(dag_run.run_after, true) }}",
        deferrable=True,
        timeout=6 * 3600,
    )
    audit = MemqAuditOperator(
        task_id="audit",
        topic=TOPIC,
        consumers="{{ var.value.get('memq_audit_consumers', '') }}",
        grace="{{ var.value.get('memq_audit_grace', '10m') }}",
        output_dir="{{ var.value.get('memq_audit_output', '/tmp/memq/audit') }}",
        last="{{ params.last or '' }}",
        start="{{ params.start or '' }}",
        end="{{ params.end or '' }}",
        deep="{{ params.deep }}",
        application="{{ var.value.get('memq_spark_apps', '"
        + str(APPS)
        + "') }}/audit_reconcile.py",
        default_master="local[2]",
        spark_conf={"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"},
        max_active_tis_per_dag=1,
        on_failure_callback=page_somebody,
    )
    consumed = MemqAuditOperator(
        task_id="consumed",
        topic=TOPIC,
        consumers="{{ var.value.get('memq_audit_consumers', '') }}",
        settled_for="{{ var.value.get('memq_audit_consumed_within', '1h') }}",
        grace="{{ var.value.get('memq_audit_grace', '10m') }}",
        output_dir="{{ var.value.get('memq_audit_output', '/tmp/memq/audit') }}",
        last="{{ params.last or '' }}",
        start="{{ params.start or '' }}",
        end="{{ params.end or '' }}",
        max_active_tis_per_dag=1,
        on_failure_callback=page_somebody,
    )
    complete >> [audit, consumed]
