"""Prove every hour that nothing was lost: produced against stored against consumed.

`memq_audit` runs for each hour. It waits until the topic's watermark has passed the end of the
hour, and then compares what producers reported with what is stored, and what is stored with what
consumer groups and Spark jobs reported. When something is lost, damaged, duplicated or left out,
the task `audit` fails and names the producer, the sequences and how many LogMessages. Consumers
have some more time: an hour later the task `consumed` looks at the hour again, and fails when one
of `memq_audit_consumers` has not come to its end. That is when somebody should be told: put your
notifier in place of `page_somebody` below. It is also told when a task fails in another way: when
the watermark has not passed the end of an hour within `memq_audit_wait`, or brokers do not answer.

No hour goes unaudited. Hours that wait for the watermark, in an outage, cost no worker slot, and
are audited when it moves on. One whose wait or audit failed, and one that passed while Airflow was
down or the DAG was paused, is audited by the next run whose own hour is complete, back to the first
hour that a run began to audit. The record is in the state store of the asset
`memq_audited.<topic>`.

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
- `memq_audit_wait`: how long the watermark may take to pass the end of an hour (default `6h`).
- `memq_audit_since`: audit begins with the hour of this time (such as `2026-01-01T00:00:00Z`), and
  not with the one in which the DAG is let go.
- `memq_audit_grace`: how long a job may take before what it left out counts (default `10m`).
- `memq_audit_output`: folder or URI for the tables (default `/tmp/memq/audit`).
- `memq_spark_apps`: folder with MemQ's Spark programs (default `spark_apps` beside this folder).
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, Variable

from airflow_provider_memq.operators.memq import MemqAuditOperator
from airflow_provider_memq.range_assets import audited_asset
from airflow_provider_memq.sensors.memq import MemqWatermarkSensor
from airflow_provider_memq.values import duration_ms_or

if TYPE_CHECKING:
    from airflow.sdk import Context

TOPIC = Variable.get("memq_topic", default="clicks")
SINCE = Variable.get("memq_audit_since", default="")
WAIT_MS = duration_ms_or(0, Variable.get("memq_audit_wait", default="6h"))
AUDITED = audited_asset(TOPIC)
APPS = Path(__file__).resolve().parents[1] / "spark_apps"


def page_somebody(context: Context) -> None:
    """Told when a task fails; any notifier of Airflow can stand here, such as SmtpNotifier."""
    task = context["task_instance"]
    logging.getLogger(__name__).critical(
        "AUDIT FAILED: %s of run %s: %s", task.task_id, task.run_id, context.get("exception")
    )


with DAG(
    dag_id="memq_audit",
    doc_md=__doc__,
    description="Reconciles what was produced, stored and consumed.",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime.fromisoformat(SINCE or "2026-01-01T00:00:00Z"),
    catchup=bool(SINCE),
    max_active_runs=24,  # those that wait cost little; hours beyond them are made up for
    # For every task: when the wait fails, the audits after it do not run, and could tell nobody.
    default_args={
        "on_failure_callback": page_somebody,
        # Not of what an audit has found, nor of a wait that timed out; but where not all could be
        # judged: reports come late.
        "retries": 3,
        "retry_delay": timedelta(minutes=5),
    },
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
        timeout=WAIT_MS / 1000,
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
        audited=AUDITED,
        max_active_tis_per_dag=1,
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
        audited=AUDITED,
        max_active_tis_per_dag=1,
    )
    complete >> [audit, consumed]
