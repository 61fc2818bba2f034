"""Process each hour of a topic once it is complete; and hours of the past, by backfill.

`memq_hourly` runs for each hour. It waits, with no worker slot, until the topic's watermark has
passed the end of the hour, so that nothing that belongs to it can still come; turns the hour into
one exact range of offsets per read partition; and has Spark turn each into Parquet files.

An hour names the same Batches whenever it is asked, so any hour that retention has not removed can
be processed again, or for the first time (all on one line):

    airflow backfill create --dag-id memq_hourly --reprocess-behavior completed
        --from-date 2026-01-02T00:00:00Z --to-date 2026-01-02T02:00:00Z

Hours that pass while Airflow is down or the DAG is paused are left out, unless `memq_hourly_since`
says since when every hour is wanted.

Use this, or `memq_ranges`, or both: they write to folders of their own.

What to set up: a connection `memq_default` to a broker (`memq dev` is enough), and the topic. Spark
runs on this machine unless there is a connection `memq_spark`.

Settings are Airflow Variables, all optional:

- `memq_topic`: the topic (default `clicks`).
- `memq_hourly_output`: folder or URI for the Parquet files (default `/tmp/memq/hourly`).
- `memq_hourly_since`: every hour since this time (such as `2026-01-01T00:00:00Z`) gets its run.
- `memq_hourly_cron`: when intervals begin (default `0 * * * *`, each hour).
- `memq_hourly_on_removed`: `fail` when retention may have removed Batches of an hour (the default),
  or `skip` to take what is left.
- `memq_spark_apps`: folder with MemQ's Spark programs (default `spark_apps` beside this folder).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, Variable

from airflow_provider_memq.operators.memq import MemqSparkSubmitOperator, MemqWindowRangesOperator
from airflow_provider_memq.sensors.memq import MemqWatermarkSensor

TOPIC = Variable.get("memq_topic", default="clicks")
SINCE = Variable.get("memq_hourly_since", default="")
CRON = Variable.get("memq_hourly_cron", default="0 * * * *")
APPS = Path(__file__).resolve().parents[1] / "spark_apps"

with DAG(
    dag_id="memq_hourly",
    doc_md=__doc__,
    description="Turns each complete hour into Parquet files.",
    # Other timetables make intervals of no width, which hold nothing.
    schedule=CronDataIntervalTimetable(CRON, timezone="UTC"),
    start_date=datetime.fromisoformat(SINCE or "2026-01-01T00:00:00Z"),
    catchup=bool(SINCE),
    max_active_runs=24,  # at this limit hours would be left out; those that wait cost little
    default_args={"retries": 5, "retry_delay": timedelta(seconds=10)},
    tags=["memq"],
) as dag:
    complete = MemqWatermarkSensor(
        task_id="complete", topic=TOPIC, deferrable=True, timeout=6 * 3600
    )
    window = MemqWindowRangesOperator(
        task_id="window",
        topic=TOPIC,
        on_removed="{{ var.value.get('memq_hourly_on_removed', 'fail') }}",
    )
    process = MemqSparkSubmitOperator.partial(
        task_id="process",
        topic=TOPIC,
        job="hourly",
        application="{{ var.value.get('memq_spark_apps', '"
        + str(APPS)
        + "') }}/range_to_parquet.py",
        output_dir="{{ var.value.get('memq_hourly_output', '/tmp/memq/hourly') }}",
        conn_id="memq_spark",
        default_master="local[2]",
        conf={"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"},
        max_active_tis_per_dag=2,
    ).expand(range_key=window.output)
    complete >> window
