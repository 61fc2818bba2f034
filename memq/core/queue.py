"""The seam to the notification queue: what a broker needs of Kafka or of the embedded queue.

Below the seam stands what every queue refuses, in the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from memq.core.names import check_name
from memq.core.ranges import retained_in_words
from memq.errors import (
    FencedError,
    InvalidRequestError,
    LimitReachedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memq.core.clock import SavedTimes

MAX_QUEUE_TOPIC = 249  # characters, where Kafka ends

MAX_TIME_MS = (1 << 63) - 1
MAX_PARTITIONS = 256  # as many as a topic may have
MAX_STORED_GROUPS = 10_000
"""Groups with stored offsets of one topic. Anybody can make one by a commit, and each is a file."""

MAX_PAYLOAD_BYTES = 2 << 20
"""Largest payload: a Batch of 10,000 Messages, each from another producer, takes about 1 MiB."""


GROUPS = 0
"""The write partition of a topic whose owner has the topic's groups."""


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


class QueueEntry(NamedTuple):
    """One published payload at its offset.

    Attributes:
        offset: in the read partition; offsets grow, with gaps, and are never used again.
        timestamp_ms: of the publication. It never decreases along what one process has published
            to a partition; those of two are as different as their clocks.
        payload: the Notification's bytes.
        running_ms: of the publication; the same goes for it.
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

    A *topic* of the queue is one topic id: its name holds both (`Topic.queue_topic`).
    So nobody who means an earlier topic id can read, commit to or delete a later one.

    Every method may raise `QueueError` (nothing happened, retriable) and `UnknownTopicError`.
    Those that only a service needs which brokers share do nothing here.
    """

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic with that many read partitions; doing it again changes nothing."""

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its notifications and group offsets; unknown ones are fine."""

    async def topics(self) -> list[str]:
        """Return the topics of this queue, sorted."""

    async def service_id(self) -> str:
        """Return the name of the service behind it; empty where there is none, or no name."""
        return ""

    async def fence(self, topic: str, *write_partitions: int, again: bool = False) -> None:
        """Make this process the only one that can publish for these write partitions.

        After it returns, a publish by any earlier owner fails, and everything an earlier owner
        published is visible to `fetch`. The owner of write partition 0 has the topic's groups.

        Args:
            topic: the topic.
            write_partitions: which of its write partitions.
            again: this process has fenced them before, and wants them if it still has them.

        Raises:
            FencedError: `again`, and another process has fenced one of them since.
        """

    async def release(self, topic: str, *write_partitions: int) -> None:
        """Let go of write partitions, so that another process can fence them and harm nobody.

        What was asked for before takes effect before; afterwards they are not owned here. One that
        is not owned here, or not any more, is left to its owner.

        Raises:
            QueueError: they may be released, or not; `owns` may say so still. To release them once
                more, or to fence them, works, here and at others.
        """

    def owns(self, topic: str, write_partition: int) -> bool:
        """Return whether this process has fenced it, and does not know of a later owner.

        What is true right after a successful `save_times` was so when the times were saved: had
        another process fenced it before, the times could not have been saved without learning that.
        So a process that fences it later finds these times.
        """

    async def wait_released(
        self,
        topic: str,
        write_partitions: Sequence[int],
        lives: Callable[[str], bool],
        timeout_s: float,
    ) -> bool:
        """Wait until none of them belongs to another broker that lives.

        This is a courtesy: to fence them needs no waiting, but costs an owner that lives dearly.

        Args:
            topic: the topic.
            write_partitions: which of its write partitions.
            lives: whether the broker with an id is alive; asked again after `wake_owners`.
            timeout_s: longest wait.

        Returns:
            False when the time has passed, and one still belongs to such a broker.
        """

    def wake_owners(self) -> None:
        """Let those who wait for owners to let go ask again who lives."""
        return

    async def publish(
        self, topic: str, write_partition: int, publications: Sequence[Publication]
    ) -> list[int]:
        """Publish in order. Returns the offsets.

        When it returns, the entries are durable, and before the end that `offsets` gives at each
        process.

        Raises:
            PublishUncertainError: some of them may have been published; `fence`, then `fetch`.
            QueueError: none of them was.
        """

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_entries: int, max_bytes: int
    ) -> list[QueueEntry]:
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
        """Start (first offset still retained) and end (one past the last entry) of a partition.

        All that was published, by whichever process, before this was called is before the end.
        """

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return one past the last entry of an earlier timestamp; the start when there is none.

        So what was published before a time and what was from then on meet, whenever it is asked,
        also where offsets between them have no entry.
        """

    async def offset_since(self, topic: str, partition: int, running_ms: int) -> int:
        """Return one past the last entry of an earlier running time; the start without one.

        What is before it was published longer ago than that, whatever wall clocks showed.
        """

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Forget the entries before `offset` (retention)."""

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store a group's next offsets, durably; the caller has checked that none is past the end.

        What was committed is known to have been handed out: no offset before it is used again.

        Raises:
            FencedError: this process has not fenced write partition 0, or another one has since.
        """

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's stored offsets; partitions without one are absent."""

    async def groups(self, topic: str) -> list[str]:
        """Groups that have stored offsets for the topic, sorted."""

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; an unknown group is fine."""

    async def hold(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """Store what the members of a group may hold, durably, in place of what was stored.

        Calls take effect in their order. That nobody holds anything need not be durable.
        """

    async def holdings(self, topic: str) -> dict[str, dict[str, Holding] | None]:
        """Return what each member of a group may hold, as last stored; None where damaged.

        Groups of which nothing is held are absent.
        """

    async def times(self) -> SavedTimes:
        """Return the times that the process before this one had reached; zeros for a new queue.

        The running time is past that of every entry, also when it was not saved or is lost.
        """

    async def save_times(self, times: SavedTimes) -> None:
        """Keep for the next life how far time has come, durably."""

    async def check(self) -> None:
        """Ask the service that has the queue for something small, to see that it answers."""
        return

    async def close(self) -> None:
        """Release files and connections; further calls raise `ClosedError`."""


def within_bytes(entries: Iterable[QueueEntry], max_bytes: int) -> list[QueueEntry]:
    """Return the first of some entries, at least one, of which the payloads fit."""
    taken: list[QueueEntry] = []
    for entry in entries:
        max_bytes -= len(entry.payload)
        if taken and max_bytes < 0:
            break
        taken.append(entry)
    return taken


# -- what every queue refuses ----------------------------------------------------------------


def check_new_topic(topic: str, partitions: int) -> None:
    """Refuse a name, or a number of read partitions, that no topic of a queue can have.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    check_name("queue topic", topic, MAX_QUEUE_TOPIC)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(
            f"topic {topic!r} cannot have {partitions} read partitions; choose 1 to "
            f"{MAX_PARTITIONS}"
        )


def check_partition(topic: str, partition: int, partitions: int) -> None:
    """Refuse a read partition that the topic does not have.

    Raises:
        InvalidRequestError: naming those it has.
    """
    if not 0 <= partition < partitions:
        raise InvalidRequestError(
            f"topic {topic!r} has no read partition {partition}; it has 0 to {partitions - 1}"
        )


def check_publications(topic: str, publications: Sequence[Publication], partitions: int) -> None:
    """Refuse publications of which one could never be stored.

    Raises:
        InvalidRequestError: one is for a partition that the topic does not have, or has a
            timestamp before 1970 or a negative running time.
        MessageTooLargeError: one has a payload above `MAX_PAYLOAD_BYTES`.
    """
    for publication in publications:
        check_partition(topic, publication.partition, partitions)
        if not 0 <= publication.running_ms <= MAX_TIME_MS:
            raise InvalidRequestError(
                f"running time {publication.running_ms} ms is not within 0 and {MAX_TIME_MS}"
            )
        if publication.timestamp_ms < 0:
            raise InvalidRequestError(
                f"timestamp {publication.timestamp_ms} ms is before 1970; check the clock"
            )
        if len(publication.payload) > MAX_PAYLOAD_BYTES:
            raise MessageTooLargeError(
                f"a notification of {len(publication.payload)} bytes for {topic!r} exceeds "
                f"{MAX_PAYLOAD_BYTES}; lower the topic's batch_messages"
            )


def check_fetch(max_entries: int, max_bytes: int) -> None:
    """Refuse limits under which nothing could be fetched.

    Raises:
        InvalidRequestError: `max_entries` is below 1 or `max_bytes` below 0.
    """
    if max_entries < 1 or max_bytes < 0:
        raise InvalidRequestError(
            f"cannot fetch at most {max_entries} entries of {max_bytes} bytes; ask for 1 or more"
        )


def check_group_offsets(topic: str, offsets: Mapping[int, int], partitions: int) -> None:
    """Refuse offsets that a group cannot store.

    Raises:
        InvalidRequestError: a partition is not one of the topic's, or an offset is negative.
    """
    for partition, offset in offsets.items():
        check_partition(topic, partition, partitions)
        if offset < 0:
            raise InvalidRequestError(f"offset {offset} of {topic!r}/{partition} is negative")


def check_group_count(topic: str, group: str, stored: int) -> None:
    """Refuse to store the offsets of one more group.

    Args:
        topic: the topic.
        group: the new group.
        stored: how many groups have stored offsets.

    Raises:
        LimitReachedError: that is as many as there may be.
    """
    if stored >= MAX_STORED_GROUPS:
        raise LimitReachedError(
            f"group {group!r} cannot store offsets: topic {topic!r} has its most of "
            f"{MAX_STORED_GROUPS} groups. Delete those that nobody uses: `memq group delete GROUP "
            "TOPIC`"
        )


def out_of_range(
    topic: str, partition: int, offset: int, start: int, end: int
) -> OffsetOutOfRangeError:
    """Make the error for an offset that a partition does not hold."""
    return OffsetOutOfRangeError(
        f"offset {offset} of {topic!r}/{partition} was removed by retention, or never published; "
        f"{retained_in_words(start, end)}"
    )


def not_owned(topic: str, write_partition: int) -> FencedError:
    """Make the error for a write partition that this process has not fenced, or has lost."""
    return FencedError(
        f"write partition {write_partition} of {topic!r} is not owned here; fence it first"
    )
