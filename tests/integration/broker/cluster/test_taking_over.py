"""What a broker takes over, waits for, lets go of and gives up, with something in its way."""

import asyncio

import pytest

from memq.broker import cluster_topics
from memq.core.governor.nodes import BROKERS, DOOMED, BrokerNode, DoomedNode
from memq.core.governor.topics import new_topic
from memq.core.topic import TopicConfig
from memq.errors import QueueError
from memq.runtime.retry import Backoff
from tests.integration.broker.support import turns, until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What has failed is tried again soon; nothing else happens by the passing of time."""
    monkeypatch.setattr(cluster_topics, "AGAIN", Backoff(0.01, 0.05))
    monkeypatch.setattr(cluster_topics, "RELEASE_S", 3600.0)
    monkeypatch.setattr(cluster_topics, "LOOK_S", 3600.0)


async def lives(cluster, name):
    """Let a broker seem to live that takes nothing; a session of somebody else."""
    session = await cluster.zookeeper.open()
    node = BrokerNode(id=name, address=f"{name}:1", accepting=False)
    await session.create(BROKERS.child(name), BROKERS.encode(node), ephemeral=True)
    return session


@pytest.mark.parametrize("how", ["it lets go", "it dies", "its time is over"])
async def test_an_owner_that_lives_is_waited_for(cluster, monkeypatch, caplog, how):
    """Until it has let go, or is dead; or for so long in all, however often it is looked at."""
    if how == "its time is over":
        monkeypatch.setattr(cluster_topics, "RELEASE_S", 0.3)
        monkeypatch.setattr(cluster_topics, "LOOK_S", 0.01)
    one, _ = await cluster.serve("one")
    hosted, session = one.topics.get("t"), await lives(cluster, "two")
    topic = hosted.topic.queue_topic
    await until(lambda: len(one.topics.brokers()) == 2)
    queue = await cluster.queue("two")
    waiting, wait_released = asyncio.Event(), one.context.queue.wait_released

    async def waits(*args):
        waiting.set()
        return await wait_released(*args)

    one.context.queue.wait_released = waits
    await queue.fence(topic, 0)
    await until(lambda: not one.context.queue.owns(topic, 0))
    one.topics._follow("t")
    await waiting.wait()
    await turns(50)
    assert hosted.partitions == {}
    if how == "it lets go":
        await queue.release(topic, 0)
    elif how == "it dies":
        await session.close()
    await until(lambda: hosted.partitions)
    assert one.context.queue.owns(topic, 0)
    assert ("not released within" in caplog.text) == (how == "its time is over")


@pytest.mark.parametrize("step", ["wait_released", "fence", "times"])
async def test_a_take_over_that_fails_is_tried_again(cluster, caplog, step):
    """Whatever step of it the queue refuses; other topics are taken over meanwhile."""
    (one,) = await cluster.start("one")
    await until(one.topics.running)
    c, queue, refused = await cluster.connect(one), one.context.queue, []
    call = getattr(queue, step)

    async def refuse_twice(*args, **options):
        if len(refused) < 2:
            refused.append(args)
            raise QueueError("not now")
        return await call(*args, **options)

    setattr(queue, step, refuse_twice)
    for name in "tu":
        await c.create(name)
    await cluster.all_owned("t")
    await cluster.all_owned("u")
    assert len(refused) == 2
    assert "cannot take over or release, retrying: not now" in caplog.text
    assert one.topics._tasks == one.topics._wanted == {}


def makers(cluster):
    """By name of what is doomed: who may still make it; empty when it is to be removed."""
    found = {}
    for name in cluster.zookeeper.names(DOOMED.path):
        found[name] = DOOMED.decode(name, cluster.zookeeper.node(DOOMED.child(name)).data).by
    return found


async def test_a_topic_that_a_life_before_was_making_is_removed_by_the_next(cluster, monkeypatch):
    """One that another broker is making is left alone as long as that one lives."""
    (one,) = await cluster.start("one")
    await until(one.topics.running)
    session = await lives(cluster, "two")
    await until(lambda: len(one.topics.brokers()) == 2)
    for name, by in (("mine", "one"), ("theirs", "two")):
        config = TopicConfig.create(name)
        topic = new_topic(config, (), now_ms=1, topic_id="1" * 16, request_id="")
        doomed = DoomedNode(topic=topic, by=by)
        await session.create(DOOMED.child(topic.queue_topic), DOOMED.encode(doomed))
    monkeypatch.setattr("memq.broker.retention.LANDING_S", 0.01)
    monkeypatch.setattr("memq.broker.retention.BACKOFF", Backoff(0.01, 0.05))
    mine, theirs = (f"{name}.{'1' * 16}" for name in ("mine", "theirs"))
    await turns(100)
    assert makers(cluster) == {mine: "one", theirs: "two"}, "it is here, and may be making it"
    cluster.zookeeper.expire(one.sessions[-1])
    await until(lambda: makers(cluster) == {theirs: "two"})
    await session.close()
    await until(lambda: makers(cluster) == {})
