"""DAGs of `test_sensors.py`: each waits for what the run's conf says."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_memq.assets import watched_asset
from airflow_provider_memq.sensors.memq import (
    MemqLagSensor,
    MemqNewDataSensor,
    MemqOffsetSensor,
    MemqWatermarkSensor,
)

# Airflow 3.3 may fail a deferred task that goes on before its scheduler has seen it pause. Another
# try puts that right, and no try of a sensor follows one that timed out.
RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=1)}
AT = "{{ dag_run.conf['at'] }}"
OFFSETS = "{{ dag_run.conf['offsets'] | tojson }}"

with DAG("hour", schedule=None, default_args=RETRIES):
    MemqWatermarkSensor(task_id="wait", topic="trickle", at=AT, deferrable=True, poke_interval=0.5)

with DAG("hour_without_worker", schedule=None, default_args=RETRIES):
    MemqWatermarkSensor(
        task_id="wait",
        topic="{{ dag_run.conf['topic'] }}",
        at=AT,
        start_from_trigger=True,
        poke_interval=0.5,
    )

with DAG("offsets", schedule=None, default_args=RETRIES):
    MemqOffsetSensor(
        task_id="wait", topic="clicks", offsets=OFFSETS, deferrable=True, poke_interval=0.5
    )

with DAG("poke", schedule=None):
    MemqOffsetSensor(task_id="wait", topic="clicks", offsets=OFFSETS, poke_interval=0.5)

with DAG("reschedule", schedule=None):
    MemqNewDataSensor(
        task_id="wait",
        topic="clicks",
        since=OFFSETS,
        min_records=1,
        mode="reschedule",
        poke_interval=8,  # Airflow may fail a task that runs again before its last process is gone
    )

with DAG("lag", schedule=None):
    MemqLagSensor(task_id="wait", topic="clicks", group="nobody", max_lag=1_000)

with DAG("timeout", schedule=None, default_args=RETRIES):
    MemqOffsetSensor(
        task_id="wait", topic="clicks", offsets={"0": 10**9}, deferrable=True, timeout=4
    )
    MemqOffsetSensor(
        task_id="wait_softly",
        topic="clicks",
        offsets={"0": 10**9},
        deferrable=True,
        timeout=4,
        soft_fail=True,
    )
    MemqOffsetSensor(
        task_id="wait_without_worker",
        topic="clicks",
        offsets={"0": 10**9},
        start_from_trigger=True,
        timeout=4,
    )

with DAG("wrong", schedule=None, default_args={"retries": 3}):
    for conn_id in ("memq_none", "memq_malformed", "memq_token"):
        MemqWatermarkSensor(
            task_id=conn_id, topic="clicks", at=AT, memq_conn_id=conn_id, deferrable=True
        )
    MemqWatermarkSensor(
        task_id="memq_nobody", topic="clicks", at=AT, memq_conn_id="memq_nobody", retries=0
    )
    MemqWatermarkSensor(task_id="topic", topic="no-such-topic", at=AT, start_from_trigger=True)
    MemqWatermarkSensor(task_id="at", topic="clicks", at="yesterday", deferrable=True)

WATCHED = watched_asset(
    cluster="local", topic="watched", name="watched", poll_interval=0.5, linger=0.5
)

with DAG("woken", schedule=[WATCHED], max_active_runs=1):

    @task
    def events(triggering_asset_events=None) -> list[int]:
        """How many notifications each event that started this run has announced."""
        found = [event for each in triggering_asset_events.values() for event in each]
        return [event.extra["payload"]["new"] for event in found]

    events()
