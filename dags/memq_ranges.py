"""Process everything that is published to a topic: each range of offsets once, with Spark.

Two DAGs:

- `memq_plan_ranges` wakes up when something was published (and every ten minutes, to be sure),
  looks how far the topic is planned, and emits the ranges of offsets that come next.
- `memq_process_ranges` runs once for each range. Spark turns exactly this range into Parquet files
  in a folder of its own; then the offsets of a consumer group follow, as far as every range is
  processed.

What to set up: a connection `memq_default` to a broker (`memq dev` is enough), and the topic. Spark
runs on this machine unless there is a connection `memq_spark`.

Settings are Airflow Variables, all optional:

- `memq_topic`: the topic (default `clicks`). Copy this file, and rename it, for another topic.
- `memq_output`: folder or URI for the Parquet files (default `/tmp/memq/parquet`).
- `memq_spark_apps`: folder with MemQ's Spark programs (default `spark_apps` beside this folder).
- `memq_max_range_bytes`, `memq_max_range_offsets`: how large a range may get.
- `memq_missed_after`: a range that has no run so long after it was planned is emitted again
  (default `5m`).
- `memq_plan_every`: how many seconds pass between two plans while much arrives all the time
  (default 10). Let Spark have more in each range when it cannot keep up.

To stop for a while, pause either DAG. Ranges that are planned while `memq_process_ranges` is paused
get their runs some minutes after it goes on: the planner emits again what has none.

To run a range again, clear its DAG run, or use `memq_replay`: it replaces its own files with the
same rows, and no others. To see what would be planned, trigger `memq_plan_ranges` with `dry_run`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import (
    DAG,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    Param,
    PartitionedAssetTimetable,
    Variable,
)

from airflow_provider_memq.assets import watched_asset
from airflow_provider_memq.operators.memq import (
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqSparkSubmitOperator,
)
from airflow_provider_memq.range_assets import processed_asset, ranges_asset

TOPIC = Variable.get("memq_topic", default="clicks")
JOB = "range_to_parquet"
APPS = Path(__file__).resolve().parents[1] / "spark_apps"

EVERY_S = float(Variable.get("memq_plan_every", default="10"))
PUBLISHED = watched_asset(cluster="memq", topic=TOPIC, max_linger=EVERY_S)
RANGES = ranges_asset(TOPIC)
PROCESSED = processed_asset(TOPIC, JOB)

with DAG(
    dag_id="memq_plan_ranges",
    doc_md=__doc__,
    description="Plans the ranges of offsets that come next.",
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("*/10 * * * *", timezone="UTC"), assets=[PUBLISHED]
    ),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # more would wait: the operator makes one plan at a time
    tags=["memq"],
    params={
        "start": Param(
            "earliest",
            type="string",
            description='Where the very first plan begins: earliest, latest or {"0": 5}.',
        ),
        "on_recreated": Param(
            "fail",
            enum=["fail", "begin"],
            description="When the topic was deleted and recreated: fail, or begin anew.",
        ),
        "on_removed": Param(
            "fail",
            enum=["fail", "skip"],
            description="What to do when retention removed offsets that were never planned.",
        ),
        "dry_run": Param(False, type="boolean", description="Only show what would be planned."),
    },
) as plan_dag:
    MemqPlanRangesOperator(
        task_id="plan",
        topic=TOPIC,
        ranges=RANGES,
        start="{{ params.start }}",
        on_recreated="{{ params.on_recreated }}",
        on_removed="{{ params.on_removed }}",
        max_bytes="{{ var.value.get('memq_max_range_bytes', '1GiB') }}",
        max_offsets="{{ var.value.get('memq_max_range_offsets', '10000') }}",
        process_dag_id="memq_process_ranges",
        missed_after="{{ var.value.get('memq_missed_after', '5m') }}",
        preview="{{ params.dry_run }}",
        retries=5,
        retry_delay=timedelta(seconds=10),
    )

with DAG(
    dag_id="memq_process_ranges",
    doc_md=__doc__,
    description="Turns one range of offsets into Parquet files.",
    schedule=PartitionedAssetTimetable(assets=RANGES),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=2,
    tags=["memq"],
) as process_dag:
    process = MemqSparkSubmitOperator(
        task_id="process",
        topic=TOPIC,
        job=JOB,
        application="{{ var.value.get('memq_spark_apps', '" + str(APPS) + "') }}/" + f"{JOB}.py",
        output_dir="{{ var.value.get('memq_output', '/tmp/memq/parquet') }}",
        conn_id="memq_spark",
        default_master="local[2]",
        conf={"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"},
        outlets=[PROCESSED],
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
    commit = MemqCommitOperator(
        task_id="commit",
        topic=TOPIC,
        ranges=RANGES,
        done=PROCESSED,
        group=JOB,
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
    process >> commit
