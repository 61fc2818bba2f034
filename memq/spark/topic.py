"""How Spark reaches topics: the driver asks its brokers, driver and tasks read its objects.

Spark plans in plain blocking calls, from a Python process that may fork, so clients of brokers are
made where they are used, and not before. Objects are read from storage, or through a broker.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from functools import partial
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread, SyncClient
from memq.client.topic import SyncTopicClient, TopicClient
from memq.core.notification import PublishedBatch
from memq.errors import (
    DataLossError,
    MemqError,
    ObjectNotFoundError,
    TopicRecreatedError,
)
from memq.reading.objects import read_broker, read_storage
from memq.runtime.retry import Retry
from memq.runtime.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

    from memq.core.named_values import NamedValues
    from memq.core.ranges import OffsetRange
    from memq.spark.options import ReadOptions

T = TypeVar("T")

GO_ON = (
    "The known offsets belong to the earlier topic. To read this one from its first Batch, load() "
    "the DataFrame again, begin with a new checkpoint and startingOffsets=earliest, or plan the "
    "range anew"
)
"""What to do about a topic that was recreated."""

REQUEST_TIMEOUT_S = 30.0  # how long brokers may be out of reach: one that restarts is back by then

GetRange = Callable[[PublishedBatch, int, int], Any]
"""Bytes of the object of a Batch: the first byte, and how many; fewer where it ends sooner."""


class Shared(NamedTuple):
    """The connections of several topics, and the thread that works on them. Close it."""

    cluster: Cluster
    loop: EventLoopThread

    def close(self) -> None:
        """Close the connections, and end the thread."""
        try:
            self.loop.run(self.cluster.close())
        finally:
            self.loop.close()


class SparkTopic(SyncTopicClient):
    """The brokers, as a plan needs them. Use it with `with`, or `close` it; it cannot be pickled.

    All calls are about one incarnation of the topic: that of the options, or else the first that is
    met. Of another one all raise `TopicRecreatedError`, with advice.

    Args:
        options: of the read of this topic.
        shared: what it works with; whoever made that closes it, and not this. None for connections
            of its own.
    """

    def __init__(self, options: ReadOptions, shared: Shared | None = None) -> None:
        self._shared = shared is not None
        own = shared or share(options)
        client = TopicClient(own.cluster, options.topic, options.incarnation or "")
        SyncClient.__init__(self, client, own.loop)
        self._closed = self._shared

    def batches_in_order(self, ranges: Iterable[OffsetRange]) -> Iterator[PublishedBatch]:
        """The Batches of some ranges in the order of publication, as far as clocks tell it.

        Raises:
            OffsetOutOfRangeError: retention has removed some of them.
            CorruptDataError: a notification cannot be read.
            MemqError: the brokers failed for `REQUEST_TIMEOUT_S`.
        """
        partitions = [self.batches([each]) for each in ranges]
        return heapq.merge(*partitions, key=attrgetter("timestamp_ms"))

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._shared:
            super()._end(work)


def share(options: ReadOptions) -> Shared:
    """Connections for the topics of a read."""
    cluster = Cluster(
        options.bootstrap,
        client="memq.spark",
        token=options.token,
        request_timeout_s=REQUEST_TIMEOUT_S,
    )
    return Shared(cluster, _AdvisingLoop(f"memq-{options.subject}"))


def without_runs(batch: PublishedBatch) -> PublishedBatch:
    """A Batch without the names of its Messages, which take most of its notification's memory.

    Texts that all notifications of a topic have in common are kept once.
    """
    it = batch.notification
    lean = msgspec.structs.replace(
        it,
        topic=intern(it.topic),
        incarnation=intern(it.incarnation),
        producers=(),  # a list would make the garbage collector look at every Batch
        schema_id=intern(it.schema_id),
        broker_id=intern(it.broker_id),
    )
    return PublishedBatch(batch.partition, batch.offset, batch.timestamp_ms, lean)


class _AdvisingLoop(EventLoopThread):
    """An event loop that says how to go on when the topic was recreated."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return super().run(work)
        except TopicRecreatedError as exc:
            raise TopicRecreatedError(f"{exc}. {GO_ON}") from exc


@contextmanager
def open_objects(options: ReadOptions) -> Iterator[GetRange]:
    """What reads the objects of the topics of a read; any thread may call it.

    What may pass is tried again for `REQUEST_TIMEOUT_S`. It raises:
        CorruptDataError: no object can have these bytes.
        ObjectNotFoundError: there is no such object.
        MemqError: storage or brokers failed until the deadline.
    """
    if options.read_through == "storage":
        yield partial(_read_storage, options.storage_options)
        return
    with closing(share(options)) as shared:
        yield partial(_read_broker, shared)


def _read_broker(shared: Shared, batch: PublishedBatch, start: int, length: int) -> Any:
    it = batch.notification
    topic = TopicClient(shared.cluster, it.topic, it.incarnation)
    return shared.loop.run(read_broker(topic, it.uri, start, length))


def _read_storage(options: NamedValues, batch: PublishedBatch, start: int, length: int) -> Any:
    retry = Retry(REQUEST_TIMEOUT_S, SYSTEM)
    while True:
        try:
            return read_storage(batch.notification.uri, start, length, options)
        except MemqError as exc:
            delay_s = retry.after(exc)
        time.sleep(delay_s)


@contextmanager
def naming(batch: PublishedBatch, what: str = "") -> Iterator[None]:
    """Let errors name the Batch, and what of it.

    Raises:
        DataLossError: in place of `ObjectNotFoundError`.
        MemqError: of the type that it had.
    """
    try:
        yield
    except ObjectNotFoundError as exc:
        raise DataLossError(
            f"{batch} is gone, though its notification is retained. If this machine does not share "
            "the brokers' storage, set readThrough to broker; mode=permissive or "
            "failOnDataLoss=false read on without it"
        ) from exc
    except MemqError as exc:
        raise type(exc)(f"{batch}{what}: {exc}") from exc
