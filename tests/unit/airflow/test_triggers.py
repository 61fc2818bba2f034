"""Triggers survive the way into the triggerer, and sensors hand over what they were given."""

from datetime import timedelta
from importlib import import_module

import pytest
from airflow.sdk import DAG, Asset
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization

from airflow_provider_memq.sensors.memq import (
    MemqLagSensor,
    MemqNewDataSensor,
    MemqOffsetSensor,
    MemqWatermarkSensor,
)
from airflow_provider_memq.triggers.memq import MemqOffsetTrigger, MemqRangeDueTrigger
from airflow_provider_memq.triggers.watch import MemqWatchTrigger

TRIGGERS = [
    MemqOffsetTrigger(topic="t", offsets={"0": 5}, memq_conn_id="c", end_from_trigger=True),
    MemqRangeDueTrigger(topic="t", since={"0": 1}, min_bytes=2**62, until_ms=5),
    MemqWatchTrigger(topic="t", watch_name="w", poll_interval=1.0, linger=2.0, max_linger=3.0),
]

SENSORS = [
    (MemqOffsetSensor, {"offsets": {"0": 5}}),
    (MemqWatermarkSensor, {"at": "{{ data_interval_end }}"}),
    (MemqNewDataSensor, {"since": {"0": 1}, "min_records": 10}),
    (MemqLagSensor, {"group": "g", "max_lag": 3}),
]


def made_again(path, arguments):
    """What the triggerer does with what `serialize` gave."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**arguments)


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda each: type(each).__name__)
def test_serialize_round_trips(trigger):
    """A trigger made from what another serialized to serializes to the same."""
    path, arguments = trigger.serialize()

    again = made_again(path, arguments)

    assert type(again) is type(trigger)
    assert again.serialize() == (path, arguments)
    assert {name: getattr(again, name) for name in arguments} == arguments


@pytest.mark.parametrize(("sensor", "fields"), SENSORS)
@pytest.mark.parametrize("outlets", [[], [Asset("made")]])
def test_start_from_trigger(sensor, fields, outlets):
    """It survives serialization with its timeout, and ends in the triggerer if nothing is made."""
    with DAG("d", schedule=None) as dag:
        sensor(
            task_id="wait",
            topic="t",
            memq_conn_id="c",
            poke_interval=7,
            start_from_trigger=True,
            timeout=60,
            outlets=outlets,
            **fields,
        )

    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict["wait"]

    start = task.start_trigger_args
    assert task.start_from_trigger
    assert start.timeout == timedelta(seconds=60)
    arguments = BaseSerialization.deserialize(start.trigger_kwargs)
    trigger = made_again(start.trigger_cls, arguments)
    assert trigger.serialize() == (start.trigger_cls, arguments)
    assert trigger.end_from_trigger is (not outlets)
    given = {"topic": "t", "memq_conn_id": "c", "poll_interval": 7} | fields
    assert {name: getattr(trigger, name) for name in given} == given
    assert {"topic", "memq_conn_id", *fields} <= set(task.template_fields)
