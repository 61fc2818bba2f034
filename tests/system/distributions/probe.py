"""Runs in an environment that has an Airflow and the provider's wheel: what works there, as JSON.

The connection is in the environment, and the topic is the one argument. What does not work is named
with its error, so that whoever started this can tell whether it is the right one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import entry_points, version

TOPIC = sys.argv[1]
TIMEOUT_S = 30


def hook():
    """Its test of the connection, and the offsets of the topic."""
    from airflow_provider_memq.hooks.memq import MemqHook

    done, text = MemqHook().test_connection()
    assert done, text
    with MemqHook().topic(TOPIC) as client:
        return {each.partition: each.end for each in client.offsets()}


def sensor():
    """One look, in this process."""
    from airflow_provider_memq.sensors.memq import MemqNewDataSensor

    looked = MemqNewDataSensor(task_id="s", topic=TOPIC, since={}, min_records=1).poke({})
    assert looked.is_done
    return looked.xcom_value["new"]


async def first(trigger):
    """The payload of the first event."""
    events = trigger.run()
    async with asyncio.timeout(TIMEOUT_S):
        event = await anext(events)
    await events.aclose()
    return event.payload


def trigger():
    """One that fires once, as the triggerer runs it."""
    from airflow_provider_memq.triggers.memq import MemqOffsetTrigger

    fired = asyncio.run(first(MemqOffsetTrigger(topic=TOPIC, offsets={"0": 1})))
    assert fired["status"] == "success", fired
    return fired["value"]["offsets"]


def watch():
    """The one that wakes DAGs."""
    from airflow_provider_memq.triggers.watch import MemqWatchTrigger

    return asyncio.run(first(MemqWatchTrigger(topic=TOPIC, poll_interval=0.1, linger=0.1)))["new"]


def queue():
    """The scheme `memq` of a message queue."""
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    return type(MessageQueueTrigger(scheme="memq", topic=TOPIC).trigger).__name__


def plugins():
    """Those of the provider, which Airflow loads at each start."""
    found = entry_points(group="airflow.plugins")
    return [each.load().name for each in found if each.value.startswith("airflow_provider_memq.")]


def planner():
    """The operator, made as in a DAG."""
    from airflow_provider_memq.operators.memq import MemqPlanRangesOperator
    from airflow_provider_memq.range_assets import ranges_asset

    return MemqPlanRangesOperator(task_id="p", topic=TOPIC, ranges=ranges_asset(TOPIC)).task_type


def pipeline():
    """All DAGs of a topic."""
    from airflow_provider_memq.pipeline import MemqPipeline

    return sorted(dag.dag_id for dag in MemqPipeline(TOPIC, spark_apps="/spark_apps").dags())


def start_from_trigger():
    """A sensor that never sees a worker."""
    from airflow_provider_memq.sensors.memq import MemqOffsetSensor

    made = MemqOffsetSensor(task_id="s", topic=TOPIC, offsets={"0": 1}, start_from_trigger=True)
    return made.start_trigger_args.next_method


def spark():
    """The operator, which the extra brings."""
    from airflow_provider_memq.operators.memq import MemqSparkSubmitOperator

    return MemqSparkSubmitOperator.__name__


def operators():
    """Every operator that this Airflow and its extras let one import."""
    from airflow_provider_memq.operators import memq as operators_of_memq

    names = operators_of_memq.__all__
    return {
        name: str(tried(lambda name=name: getattr(operators_of_memq, name).__name__))
        for name in names
    }


def tried(part):
    """What a part gives, or its error in words."""
    try:
        return part()
    except Exception as exc:  # noqa: BLE001 - any of them is what is to be shown
        return f"{type(exc).__name__}: {exc}"


PARTS = (
    hook,
    sensor,
    trigger,
    watch,
    queue,
    plugins,
    planner,
    pipeline,
    start_from_trigger,
    spark,
    operators,
)

if __name__ == "__main__":
    result = {
        "airflow": version("apache-airflow"),
        "providers": len(entry_points(group="apache_airflow_provider")),
        **{part.__name__: tried(part) for part in PARTS},
    }
    json.dump(result, sys.stdout)
