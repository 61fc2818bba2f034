"""Ranges that wait to grow: for a time, for bytes, and while enough is planned."""

from __future__ import annotations

import asyncio

import pytest
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferred
from airflow.sdk.execution_time import task_runner

from airflow_provider_memq.operators import plan as planning
from airflow_provider_memq.operators.memq import MemqPlanRangesOperator
from airflow_provider_memq.range_assets import plan_asset, ranges_asset
from airflow_provider_memq.ranges import parse_key
from memq.client.admin import AsyncAdminClient
from memq.errors import ConfigError, DataLossError
from tests.advice import follows
from tests.integration.airflow.event_store import Consumer
from tests.integration.airflow.here import RETENTION_S, TOPIC, world

RANGES, PROCESS = ranges_asset(TOPIC), "process"
TIMED_OUT = {"next_method": "__fail__", "next_kwargs": {"error": "Trigger timeout"}}
FAILED = {"next_method": "__fail__", "next_kwargs": {"error": "Trigger failure"}}
FIRED = {"next_method": "execute", "next_kwargs": {"event": {"status": "success"}}}


@pytest.fixture
async def here(tmp_path, monkeypatch):
    async with world(tmp_path, monkeypatch) as running:
        running.store.consumer = Consumer(PROCESS, RANGES)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", running.store.consumer, raising=False)
        yield running


def plan(**options):
    given = {"linger": "2s", "deferrable": True} | options
    return MemqPlanRangesOperator(task_id="plan", topic=TOPIC, ranges=RANGES, **given)


def held(**options):
    return plan(linger=None, process_dag_id=PROCESS, max_pending=2, **options)


def spans(here):
    return [parse_key(key)[1:3] for key in here.store.keys(RANGES)]


async def deferred(here, operator, **options):
    with pytest.raises(TaskDeferred) as raised:
        await here.run(operator, **options)
    return raised.value


async def test_what_waits_is_planned_once_by_the_task_that_waited(here):
    """Nothing is stored while it waits; what came meanwhile is in the same range."""
    await here.publish(2)
    await deferred(here, plan(linger="1h", min_bytes="1GiB"))
    assert here.store.events.get(plan_asset(RANGES).name, []) == []
    await here.publish(3)

    await here.run(plan(linger="0s"), resumed=FIRED)
    await here.run(plan(linger="0s"))

    assert spans(here) == [(0, 5)]


@pytest.mark.parametrize("woken_by", ["time", "bytes"])
async def test_the_trigger_wakes_it_when_it_is_due(here, woken_by):
    """When the oldest has waited long enough, or a read partition has the bytes."""
    await here.publish(1)
    (shown,) = (await here.run(plan(preview=True)))["waiting"]
    enough = {"linger": "1h", "min_bytes": 3 * shown["bytes"]}
    options = {"linger": "2s"} if woken_by == "time" else enough
    operator = plan(**options)
    trigger = (await deferred(here, operator)).trigger
    assert trigger.until_ms >= planning.now_ms() + planning.LEAST_WAIT_MS - 5_000
    if woken_by == "time":
        trigger.until_ms = planning.now_ms() + 1_000
    trigger.poll_interval = 0.1

    firing = asyncio.create_task(anext(trigger.run()))
    if woken_by == "bytes":
        await here.publish(3)
    assert (await asyncio.wait_for(firing, 20)).payload["status"] == "success"
    if woken_by == "time":
        operator.linger = "1ms"
    await here.run(operator, resumed=FIRED)

    assert spans(here) == [(0, 1 if woken_by == "time" else 4)]


async def test_without_a_triggerer_a_worker_goes_on(here):
    """A wait whose trigger never ends is over at its timeout; one whose trigger broke fails."""
    await here.publish(1)
    waiting = await deferred(here, plan(linger="1s"))
    assert 0 < waiting.timeout.total_seconds() < 3600

    await here.run(plan(linger="0s"), resumed=TIMED_OUT)
    assert spans(here) == [(0, 1)]
    with pytest.raises(TaskDeferralError):
        await here.run(plan(), resumed=FAILED)


async def test_while_enough_is_planned_ranges_grow(here):
    """What came while runs had not ended is one range; what is full does not wait for them."""
    here.store.consumer.unfinished = 2
    for _ in range(3):
        await here.publish(1)
        await deferred(here, held())
    here.store.consumer.unfinished = 1
    await here.run(held())
    here.store.consumer.unfinished = 2
    await here.publish(3)
    await here.run(held(max_offsets=2))

    assert spans(here) == [(0, 3), (3, 5)]


async def test_whoever_waits_for_runs_looks_again(here):
    """Nothing tells it that runs have ended, so it does not wait until the range is due."""
    async with AsyncAdminClient(here.broker.address) as admin:
        await admin.alter_topic(TOPIC, retention="7d")
    await here.publish(1)
    here.store.consumer.unfinished = 2
    wait = await deferred(here, held())

    assert wait.trigger.until_ms <= planning.now_ms() + planning.HELD_LOOK_MS


async def test_while_processing_is_paused_ranges_grow(here):
    """A pause becomes one range, and not many that have to be emitted again."""
    here.store.consumer.paused = True
    for _ in range(3):
        await here.publish(1)
        await deferred(here, held())
    here.store.consumer.paused = False
    await here.run(held())

    assert spans(here) == [(0, 3)]
    assert here.store.consumer.keys() == here.store.keys(RANGES)


@pytest.mark.parametrize("options", [{"max_pending": 2}, {"linger": "30d", "min_bytes": "1TiB"}])
async def test_retention_ends_every_wait(here, monkeypatch, options):
    """What waits is planned while three quarters of its time are left, and is not lost."""
    here.store.consumer.paused = True
    operator = plan(**{"linger": None, "process_dag_id": PROCESS} | options)
    await here.publish(1)
    wait = await deferred(here, operator)
    later_ms = round(here.at(RETENTION_S / planning.LONGEST_WAIT).timestamp() * 1000)
    monkeypatch.setattr(planning, "now_ms", lambda: later_ms)
    await here.run(operator)

    assert wait.trigger.until_ms <= later_ms + planning.LEAST_WAIT_MS
    assert spans(here) == [(0, 1)]


async def test_retention_that_was_faster_is_not_silent(here):
    """Where no planner ran for so long, the next one says what is gone."""
    await here.publish(1)
    await here.run(plan(linger="0s"))
    await here.publish(1)
    await deferred(here, plan(linger="1h"))
    here.later(2 * RETENTION_S)
    await here.expire()

    with pytest.raises(DataLossError, match="never planned"):
        await here.run(plan(), resumed=FIRED)


async def test_who_does_not_defer_is_skipped_and_says_what_waits(here):
    """Without a triggerer the next run that finds it due plans it."""
    await here.publish(2)
    await here.run(plan(deferrable=False))
    found = await here.run(plan(deferrable=False))

    assert (found["ranges"], [each["batches"] for each in found["waiting"]]) == ([], [2])
    await here.run(plan(linger="0s", deferrable=False))
    assert spans(here) == [(0, 2)]


@follows("give process_dag_id too, the DAG whose runs are counted")
async def test_runs_cannot_be_counted_without_their_dag(here):
    """`max_pending` alone would hold nothing back; with the DAG it does."""
    await here.publish(1)
    with pytest.raises(ConfigError, match="max_pending = 2: give process_dag_id"):
        await here.run(plan(linger="0s", max_pending=2))

    await here.run(plan(linger="0s", max_pending=2, process_dag_id=PROCESS))
    assert spans(here) == [(0, 1)]
