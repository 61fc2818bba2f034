"""A DAG for any Airflow that the provider runs on: it waits in the triggerer, and then audits."""

import os

from airflow.sdk import DAG, task

from airflow_provider_memq.operators.memq import MemqAuditOperator
from airflow_provider_memq.sensors.memq import MemqWatermarkSensor

TOPIC = os.environ["TRIED_TOPIC"]
# Of when the task begins, so that its first look never finds it, and it is deferred.
SOON = "{{ (macros.datetime.utcnow() + macros.timedelta(seconds=2)).isoformat() }}Z"

with DAG("tried", schedule=None):
    stored = MemqWatermarkSensor(
        task_id="stored", topic=TOPIC, at=SOON, deferrable=True, poke_interval=0.5, timeout=60
    )
    audit = MemqAuditOperator(task_id="audit", topic=TOPIC, last="1h")

    @task
    def say(found: dict) -> None:
        """Print what the audit found."""
        print("audited:", found["verdict"], found["stored_records"])  # noqa: T201 - for the log

    stored >> audit
    say(audit.output)
