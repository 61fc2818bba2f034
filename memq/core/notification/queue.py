"""The seam to the notification queue: what a broker needs of Kafka or of the embedded queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Publication(NamedTuple):
    """One payload to publish.

    Attributes:
        partition: read partition to publish to.
        payload: the Notification's bytes.
        timestamp_ms: when the Batch was sealed.
    """

    partition: int
    payload: bytes
    timestamp_ms: int


class Entry(NamedTuple):
    """One published payload at its offset.

    Attributes:
        offset: in the read partition; offsets grow by one and are never reused.
        timestamp_ms: of the publication; it never decreases along a partition.
        payload: the Notification's bytes.
    """

    offset: int
    timestamp_ms: int
    payload: bytes


class NotificationQueue(Protocol):
    """Where Notifications are published, by topic and read partition.

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

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Forget the entries before `offset` (retention)."""

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store a group's next offsets, durably."""

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's stored offsets; partitions without one are absent."""

    async def groups(self, topic: str) -> list[str]:
        """Groups that have stored offsets for the topic, sorted."""

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; an unknown group is fine."""

    async def close(self) -> None:
        """Release files and connections; further calls raise `ClosedError`."""
