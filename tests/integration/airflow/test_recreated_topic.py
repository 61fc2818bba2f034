"""A topic that was deleted and recreated: what was processed of the old one does not count."""

from __future__ import annotations

import gc
import os

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.operators.memq import (
    MemqBackfillOperator,
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqRetentionOperator,
    MemqSparkSubmitOperator,
)
from airflow_provider_memq.range_assets import processed_asset, ranges_asset
from airflow_provider_memq.ranges import parse_key
from airflow_provider_memq.sensors.memq import MemqOffsetSensor
from airflow_provider_memq.topics import topic_state
from memq.client.admin import AsyncAdminClient
from memq.errors import ConfigError, TopicRecreatedError, UnknownTopicError
from tests.advice import follows
from tests.harness.airflow.standalone import ROOT
from tests.integration.airflow.here import TOPIC, world
from tests.integration.broker.support import client
from tests.system.airflow import light_app

# Airflow's own hook does not close the pipe of the program that it submitted.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)

RANGES, DONE = ranges_asset(TOPIC), processed_asset(TOPIC, "job")


def plan(**options):
    return MemqPlanRangesOperator(
        task_id="plan", topic=TOPIC, ranges=RANGES, max_offsets=1, **options
    )


def commit():
    return MemqCommitOperator(task_id="commit", topic=TOPIC, ranges=RANGES, done=DONE, group="g")


def retention():
    return MemqRetentionOperator(task_id="retention", topic=TOPIC, ranges=RANGES, warn_before="1ms")


def backfill(**asked):
    return MemqBackfillOperator(
        task_id="backfill", topic=TOPIC, ranges=RANGES, output_dir="/no", **asked
    )


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Makes an operator that processes a range by a stand-in for `spark-submit`."""
    folder = tmp_path / "light"
    light_app.install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def make(key, output):
        return MemqSparkSubmitOperator(
            task_id="process",
            topic=TOPIC,
            range_key=key,
            application=str(folder / light_app.APP),
            output_dir=str(tmp_path / output),
            conn_id="memq_spark",
            default_master="local[1]",
            outlets=[DONE],
        )

    yield make
    gc.collect()  # that pipe, while its warning is expected


async def test_what_was_processed_of_the_old_topic_is_not_committed(tmp_path, monkeypatch, process):
    """One asset holds the ranges of both; only those of the topic as it is now move the offsets."""
    async with world(tmp_path / "broker", monkeypatch) as here:
        await here.publish(2)
        await here.run(plan())
        for key in here.store.keys(RANGES):
            await here.run(process(key, "out"), partition_key=key)
        assert (await here.run(commit()))["committed"] == {"0": 2}
        await here.create_again()
        await here.publish(2)
        await here.run(plan(on_recreated="begin"))
        first, _ = sorted(set(here.store.keys(RANGES)) - set(here.store.keys(DONE)))

        assert (await here.run(commit()))["committed"] == {}
        await here.run(process(first, "out"), partition_key=first)
        assert (await here.run(commit()))["committed"] == {"0": 1}


async def test_nothing_goes_on_in_a_topic_made_again_by_itself(tmp_path, monkeypatch, process):
    """Planner, commit, retention, backfill and the processing of old ranges say what happened."""
    async with world(tmp_path / "broker", monkeypatch) as here:
        await here.publish(3)
        await here.run(plan())
        old = here.store.keys(RANGES)
        here.store.add(DONE, old[0])
        await here.create_again()
        await here.publish(5)

        for task in (plan(), commit(), retention()):
            with pytest.raises(TopicRecreatedError, match=r"on_recreated='begin'"):
                await here.run(task)
        for task in (process(old[1], "out"), backfill(keys=old[1:])):
            with pytest.raises(TopicRecreatedError):
                await here.run(task, partition_key=old[1])
        async with AsyncAdminClient(here.broker.address) as admin:
            assert await admin.committed("g", TOPIC) == {}
        assert not (tmp_path / "out").exists()


@follows("run the planner once with on_recreated='begin'")
async def test_planning_begins_anew_on_demand(tmp_path, monkeypatch):
    """All of the new topic is planned, once, and the ranges of the old one count no more."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(3)
        await here.run(plan())
        old = set(here.store.keys(RANGES))
        await here.create_again()
        await here.run(plan(on_recreated="begin"))
        await here.publish(2)
        for _ in range(2):
            await here.run(plan(on_recreated="begin"))
            await here.run(plan())

        new = [key for key in here.store.keys(RANGES) if key not in old]
        assert sorted(parse_key(key).start for key in new) == [0, 1]
        assert (await here.run(retention()))["partitions"][0]["planned"] == 2
        with pytest.raises(ConfigError, match="on_recreated = 'guess'"):
            await here.run(plan(on_recreated="guess"))


async def test_a_key_that_names_no_incarnation_counts_for_whichever_there_is(tmp_path, monkeypatch):
    """Whoever writes a key by hand need not know it."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(1)
        await here.run(plan())
        here.store.add(DONE, "00000:000000000000-000000000001", {"by": "hand"})

        assert (await here.run(commit()))["committed"] == {"0": 1}


async def test_what_an_earlier_sensor_saw_is_of_its_topic(tmp_path, monkeypatch):
    """Offsets of one topic are not awaited in another one of its name."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(2)

        def sensor(**options):
            return MemqOffsetSensor(task_id="wait", topic=TOPIC, offsets={"0": 2}, **options)

        seen = await here.run(sensor())
        await here.create_again()
        await here.publish(2)
        with pytest.raises(AirflowFailException, match=seen["incarnation"]):
            await here.run(sensor(incarnation=seen["incarnation"]))
        assert (await here.run(sensor()))["incarnation"] != seen["incarnation"]


async def test_a_window_of_the_new_topic_is_not_taken_from_the_old_plan(tmp_path, monkeypatch):
    """Nothing of it is planned yet: that is said, and not taken for nothing to do."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(2)
        await here.run(plan())
        (old, _) = here.store.keys(RANGES)
        await here.create_again()
        await here.publish(1)
        window = {"start": here.at(-60), "end": here.at()}

        with pytest.raises(TopicRecreatedError, match=r"on_recreated='begin'"):
            await here.run(backfill(**window))
        await here.run(plan(on_recreated="begin"))
        assert await here.run(backfill(**window)) == here.store.keys(RANGES)[-1:]
        with pytest.raises(TopicRecreatedError, match="which there is now"):
            await here.run(backfill(keys=[old]))


async def test_a_look_is_at_one_topic(tmp_path, monkeypatch):
    """Whatever a client is asked after its first answer is of the same topic, or refused."""
    hook = MemqHook()
    async with world(tmp_path, monkeypatch) as here:
        async with await hook.atopic(TOPIC) as topic:
            old = (await topic_state(topic)).incarnation
            assert old == (await topic.info()).incarnation == topic.incarnation
        async with await hook.atopic(TOPIC, "f" * 16) as topic:
            with pytest.raises(TopicRecreatedError, match=old):
                await topic_state(topic)
        async with await hook.atopic(TOPIC, old) as topic:
            await topic.committed("g")
            await here.create_again()
            with pytest.raises(TopicRecreatedError):
                await topic.offsets()
        async with await hook.atopic(TOPIC) as topic:
            async with AsyncAdminClient(here.broker.address) as admin:
                await admin.delete_topic(TOPIC)
            with pytest.raises(UnknownTopicError):
                await topic.offsets()
        async with await hook.atopic(TOPIC, old) as topic:
            await here.create()
            with pytest.raises(TopicRecreatedError):
                await topic_state(topic)


async def test_a_commit_that_comes_late_again_changes_nothing(tmp_path, monkeypatch):
    """An attempt that the network held back does not take a group back to where it was."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(2)
        await here.run(plan())
        first, second = here.store.keys(RANGES)
        asked = []
        store = here.broker.groups.check_commit
        monkeypatch.setattr(
            here.broker.groups,
            "check_commit",
            lambda request, now_ms: asked.append(request) or store(request, now_ms),
        )
        for key in (first, second):
            here.store.add(DONE, key, {"by": "hand"})
            await here.run(commit())

        async with client(here.broker) as late:
            await late.ask(asked[0])
        async with AsyncAdminClient(here.broker.address) as admin:
            assert await admin.committed("g", TOPIC) == {0: 2}
