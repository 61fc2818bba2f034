"""The model of Kafka: what it tells where a topic goes while a transaction is open."""

import asyncio
import random

import pytest

from memq.queue.kafka.client import NewRecord, Place
from tests.fakes.kafka import InMemoryKafka

PLACE = Place("t", 0)


@pytest.fixture
def told():
    """What was committed, as the model tells."""
    return []


@pytest.fixture
async def committing(told):
    """A Kafka and a commit that has written its record, and waits for what ends it."""
    kafka = InMemoryKafka(
        rng=random.Random(1),
        on_committed=lambda place, record: told.append((place, record.value)),
    )
    kafka.create("t", 1)
    client = kafka.client()
    producer = await client.transactions("p")
    commit = asyncio.ensure_future(producer.commit([NewRecord(PLACE, b"value")]))
    kafka.latency_s = (0.01, 0.01)
    while producer.transaction is None:
        await asyncio.sleep(0)
    assert not told
    return kafka, commit


async def test_a_record_is_told_of_whose_topic_is_deleted_before_its_commit(committing, told):
    """A topic deleted while a transaction is open does not hide what the transaction commits."""
    kafka, commit = committing

    kafka.delete("t")

    assert await commit == [0]
    assert told == [(PLACE, b"value")]


async def test_a_topic_made_again_is_not_that_of_an_open_transaction(committing, told):
    """A transaction writes no marker into a topic made again under the same name."""
    kafka, commit = committing

    kafka.delete("t")
    kafka.create("t", 1)

    await commit
    again = kafka.partition(PLACE)
    assert (again.end, again.records) == (0, [])
    assert told == [(PLACE, b"value")]
