"""The seam to the notification queue: what a broker needs of Kafka or of the embedded queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.core.clock import Times


class Publication(NamedTuple):
    """One payload to publish.

    Attributes:
        partition: read partition to publish to.
        payload: the Notification's bytes.
        timestamp_ms: when the Batch was sealed, milliseconds since 1970 UTC.
        running_ms: the same in running time (`memq.core.clock`).
    """

    partition: int
    payload: bytes
    timestamp_ms: int
    running_ms: int = 0


class Entry(NamedTuple):
    """One published payload at its offset.

    Attributes:
        offset: in the read partition; offsets grow by one and are never reused.
        timestamp_ms: of the publication; it never decreases along a partition.
        payload: the Notification's bytes.
        running_ms: of the publication; it never decreases along what a partition holds.
    """

    offset: int
    timestamp_ms: int
    payload: bytes
    running_ms: int = 0


class Holding(NamedTuple):
    """What a member of a group may be working on.

    Attributes:
        session_timeout_ms: it stops by itself when it has heard nothing for so long.
        partitions: read partitions, sorted.
    """

    session_timeout_ms: int
    partitions: list[int]


class NotificationQueue(Protocol):
    """Where Notifications are published, by topic and read partition.

    A *topic* of the queue is one incarnation of a topic: its name holds both (`Topic.queue_topic`).
    So nobody who means an earlier incarnation can read, commit to or delete a later one.

    Every method may raise `QueueError` (nothing happened, retriable) and `UnknownTopicError`.
    """

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic with that many read partitions; doing it again changes nothing."""

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its notifications and group offsets; unknown ones are fine."""

    async def topics(self) -> list[str]:
        """The topics of this queue, sorted."""

    async def fence(self, topic: str, write_partition: int) -> None:
        """Make this process the only one that can publish for the write partition.

        After it returns, a publish by any earlier owner fails, and everything an earlier owner
        published is visible to `fetch`.
        """

    async def publish(
        self, topic: str, write_partition: int, publications: Sequence[Publication]
    ) -> list[int]:
        """Publish in order; durable when it returns. Returns the offsets.

        Raises:
            PublishUncertainError: some of them may have been published; `fence`, then `fetch`.
            QueueError: none of them was.
        """

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        """Entries from `offset` on, as far as published; at least one whatever `max_bytes` says.

        An offset equal to the end gives an empty list.

        Raises:
            OffsetOutOfRangeError: the offset is before the start or after the end.
        """

    async def wait(self, topic: str, positions: Mapping[int, int], timeout_s: float) -> bool:
        """Wait until a partition has an entry at or past the offset given for it.

        Returns:
            True when one has; False when the time has passed.
        """

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Start (first offset still held) and end (one past the last) of a partition."""

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """First offset whose entry has that timestamp or a later one; the end when none has."""

    async def offset_since(self, topic: str, partition: int, running_ms: int) -> int:
        """First offset whose entry has that running time or a later one; the end when none has.

        What is before it was published longer ago than that, whatever wall clocks showed.
        """

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Forget the entries before `offset` (retention)."""

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store a group's next offsets, durably; the caller has checked that none is past the end.

        What was committed is known to have been handed out: no offset before it is used again.
        """

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's stored offsets; partitions without one are absent."""

    async def groups(self, topic: str) -> list[str]:
        """Groups that have stored offsets for the topic, sorted."""

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; an unknown group is fine."""

    async def hold(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """Store what the members of a group may hold, durably, in place of what was stored.

        Calls take effect in their order. That nobody holds anything need not be durable.
        """

    async def holdings(self, group: str, topic: str) -> dict[str, Holding]:
        """What the members of a group may hold, as stored last; nothing for an unknown group.

        Raises:
            CorruptDataError: what was stored is damaged.
        """

    async def holders(self, topic: str) -> list[str]:
        """Groups of which something is held, sorted."""

    async def times(self) -> Times:
        """How far time had come in the life before; zeros for a new queue.

        The running time is past that of every entry, also when it was not saved or is lost.
        """

    async def save_times(self, times: Times) -> None:
        """Keep for the next life how far time has come, durably."""

    async def close(self) -> None:
        """Release files and connections; further calls raise `ClosedError`."""
