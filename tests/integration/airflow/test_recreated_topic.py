"""A topic that was deleted and recreated: what was processed of the old one does not count."""

from functools import partial

import pytest

from airflow_provider_memq.operators.memq import MemqBackfillOperator, MemqSparkSubmitOperator
from memq.client.admin import AsyncAdminClient
from memq.errors import ConfigError, TopicRecreatedError
from tests.integration.airflow.here import DONE, RANGES, TOPIC, commit, retention
from tests.integration.airflow.here import plan as plan_task

plan = partial(plan_task, max_offsets=1)


def backfill(**asked):
    return MemqBackfillOperator(
        task_id="backfill", topic=TOPIC, ranges=RANGES, output_dir="/no", **asked
    )


def process(key):
    return MemqSparkSubmitOperator(
        task_id="process", topic=TOPIC, range_key=key, application="a.py", output_dir="/no"
    )


async def test_what_was_processed_of_the_old_topic_is_not_committed(here):
    """One asset holds the ranges of both; only those of the topic as it is now move the offsets."""
    await here.publish(2)
    await here.run(plan())
    for key in here.store.keys(RANGES):
        here.store.add(DONE, key)
    assert (await here.run(commit()))["committed"] == {"0": 2}
    await here.create_again()
    await here.publish(2)
    await here.run(plan(on_recreated="begin"))
    first, _ = sorted(set(here.store.keys(RANGES)) - set(here.store.keys(DONE)))

    assert (await here.run(commit()))["committed"] == {}
    here.store.add(DONE, first)
    assert (await here.run(commit()))["committed"] == {"0": 1}


async def test_nothing_goes_on_in_a_topic_made_again_by_itself(here):
    """Planner, commit, retention, backfill and the processing of old ranges say what happened."""
    await here.publish(3)
    await here.run(plan())
    old = here.store.keys(RANGES)
    here.store.add(DONE, old[0])
    await here.create_again()
    await here.publish(5)

    for task in (plan(), commit(), retention()):
        with pytest.raises(TopicRecreatedError, match=r"on_recreated='begin'"):
            await here.run(task)
    for task in (process(old[1]), backfill(keys=old[1:])):
        with pytest.raises(TopicRecreatedError):
            await here.run(task, partition_key=old[1])
    async with AsyncAdminClient(here.broker.address) as admin:
        assert await admin.committed("g", TOPIC) == {}


async def test_a_window_of_the_new_topic_is_not_taken_from_the_old_plan(here):
    """Nothing of it is planned yet: that is said, and not taken for nothing to do."""
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
    with pytest.raises(ConfigError, match="on_recreated = 'guess'"):
        await here.run(plan(on_recreated="guess"))
