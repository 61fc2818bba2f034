"""A wait that no worker sees, and a DAG that a watched topic wakes."""

from airflow.sdk import DAG, task

from airflow_provider_memq.assets import watched_asset
from airflow_provider_memq.sensors.memq import MemqWatermarkSensor

TOPIC = "clicks"

with DAG("moment", schedule=None):
    MemqWatermarkSensor(
        task_id="wait",
        topic=TOPIC,
        at="{{ dag_run.conf['at'] }}",
        start_from_trigger=True,
        poke_interval=0.5,
    )

WATCHED = watched_asset(cluster="local", topic=TOPIC, name="watched", poll_interval=0.5, linger=0.5)

with DAG("woken", schedule=[WATCHED], max_active_runs=1):

    @task
    def events(triggering_asset_events=None) -> list[int]:
        """How many notifications each event that started this run has announced."""
        found = [event for each in triggering_asset_events.values() for event in each]
        return [event.extra["payload"]["new"] for event in found]

    events()
