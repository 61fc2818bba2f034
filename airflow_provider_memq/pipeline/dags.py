"""The DAGs of one topic: a function for each, from its settings.

Every task has the same owner, pool and tries, and tells the same people when it fails: the wait of
a sensor too, for what comes after it does not run then, and could tell nobody.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
    PartitionedAssetTimetable,
)

from airflow_provider_memq.assets import watched_asset
from airflow_provider_memq.operators.backfill import after_range
from airflow_provider_memq.operators.memq import (
    MemqAuditOperator,
    MemqBackfillOperator,
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqQualityGateOperator,
    MemqRetentionOperator,
    MemqSparkSubmitOperator,
    MemqWindowRangesOperator,
)
from airflow_provider_memq.range_assets import audited_asset, processed_asset, ranges_asset
from airflow_provider_memq.sensors.memq import MemqWatermarkSensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_memq.pipeline.settings import TopicSettings

TO_FILES, TO_TABLE = "range_to_parquet", "range_to_iceberg"
"""The Spark programs of ranges, and the names under which they report."""

START = datetime(2026, 1, 1, tzinfo=UTC)
Common = dict[str, Any]
LOCAL_CONF = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
HOURLY_PARALLEL = 2  # Spark programs of one hour at a time
HOURLY_WAIT_S = 6 * 3600
WAITING_HOURS = 24  # at this limit hours would be left out; those that wait cost little
AUDIT_TRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(minutes=5)}
"""Not of what an audit has found, nor of a wait that timed out; but where not all could be judged:
reports come late."""


def plan_dag(topic: TopicSettings, common: Common) -> DAG:
    """Wakes up when something was published, and every ten minutes to be sure; plans ranges, once
    they are large enough or have waited long enough.
    """
    published = watched_asset(
        cluster="memq",
        topic=topic.topic,
        memq_conn_id=topic.memq_conn_id,
        max_linger=topic.plan_every_ms / 1000,
    )
    with DAG(
        _id(topic, "memq_plan_ranges"),
        description="Plans the ranges of offsets that come next.",
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable("*/10 * * * *", timezone="UTC"), assets=[published]
        ),
        max_active_runs=1,  # more would wait
        params=_plan_params(),
        **common,
    ) as dag:
        MemqPlanRangesOperator(
            task_id="plan",
            **_at(topic),
            ranges=ranges_asset(topic.topic),
            start="{{ params.start }}",
            on_recreated="{{ params.on_recreated }}",
            on_removed="{{ params.on_removed }}",
            max_bytes=topic.max_range_bytes,
            max_offsets=topic.max_range_offsets,
            min_bytes=topic.min_range_bytes,
            linger=topic.range_linger,
            max_pending=topic.max_pending_ranges,
            deferrable=True,
            process_dag_id=_id(topic, "memq_process_ranges"),
            missed_after=topic.missed_after,
            preview="{{ params.dry_run }}",
            group=topic.group,
            **_places(topic),
            take_over="{{ params.take_over }}",
        )
    return dag


def process_dag(topic: TopicSettings, common: Common) -> DAG:
    """Runs once for each range: Spark, the gate if there is one, and then the group's offsets."""
    ranges, processed = ranges_asset(topic.topic), _processed(topic)
    limits: dict[str, Any] = {
        "max_skipped": topic.gate_max_skipped,
        "min_records": topic.gate_min_records,
        "max_age": topic.gate_max_age,
        "columns": topic.gate_columns,
    }
    gated = any(limits.values())
    written = "rows of a table" if topic.table else "Parquet files"
    with DAG(
        _id(topic, "memq_process_ranges"),
        description=f"Turns one range of offsets into {written}.",
        schedule=PartitionedAssetTimetable(assets=ranges),
        max_active_runs=topic.max_running_ranges,
        **common,
    ) as dag:
        process = MemqSparkSubmitOperator(
            task_id="process",
            **_range_job(topic),
            outlets=[] if gated else [processed],
        )
        commit = MemqCommitOperator(
            task_id="commit", **_at(topic), ranges=ranges, done=processed, group=topic.group
        )
        if gated:
            gate = MemqQualityGateOperator(
                task_id="gate",
                **_at(topic),
                manifest="{{ ti.xcom_pull('process')['manifest'] }}",
                **limits,
                outlets=[processed],
            )
            process >> gate >> commit
        else:
            process >> commit
    return dag


def hourly_dag(topic: TopicSettings, common: Common) -> DAG:
    """Runs for each hour that is complete: one range per read partition, and Spark over each."""
    with DAG(
        _id(topic, "memq_hourly"),
        description="Turns each complete hour into Parquet files.",
        # Other timetables make intervals of no width, which hold nothing.
        schedule=CronDataIntervalTimetable(topic.hourly_cron, timezone="UTC"),
        max_active_runs=WAITING_HOURS,
        **common | _since(topic.hourly_since),
    ) as dag:
        complete = MemqWatermarkSensor(
            task_id="complete", **_at(topic), deferrable=True, timeout=HOURLY_WAIT_S
        )
        window = MemqWindowRangesOperator(
            task_id="window", **_at(topic), on_removed=topic.hourly_on_removed
        )
        MemqSparkSubmitOperator.partial(
            task_id="process",
            **_spark(topic),
            job="hourly",
            output_dir=topic.hourly_output,
            max_active_tis_per_dag=HOURLY_PARALLEL,
        ).expand(range_key=window.output)
        complete >> window
    return dag


def audit_dag(topic: TopicSettings, common: Common) -> DAG:
    """Runs for each hour that is complete: what was produced against stored against consumed."""
    with DAG(
        _id(topic, "memq_audit"),
        description="Reconciles what was produced, stored and consumed.",
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        max_active_runs=WAITING_HOURS,  # hours beyond them are made up for
        params=_audit_params(),
        **common | _since(topic.audit_since),
    ) as dag:
        complete = MemqWatermarkSensor(
            task_id="complete",
            **_at(topic),
            at="{{ params.end or data_interval_end | default(dag_run.run_after, true) }}",
            deferrable=True,
            timeout=topic.audit_wait_ms / 1000,
            **AUDIT_TRIES,
        )
        audit = MemqAuditOperator(
            task_id="audit",
            **_audit(topic),
            deep="{{ params.deep }}",
            application=f"{topic.spark_apps}/audit_reconcile.py",
            spark_conn_id=topic.spark_conn_id,
            default_master=topic.spark_master or None,
            spark_conf=topic.spark_conf or LOCAL_CONF,
        )
        consumed = MemqAuditOperator(
            task_id="consumed", **_audit(topic), settled_for=topic.audit_consumed_within
        )
        complete >> [audit, consumed]
    return dag


def backfill_dag(topic: TopicSettings, common: Common) -> DAG:
    """Processes the past, on demand: what is not processed yet, or all of it once more."""
    with DAG(
        _id(topic, "memq_backfill"),
        description="Processes the past: a window of time, or ranges.",
        schedule=None,
        max_active_runs=1,
        params=_backfill_params(),
        **common,
    ) as dag:
        backfill = MemqBackfillOperator(
            task_id="backfill",
            **_at(topic),
            ranges=ranges_asset(topic.topic),
            **_places(topic),
            keys="{{ params.range_keys or '' }}",
            start="{{ params.start or '' }}",
            end="{{ params.end or '' }}",
            max_bytes=topic.max_range_bytes,
            again="{{ params.again }}",
            preview="{{ params.dry_run }}",
        )
        MemqSparkSubmitOperator.partial(
            task_id="process",
            **_range_job(topic),
            outlets=[_processed(topic)],
            max_active_tis_per_dag=topic.max_running_ranges,
            map_index_template="{{ task.range_key }}",
            post_execute=after_range,
        ).expand(range_key=backfill.output)
    return dag


def retention_dag(topic: TopicSettings, common: Common) -> DAG:
    """Warns each hour before retention removes what was not processed."""
    with DAG(
        _id(topic, "memq_retention"),
        description="Warns before retention removes what was not processed.",
        schedule=CronTriggerTimetable("30 * * * *", timezone="UTC"),
        max_active_runs=1,
        **common,
    ) as dag:
        MemqRetentionOperator(
            task_id="retention",
            **_at(topic),
            ranges=ranges_asset(topic.topic),
            group=topic.group,
            warn_before=topic.warn_before,
        )
    return dag


# -- what they have in common ---------------------------------------------------------------


def _id(topic: TopicSettings, name: str) -> str:
    return f"{name}{topic.id_suffix}"


def common_of(topic: TopicSettings, tell: Callable[[Any], object], doc: str | None) -> Common:
    """Return what all DAGs of a topic have, where a DAG says nothing else."""
    tries = {"retries": topic.retries, "retry_delay": timedelta(milliseconds=topic.retry_delay_ms)}
    told = {"owner": topic.owner, "pool": topic.pool, "on_failure_callback": tell}
    tags = ["memq", *topic.tags]
    common = {"default_args": told | tries, "tags": tags, "doc_md": doc}
    return common | {"start_date": START, "catchup": False}


def _since(time: datetime | None) -> dict[str, Any]:
    """Have each interval since a time run; without one, those from now on."""
    return {"start_date": time, "catchup": True} if time else {}


def _at(topic: TopicSettings) -> dict[str, Any]:
    """Return the arguments that name the topic."""
    return {"topic": topic.topic, "memq_conn_id": topic.memq_conn_id}


def _places(topic: TopicSettings) -> dict[str, Any]:
    """Return the arguments that name the output of planned ranges, and their manifests."""
    if topic.table:
        return {"output_dir": topic.table, "manifest_dir": topic.output}
    return {"output_dir": topic.output}


def _job(topic: TopicSettings) -> str:
    return TO_TABLE if topic.table else TO_FILES


def _processed(topic: TopicSettings) -> Asset:
    return processed_asset(topic.topic, _job(topic))


def _range_job(topic: TopicSettings) -> dict[str, Any]:
    """Return the arguments of the job that processes a planned range of the topic."""
    return {**_spark(topic, _job(topic)), **_places(topic), "job": _job(topic)}


def _spark(topic: TopicSettings, program: str = TO_FILES) -> dict[str, Any]:
    """Return the arguments with which Spark runs a program over a range of the topic."""
    return {
        **_at(topic),
        "application": f"{topic.spark_apps}/{program}.py",
        "conn_id": topic.spark_conn_id,
        "default_master": topic.spark_master or None,
        "conf": topic.spark_conf or LOCAL_CONF,
        "packages": topic.spark_packages or None,
    }


def _audit(topic: TopicSettings) -> dict[str, Any]:
    """Return the arguments that both audits of the topic share."""
    return {
        **_at(topic),
        "consumers": topic.audit_consumers,
        "grace": topic.audit_grace,
        "output_dir": topic.audit_output,
        "last": "{{ params.last or '' }}",
        "start": "{{ params.start or '' }}",
        "end": "{{ params.end or '' }}",
        "audited": audited_asset(topic.topic),
        "max_active_tis_per_dag": 1,
        **AUDIT_TRIES,
    }


def _choice(choices: list[str], description: str) -> Param:
    return Param(choices[0], enum=choices, description=description)


def _flag(default: bool, description: str) -> Param:
    return Param(default, type="boolean", description=description)


def _text(description: str, **schema: Any) -> Param:
    return Param(None, type=["null", "string"], description=description, **schema)


def _time(description: str) -> Param:
    return _text(description, format="date-time")


def _plan_params() -> dict[str, Param]:
    begin = 'Where the very first plan begins: earliest, latest or {"0": 5}.'
    recreated = "When the topic was deleted and recreated: fail, or start over."
    removed = "What to do when retention removed offsets that were never planned."
    take_over = "Go on from another planner, or after what is processed and not planned."
    return {
        "start": Param("earliest", type="string", description=begin),
        "on_recreated": _choice(["fail", "begin"], recreated),
        "on_removed": _choice(["fail", "skip"], removed),
        "take_over": _flag(False, take_over),
        "dry_run": _flag(False, "Only show what would be planned."),
    }


def _audit_params() -> dict[str, Param]:
    return {
        "last": _text("Audit so much up to now, such as 6h."),
        "start": _time("Or audit since this time; the data interval's start when empty."),
        "end": _time("And up to this time; the data interval's end when empty."),
        "deep": _flag(False, "Read every byte of every Batch."),
    }


def _backfill_params() -> dict[str, Param]:
    return {
        "range_keys": _text("Range keys with commas, such as 00000:000000000005-000000000009."),
        "start": _time("Or a window of time: what was published since then."),
        "end": _time("And before this time."),
        "again": _flag(False, "Process also what has been processed."),
        "dry_run": _flag(True, "Only list the ranges."),
    }
