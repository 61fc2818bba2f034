"""Reading a Batch that fails, that has moved, or that is gone."""

import asyncio
import random
from concurrent.futures import Executor, Future
from contextlib import aclosing

import msgspec
import pytest

from memq.core.format.index import FOOTER_BYTES, MAX_INDEX_BYTES
from memq.core.named_values import NO_VALUES
from memq.core.notification import PublishedBatch
from memq.core.ranges import OffsetRange
from memq.core.wire.messages import FetchBatch, PartitionOffsets
from memq.errors import (
    CorruptDataError,
    DataLossError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    StorageError,
    UnavailableError,
)
from memq.reading.objects import MAX_OBJECT_BYTES, BatchSource, map_ahead, read_broker, read_index
from memq.runtime.retry import Retry
from memq.runtime.system import Runtime
from tests.unit.reading.batches import Sent, notify, object_bytes, records, seal
from tests.unit.zookeeper.conftest import virtual_time  # noqa: F401 - a fixture

TIMEOUT_S = 30.0
RANGE_BYTES = 256
SEALED = seal(Sent("p", 0, records(b"v")))

pytestmark = pytest.mark.usefixtures("virtual_time")


def named(uri="memory:a", **changes):
    """The notification of the Batch, whose object is at a place."""
    return msgspec.structs.replace(notify(SEALED, uri), **changes)


class Topic:
    """A topic of which the queue has one Batch, at partition 1 and offset 3.

    Attributes:
        uris: where its object is: the next answer is the first of them, the last one stays.
        retained: of its partition.
        objects: bytes by URI; an error is raised.
        timeouts: that reads through the broker were given.
    """

    topic = "t"

    def __init__(self, *uris):
        loop = asyncio.get_running_loop()
        self.runtime = Runtime(mono_s=loop.time, random=random.Random(1).random)
        self.storage_options = NO_VALUES
        self.uris, self.retained = list(uris), (0, 9)
        self.objects, self.timeouts, self.pages = {}, [], []

    async def offsets(self):
        spans = [(0, 0), self.retained, (9, 9)]
        return [PartitionOffsets(p, *span, None) for p, span in enumerate(spans)]

    def retry(self):
        return Retry(TIMEOUT_S, self.runtime)

    async def batches(self, ranges):
        self.pages.append(ranges)
        if self.uris:
            yield published(self.uris.pop(0) if len(self.uris) > 1 else self.uris[0])

    async def options_for(self, uri):
        return self.storage_options

    async def read(self, request, *, timeout_s):
        assert isinstance(request, FetchBatch)
        self.timeouts.append(timeout_s)
        found = self.objects.get(request.uri, ObjectNotFoundError("no such object"))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, Exception):
            raise found
        return None, memoryview(found)[request.start : request.start + request.length]


class Inline(Executor):
    """Does what it is given at once."""

    def submit(self, fn, /, *args, **kwargs):
        done = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001 - as a thread would
            done.set_exception(exc)
        return done


def published(uri="memory:a", **changes):
    """The Batch as a reader has met it."""
    return PublishedBatch(1, 3, 0, named(uri, **changes))


def source(topic):
    """Reads through the broker."""
    return BatchSource(topic, Inline(), read_through="broker")


async def values(topic, batch=None):
    """What the Batch has."""
    fetched = await source(topic).fetch(batch or published())
    return [message.value for message in fetched.batch]


@pytest.mark.parametrize("ways", [["memory:b"], ["memory:b", "memory:c"], ["memory:b"] * 2])
async def test_a_batch_that_has_moved_is_read_where_it_is_now(ways):
    """However often it moves meanwhile: each place that is named is looked at."""
    topic = Topic(*ways)
    topic.objects[ways[-1]] = object_bytes(SEALED)
    assert await values(topic) == [b"v"]
    assert topic.pages == [[OffsetRange(1, 3, 4)]] * len(dict.fromkeys(ways))


@pytest.mark.parametrize(
    ("uris", "looks"),
    [
        (["memory:a"], 1),
        (["memory:b"], 2),
        (["memory:b", "memory:a"] * 50, 2),
        (["memory:b", "memory:c"], 3),
        ([], 1),
    ],
)
async def test_a_batch_that_is_nowhere_is_lost(uris, looks):
    """Where the queue names no place that was not looked at; the cause is told."""
    topic = Topic(*uris)
    with pytest.raises(DataLossError, match=r"t/1 offset 3 .* is gone.*seek past") as caught:
        await values(topic)
    assert isinstance(caught.value.__cause__, ObjectNotFoundError)
    assert len(topic.pages) == looks


@pytest.mark.parametrize("start", [3, 4])
async def test_a_batch_that_retention_removed_is_out_of_range(start):
    """Only what comes before the first offset that is retained; that one itself is lost."""
    topic = Topic("memory:a")
    topic.retained = (start, 9)
    with pytest.raises(
        OffsetOutOfRangeError if start == 4 else DataLossError,
        match="removed by retention; retained are" if start == 4 else "is gone",
    ):
        await values(topic)


@pytest.mark.parametrize("error", [StorageError("slow down"), UnavailableError("away")])
async def test_what_may_pass_is_tried_until_the_deadline(error):
    """All tries share it; what is raised then is of the same kind, and names the Batch."""
    topic = Topic("memory:a")
    topic.objects["memory:a"] = [error, error, object_bytes(SEALED)]
    assert await values(topic) == [b"v"]
    assert topic.timeouts[0] == TIMEOUT_S
    assert topic.timeouts == sorted(topic.timeouts, reverse=True)
    assert topic.timeouts[-1] < TIMEOUT_S
    topic.objects["memory:a"] = error
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(type(error), match=rf"t/1 offset 3 .*{error}"):
        await values(topic)
    assert asyncio.get_running_loop().time() - began_s <= TIMEOUT_S
    assert asyncio.get_running_loop().time() - began_s > TIMEOUT_S / 2


DATA = object_bytes(SEALED)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DATA[:-1], {}),
        (DATA, {"size_bytes": len(DATA) - 1}),
        (DATA, {"batch_id": "other"}),
        (DATA[:100] + bytes([DATA[100] ^ 1]) + DATA[101:], {}),
        (DATA, {"size_bytes": MAX_OBJECT_BYTES + 1}),
    ],
    ids=["short", "long", "another", "damaged", "absurd"],
)
async def test_what_is_not_the_batch_is_damaged_and_not_tried_again(data, said):
    """It names the Batch and the way on."""
    topic = Topic("memory:a")
    topic.objects["memory:a"] = data
    with pytest.raises(
        CorruptDataError, match=r"t/1 offset 3 .* is damaged: .*--to-offset 4"
    ) as caught:
        await values(topic, published(**said))
    assert str(caught.value).count("offset 3") == 1
    assert len(topic.timeouts) == (said.get("size_bytes", 0) <= MAX_OBJECT_BYTES)


@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_an_object_is_read_in_ranges(extra, monkeypatch):
    """Each has the timeout; it ends where the object does."""
    monkeypatch.setattr("memq.reading.objects.RANGE_BYTES", RANGE_BYTES)
    topic = Topic()
    topic.objects["memory:a"] = data = bytes(range(256)) * (2 * RANGE_BYTES // 256) + b"x" * 5
    length = 2 * RANGE_BYTES + extra
    assert await read_broker(topic, "memory:a", 3, length, timeout_s=7) == data[3 : 3 + length]
    assert topic.timeouts == [7] * (2 + (extra > 0))
    topic.timeouts.clear()
    assert await read_broker(topic, "memory:a", len(data) - 2, RANGE_BYTES) == b"xx"
    assert topic.timeouts == [None]
    assert await read_broker(topic, "memory:a", 0, 0) == b""


async def test_a_broker_that_sends_more_than_was_wanted_is_refused():
    """No more memory is taken than for what was asked."""

    class Lavish(Topic):
        async def read(self, request, *, timeout_s):
            return None, bytes(request.length + 1)

    with pytest.raises(ProtocolError, match="11 bytes of memory:a; 10 were wanted"):
        await read_broker(Lavish(), "memory:a", 0, 10)


# -- work done ahead on items, such as the notifications of a range -----------------------------


async def numbers(count):
    for number in range(count):
        yield number


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (7, 3), (100, 20)])
async def test_work_ahead_is_bounded_by_weight(most, expected):
    """No more is under way than may weigh so much; what is heavier is worked on by itself."""
    running = peak = 0

    async def note(number):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    weighed = map_ahead(note, numbers(20), most, lambda _: 2)
    assert [found async for _, found in weighed] == list(range(20))
    assert peak == expected


async def test_what_is_not_wanted_is_passed_over():
    """It is not worked on, and what comes after it still is."""

    async def same(number):
        return number

    odd = map_ahead(same, numbers(6), 3, wanted=lambda number: number % 2)
    assert [found async for _, found in odd] == [1, 3, 5]


async def test_error_in_the_work_is_raised_in_its_turn():
    """An error comes where its result would have come."""

    async def invert(number):
        return 1 / (number - 2)

    found = []
    with pytest.raises(ZeroDivisionError):
        async for number, _ in map_ahead(invert, numbers(5), 3):
            found.append(number)
    assert found == [0, 1]


async def test_work_ahead_is_cancelled_when_it_is_left():
    """Leaving early, or an error, leaves no work behind."""
    started, ended = [], []

    async def work(number):
        started.append(number)
        try:
            if number:
                await asyncio.Event().wait()
        finally:
            ended.append(number)

    async with aclosing(map_ahead(work, numbers(10), 4)) as found:
        async for number, _ in found:
            assert number == 0
            break
    await asyncio.sleep(0)
    assert len(started) > 1
    assert sorted(ended) == started


# -- the index of a Batch -----------------------------------------------------------------------


def index(**changes):
    """The index of the Batch, read as a notification says that was changed."""
    return read_index(named(**changes), lambda start, length: DATA[start : start + length])


def test_an_index_that_is_too_long_is_not_read():
    """A notification may say so, whatever the object has."""
    size = SEALED.index_offset + MAX_INDEX_BYTES + FOOTER_BYTES + 1
    with pytest.raises(CorruptDataError, match="an index has up to"):
        read_index(named(size_bytes=size), lambda *_: pytest.fail("it was read"))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_id": "other"},
        {"topic": "other"},
        {"write_partition": 1},
        {"messages": 2},
        {"records": 3},
        {"producers": named().producers * 2},
        {"index_offset": SEALED.index_offset + 1},
        {"size_bytes": SEALED.size_bytes - 1},
        {"size_bytes": SEALED.size_bytes + 1},
    ],
)
def test_an_index_that_its_notification_does_not_fit_is_refused(changes):
    """Who was given positions by the notification would read other Messages, or fewer.

    A planner leaves the names of Messages out of the notifications that it keeps.
    """
    with pytest.raises(CorruptDataError):
        index(**changes)
    assert index() == index(producers=())
