"""What the provider asks a cluster, over one short-lived set of connections.

Sensors and triggers look at a topic and go away again: a `Session` is opened for one look and
closed after it, so that nothing that waits holds a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memq.client.admin import AsyncAdminClient
from memq.client.cluster import Cluster
from memq.client.start import time_ms
from memq.client.topic import TopicClient
from memq.core.notification.notification import Notification, decode_notification
from memq.core.wire.messages import FetchWatermark
from memq.errors import InvalidRequestError, OffsetOutOfRangeError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from airflow_provider_memq.settings import ClientSettings
    from memq.core.wire.messages import MetadataAnswer, PartitionOffsets

PAGE_ENTRIES = 1_000  # notifications asked for at a time, about 1 MB
CLIENT = "airflow"  # what the brokers' logs call us


class TopicState(NamedTuple):
    """A topic at one moment.

    Attributes:
        topic: its name.
        incarnation: of it; offsets are of this one and mean nothing in another.
        starts: first offset held, by read partition.
        ends: one past the last offset published, by read partition.
        watermark_ms: every Message received before this time and acked lies before `ends`.
    """

    topic: str
    incarnation: str
    starts: dict[int, int]
    ends: dict[int, int]
    watermark_ms: int

    def as_json(self) -> dict[str, Any]:
        """It as plain JSON, with partitions as text: what an XCom holds."""
        return {
            "topic": self.topic,
            "incarnation": self.incarnation,
            "offsets": {str(partition): end for partition, end in self.ends.items()},
            "watermark_ms": self.watermark_ms,
        }


class Found(NamedTuple):
    """A notification at its offset."""

    offset: int
    notification: Notification


class Session:
    """Connections to a cluster, for one look. Use it with `async with`.

    Every call may raise `MemqError`, as those of `memq.AsyncAdminClient` do.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._cluster = Cluster(
            settings.bootstrap,
            client=CLIENT,
            token=settings.token,
            request_timeout_s=settings.request_timeout_s,
        )

        self._queues: dict[str, TopicClient] = {}

    def __repr__(self) -> str:
        return f"<Session {self._cluster!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._cluster.close()

    async def metadata(self) -> MetadataAnswer:
        """The cluster: its id, brokers and topics."""
        return await self._cluster.metadata(None)

    async def state(self, topic: str, incarnation: str = "") -> TopicState:
        """What a topic holds now, and how far it is stored.

        Raises:
            TopicRecreatedError: it is of another incarnation than the one given.
        """
        queue = self._queue(topic, incarnation)
        # First the watermark: what it covers is then sure to lie before the ends.
        mark, _ = await queue.ask(FetchWatermark(topic=topic))
        held = await queue.offsets()
        return TopicState(
            topic,
            queue.incarnation,
            {each.partition: each.start for each in held},
            {each.partition: each.end for each in held},
            mark.stored_through_ms,
        )

    async def ends(self, topic: str) -> tuple[str, dict[int, int]]:
        """Incarnation of a topic, and one past the last offset of each read partition."""
        queue = self._queue(topic)
        held = await queue.offsets()
        return queue.incarnation, {each.partition: each.end for each in held}

    async def offsets(self, topic: str, at: datetime | None = None) -> list[PartitionOffsets]:
        """Start and end of each read partition; with `at` also the first offset since then."""
        return await self._queue(topic).offsets(None if at is None else time_ms(at))

    async def committed(self, group: str, topic: str, incarnation: str = "") -> dict[int, int]:
        """Stored next offsets of a group; partitions without one are absent.

        Raises:
            TopicRecreatedError: the topic is of another incarnation than the one given.
        """
        return await self._queue(topic, incarnation).committed(group)

    async def pages(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[list[Found]]:
        """The notifications of a range, page by page.

        Raises:
            InvalidRequestError: the topic has no such partition, or the range is none.
            OffsetOutOfRangeError: some of the range is not held.
        """
        queue = self._queue(topic)
        _check_held(topic, partition, start, end, await queue.offsets())
        offset = start
        while offset < end:
            page = await queue.page({partition: offset}, max_entries=PAGE_ENTRIES)
            if not page.entries:  # Kafka's offsets have gaps, at the end of a range as well
                return
            yield [
                Found(entry.offset, decode_notification(entry.payload))
                for entry in page.entries
                if entry.offset < end
            ]
            offset = page.entries[-1].offset + 1

    def _queue(self, topic: str, incarnation: str = "") -> TopicClient:
        """One for each topic: all that a session is told is of one incarnation of it."""
        made = TopicClient(self._cluster, topic, incarnation)
        queue = self._queues.setdefault(topic, made)
        if incarnation and queue.incarnation not in ("", incarnation):
            raise TopicRecreatedError(
                f"topic {topic!r} is of incarnation {queue.incarnation} here, not {incarnation}"
            )
        queue.incarnation = queue.incarnation or incarnation
        return queue


def admin_client(settings: ClientSettings) -> AsyncAdminClient:
    """A client for everything else that can be administered."""
    return AsyncAdminClient(
        settings.bootstrap,
        token=settings.token,
        client=CLIENT,
        request_timeout_s=settings.request_timeout_s,
    )


def _check_held(
    topic: str, partition: int, start: int, end: int, held: list[PartitionOffsets]
) -> None:
    if not 0 <= partition < len(held):
        raise InvalidRequestError(
            f"topic {topic!r} has no partition {partition}; it has 0 to {len(held) - 1}"
        )
    if not 0 <= start <= end:
        raise InvalidRequestError(f"[{start}, {end}) of {topic}/{partition} is no range")
    there = held[partition]
    if start < end and (start < there.start or end > there.end):
        raise OffsetOutOfRangeError(
            f"{topic}/{partition} [{start}, {end}) is not held in full; [{there.start}, "
            f"{there.end}) is. What is before was removed by retention, what is behind was not "
            "published yet"
        )
