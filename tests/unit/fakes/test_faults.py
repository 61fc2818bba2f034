"""Plans of faults, and what they do to a storage and to a queue."""

import pytest

from memq.core.queue import Publication
from memq.errors import FencedError, PublishUncertainError, StorageError
from memq.testing import InMemoryStorage
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.faulty_storage import FaultyStorage
from tests.fakes.queue import InMemoryQueue


def put(storage, key="k", content=b"abc"):
    """Put with a deadline that does not matter."""
    storage.put(key, [content], timeout_s=30)


# -- storage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        ("fail", "injected fault in call 1 of put", False),
        ("lose_answer", "the answer is lost", True),
    ],
)
def test_a_put_fails_with_and_without_effect(kind, text, stored):
    """A failed put leaves nothing; one whose answer is lost leaves the object, to be repeated."""
    inner = InMemoryStorage()
    storage = FaultyStorage(inner, [Fault("put", kind)])
    with pytest.raises(StorageError, match=text):
        put(storage)
    assert [info.key for info in inner.list("")] == (["k"] if stored else [])
    put(storage)
    assert inner.get("k") == b"abc"


# -- queue ----------------------------------------------------------------------------------


async def faulty_queue(*plan, **options):
    """A queue with a topic to publish to, and the queue inside it."""
    inner = InMemoryQueue()
    queue = FaultyQueue(inner, plan, **options)
    await inner.create_topic("t", 1)
    await queue.fence("t", 0)
    return queue, inner


async def publish(queue, *payloads):
    """Publish payloads."""
    return await queue.publish("t", 0, [Publication(0, payload, 1) for payload in payloads])


async def held(queue):
    """The payloads that are published."""
    entries = await queue.fetch("t", 0, 0, max_entries=100, max_bytes=1 << 20)
    return [entry.payload for entry in entries]


@pytest.mark.parametrize(
    ("kind", "published"),
    [("uncertain", []), ("lose_answer", [b"a", b"b", b"c"]), ("partial", [b"a"])],
)
async def test_an_uncertain_publish_refuses_more_until_fenced(kind, published):
    """None, all or some took effect; the next publication has to wait for a fence."""
    queue, inner = await faulty_queue(Fault("publish", kind))
    with pytest.raises(PublishUncertainError, match="call 1 of publish"):
        await publish(queue, b"a", b"b", b"c")
    assert await held(inner) == published
    with pytest.raises(FencedError, match="fence it first"):
        await publish(queue, b"d")
    await queue.fence("t", 0)
    assert await publish(queue, b"d") == [len(published)]
