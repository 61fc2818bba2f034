"""What the driver asks of the brokers: schemas, offsets and notifications.

Spark plans in plain blocking calls, from a Python process that may fork; so there is one loop
thread per `Driver`, started by the first call, and a `Driver` that made no call can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread
from memq.client.topic import PAGE_ENTRIES, TopicClient
from memq.core.notification.notification import decode_notification
from memq.errors import CorruptDataError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from types import TracebackType
    from typing import Self

    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry, PartitionOffsets, TopicInfo
    from memq.spark.options import ReadOptions

T = TypeVar("T")

GO_ON = (
    "The offsets that were known are those of the topic before. To read this one from its first "
    "data load() the DataFrame anew, begin with a new checkpoint and startingOffsets=earliest, or "
    "plan the range anew"
)
"""What to do about a topic that was made again."""

REQUEST_TIMEOUT_S = 30.0  # how long brokers may be out of reach: one that restarts is back by then


class Driver:
    """The brokers, as a plan needs them. Use it with `with`, or `close` it.

    All calls are about one incarnation of the topic: that of the options, or of `expect`, or else
    the first that is met. All raise `TopicRecreatedError` when the topic is another one.

    Args:
        options: of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._loop: EventLoopThread | None = None
        self._queue: TopicClient | None = None
        self._incarnation = options.incarnation
        self._dedup_window_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Driver {self._options.topic} {self._queue or 'not connected'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        if self._loop is not None and self._queue is not None:
            self._loop.run(self._queue.cluster.close())
            self._loop.close()
        self._loop = self._queue = None

    def topic(self) -> TopicInfo:
        """The topic as it is now.

        Raises:
            UnknownTopicError: there is no such topic.
            TopicRecreatedError: it is not the one that was expected.
            MemqError: the brokers failed for `REQUEST_TIMEOUT_S`.
        """
        info = self._run(self._cluster().topic(self._options.topic, refresh=True))
        self.expect(info.incarnation)
        return info

    def incarnation(self) -> str:
        """The incarnation of the topic that all calls are about.

        Raises:
            MemqError: as `topic`.
        """
        return self._incarnation or self.topic().incarnation

    def expect(self, incarnation: str) -> None:
        """Let all calls be about this incarnation of the topic.

        Raises:
            TopicRecreatedError: they are about another one.
        """
        if self._incarnation and incarnation != self._incarnation:
            raise TopicRecreatedError(
                f"topic {self._options.topic!r} was deleted and made again: {self._incarnation} "
                f"and {incarnation} are two topics of that name. {GO_ON}"
            )
        self._incarnation = incarnation

    def dedup_window_ms(self) -> int:
        """How long the write side of the topic knows what was published; asked for once."""
        if self._dedup_window_ms is None:
            self._dedup_window_ms = self.topic().config.dedup_window_ms
        return self._dedup_window_ms

    def offsets(self, at_ms: int | None = None) -> list[PartitionOffsets]:
        """What is held of each read partition, and where a publication time falls.

        Raises:
            MemqError: as `topic`.
        """
        return self._run(self._queued().offsets(at_ms))

    def notifications(
        self, partition: int, start: int, end: int
    ) -> Iterator[tuple[NotificationEntry, Notification]]:
        """The notifications of a read partition from `start` up to, not including, `end`.

        Only a page of them is in memory at a time.

        Raises:
            OffsetOutOfRangeError: retention has removed some of them.
            CorruptDataError: one cannot be read.
            MemqError: as `topic`.
        """
        while start < end:
            page = self._run(
                self._queued().page({partition: start}, max_entries=min(PAGE_ENTRIES, end - start))
            )
            for entry in page.entries:
                if entry.offset < end:
                    yield entry, self._decode(entry)
            if not page.entries:  # Kafka's offsets have gaps, at the end of a range as well
                return
            start = page.entries[-1].offset + 1

    def ask(self, request: Any) -> memoryview:
        """The body of the answer of the broker that serves the topic's queue.

        Raises:
            MemqError: as `topic`, or what the broker says.
        """
        _, body = self._run(self._queued().ask(request))
        return body

    def _decode(self, entry: NotificationEntry) -> Notification:
        try:
            return decode_notification(entry.payload)
        except CorruptDataError as exc:
            raise CorruptDataError(
                f"notification {self._options.topic}/{entry.partition} offset {entry.offset}: {exc}"
            ) from exc

    def _cluster(self) -> Cluster:
        if self._queue is None:
            options = self._options
            cluster = Cluster(
                options.bootstrap,
                client="memq.spark",
                token=options.token,
                request_timeout_s=REQUEST_TIMEOUT_S,
            )
            self._queue = TopicClient(cluster, options.topic)
        return self._queue.cluster

    def _queued(self) -> TopicClient:
        incarnation = self.incarnation()
        self._cluster()
        assert self._queue is not None  # noqa: S101 - made with the cluster
        self._queue.incarnation = incarnation
        return self._queue

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = EventLoopThread("memq-spark")
        try:
            return self._loop.run(work)
        except TopicRecreatedError as exc:
            raise TopicRecreatedError(f"{exc}. {GO_ON}") from exc
