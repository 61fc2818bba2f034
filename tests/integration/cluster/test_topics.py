"""Topics of a cluster: made, altered, deleted and made again, by whichever broker."""

from __future__ import annotations

import asyncio

import pytest

from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import TopicExistsError, TopicRecreatedError, UnknownTopicError
from tests.integration.broker.support import until


async def test_of_two_who_make_a_topic_one_does(cluster):
    """A topic that two brokers are asked to make at the same time is made once."""
    one, two = await cluster.start("one", "two")
    clients = [await cluster.connect(one), await cluster.connect(two)]
    config = TopicConfig.create("t")
    outcomes = await asyncio.gather(
        *(c.ask(m.CreateTopic(config=config, request_id=f"{n}")) for n, c in enumerate(clients)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, m.TopicAnswer) for each in outcomes) == 1
    assert sum(isinstance(each, TopicExistsError) for each in outcomes) == 1
    made = next(each for each in outcomes if isinstance(each, m.TopicAnswer))
    by = outcomes.index(made)
    again = await clients[1 - by].ask(m.CreateTopic(config=config, request_id=f"{by}"))
    assert again.topic.incarnation == made.topic.incarnation
    await until(lambda: len(cluster_queue_topics(cluster, "t")) == 1, 120)


def cluster_queue_topics(cluster, name: str) -> list[str]:
    """Topics of Kafka that hold incarnations of a topic."""
    return [each for each in cluster.kafka.partitions() if each.startswith(f"memq.{name}.")]


async def test_alterations_at_the_same_time_all_take_effect(cluster):
    """Each is made on top of the one that was quicker, and is answered."""
    (one,) = await cluster.start("one")
    c = await cluster.connect(one)
    await c.create("t")
    wanted = {"batch_age": "7ms", "dedup_window": "2h", "retention": "3d", "ring_slots": "9"}
    alterations = [
        asyncio.ensure_future(c.ask(m.AlterTopic(topic="t", options={key: value})))
        for key, value in wanted.items()
    ]
    _, unanswered = await asyncio.wait(alterations, timeout=30)
    config = one.topics.get("t").topic.config
    cluster.zookeeper.expire(one.sessions[-1])  # what goes on for ever would hold up the stop
    assert not unanswered
    assert (config.batch_age_ms, config.dedup_window_ms) == (7, 7_200_000)
    assert (config.retention_ms, config.ring_slots) == (259_200_000, 9)


async def test_a_deleted_topic_is_gone_everywhere(cluster, monkeypatch):
    """A topic that is deleted and made again is another one, and nothing of the first is left."""
    monkeypatch.setattr("memq.broker.deletion.LANDING_S", 0.3)
    one, two = await cluster.start("one", "two")
    c, other = await cluster.connect(one), await cluster.connect(two)
    first = await c.create("t", write_partitions=2)
    for number, owner in enumerate(await cluster.all_owned("t")):
        client = c if owner == "one" else other
        client.schema_id = first.schema_id
        await client.write(0, write_partition=number)
    await other.ask(m.DeleteTopic(topic="t", incarnation=first.incarnation))
    with pytest.raises(UnknownTopicError):
        await c.ask(m.Metadata(topics=["t"]))
    second = await c.create("t", write_partitions=2)
    for client in (c, other):
        with pytest.raises(TopicRecreatedError):
            await client.ask(m.FetchOffsets(topic="t", incarnation=first.incarnation))
        answer = await client.ask(m.FetchOffsets(topic="t", incarnation=second.incarnation))
        assert [each.end for each in answer.partitions] == [0]
    await until(lambda: len(cluster_queue_topics(cluster, "t")) == 1)
    await until(
        lambda: (
            not list(
                (cluster.folder / "objects").glob(
                    f"*/memq/topics/t/{first.incarnation}/**/*.arrows"
                )
            )
        )
    )
