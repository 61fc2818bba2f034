"""A notification queue in memory, with every promise of the seam but durability."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from memq.core.clock import SavedTimes
from memq.core.group import check_group_name
from memq.core.queue import (
    GROUPS,
    Holding,
    NotificationQueue,
    Publication,
    QueueEntry,
    check_fetch,
    check_group_count,
    check_group_offsets,
    check_new_topic,
    check_partition,
    check_publications,
    not_owned,
    out_of_range,
    within_bytes,
)
from memq.core.units import counted
from memq.errors import ClosedError, TopicExistsError, UnknownTopicError
from memq.queue.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class _Partition:
    """Entries of one read partition, of which the first has offset `start`."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[QueueEntry] = []
        self._last_ms = 0
        self.last_running_ms = -1

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def append(self, publication: Publication) -> int:
        self._last_ms = max(publication.timestamp_ms, self._last_ms)
        self.last_running_ms = max(publication.running_ms, self.last_running_ms)
        payload = bytes(publication.payload)
        self.entries.append(QueueEntry(self.end, self._last_ms, payload, self.last_running_ms))
        return self.end - 1


class _Topic:
    """Partitions of a topic, who may publish for its write partitions, and its groups."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [_Partition() for _ in range(partitions)]
        self.owners: dict[int, InMemoryQueue] = {}
        self.groups: dict[str, dict[int, int]] = {}
        self.holdings: dict[str, dict[str, Holding]] = {}


class _Shared:
    """What all processes see: the topics, and who waits in each process."""

    def __init__(self) -> None:
        self.topics: dict[str, _Topic] = {}
        self.waiters: list[Waiters] = []
        self.times = SavedTimes(0, 0)


class InMemoryQueue(NotificationQueue):
    """A queue in memory. It grows without bound.

    `another_process` gives a second queue on the same notifications, as another broker would have
    it, so that fencing can be tested.

    Args:
        broker_id: of the broker that has it.
    """

    def __init__(self, broker_id: str = "first") -> None:
        self.broker_id = broker_id
        self._attach(_Shared())

    def _attach(self, shared: _Shared) -> None:
        self._shared = shared
        self._waiters = Waiters()
        self._closed = False
        shared.waiters.append(self._waiters)

    def another_process(self, broker_id: str = "second") -> InMemoryQueue:
        """The same queue as another process has it: open, and owner of nothing."""
        other = InMemoryQueue(broker_id)
        other._attach(self._shared)
        return other

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._shared.topics)} topics"
        return f"<InMemoryQueue [{state}]>"

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic with that many read partitions; doing it again changes nothing.

        Raises:
            InvalidRequestError: the name or the number is not valid.
            TopicExistsError: it exists with another number of partitions.
        """
        self._check_open()
        check_new_topic(topic, partitions)
        held = len(self._shared.topics.setdefault(topic, _Topic(partitions)).partitions)
        if held != partitions:
            raise TopicExistsError(
                f"topic {topic!r} has {counted(held, 'read partition')}, not {partitions}"
            )

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its notifications and group offsets; unknown ones are fine."""
        self._check_open()
        self._shared.topics.pop(topic, None)
        self._wake(topic)

    async def topics(self) -> list[str]:
        """The topics of this queue, sorted."""
        self._check_open()
        return sorted(self._shared.topics)

    async def fence(self, topic: str, *write_partitions: int, again: bool = False) -> None:
        """Make this process the only one that can publish for these write partitions.

        Raises:
            FencedError: `again`, and another process has fenced one of them since.
        """
        found = self._topic(topic)
        for write_partition in write_partitions:
            if again:
                self._check_owner(topic, write_partition)
            found.owners[write_partition] = self

    async def release(self, topic: str, *write_partitions: int) -> None:
        """Let go of write partitions; those of other processes are left to them."""
        found = self._topic(topic)
        for write_partition in write_partitions:
            if found.owners.get(write_partition) is self:
                del found.owners[write_partition]
        self._wake(topic)

    def owns(self, topic: str, write_partition: int) -> bool:
        """Whether this process has fenced it last."""
        self._check_open()
        found = self._shared.topics.get(topic)
        return found is not None and found.owners.get(write_partition) is self

    async def wait_released(
        self,
        topic: str,
        write_partitions: Sequence[int],
        lives: Callable[[str], bool],
        timeout_s: float,
    ) -> bool:
        """Wait until none of them belongs to another broker that lives."""

        def ready() -> bool:
            owners = (self._topic(topic).owners.get(each) for each in write_partitions)
            return not any(
                owner is not None and owner.broker_id != self.broker_id and lives(owner.broker_id)
                for owner in owners
            )

        return await self._waiters.wait(topic, ready, timeout_s)

    def wake_owners(self) -> None:
        """Let those who wait ask again who lives."""
        self._waiters.wake_all()

    async def publish(
        self, topic: str, write_partition: int, publications: Sequence[Publication]
    ) -> list[int]:
        """Publish in order. Returns the offsets.

        Raises:
            FencedError: this process has not fenced the write partition, or another one has since.
        """
        found = self._topic(topic)
        check_publications(topic, publications, len(found.partitions))
        self._check_owner(topic, write_partition)
        offsets = [found.partitions[each.partition].append(each) for each in publications]
        self._wake(topic)
        return offsets

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_entries: int, max_bytes: int
    ) -> list[QueueEntry]:
        """Entries from `offset` on; at least one whatever `max_bytes` says, none at the end.

        Raises:
            OffsetOutOfRangeError: the offset is before the start or after the end.
        """
        check_fetch(max_entries, max_bytes)
        found = self._partition(topic, partition)
        if not found.start <= offset <= found.end:
            raise out_of_range(topic, partition, offset, found.start, found.end)
        first = offset - found.start
        return within_bytes(found.entries[first : first + max_entries], max_bytes)

    async def wait(self, topic: str, positions: Mapping[int, int], timeout_s: float) -> bool:
        """Wait until a partition has an entry at or past the offset given for it."""

        def ready() -> bool:
            return any(
                self._partition(topic, partition).end > offset
                for partition, offset in positions.items()
            )

        return await self._waiters.wait(topic, ready, timeout_s)

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Start and end of a partition."""
        found = self._partition(topic, partition)
        return found.start, found.end

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """First offset whose entry has that timestamp or a later one; the end when none has."""
        found = self._partition(topic, partition)
        return found.start + bisect_left(
            found.entries, timestamp_ms, key=lambda entry: entry.timestamp_ms
        )

    async def offset_since(self, topic: str, partition: int, running_ms: int) -> int:
        """First offset whose entry has that running time or a later one; the end when none has."""
        found = self._partition(topic, partition)
        return found.start + bisect_left(
            found.entries, running_ms, key=lambda entry: entry.running_ms
        )

    async def times(self) -> SavedTimes:
        """How far time had come in the life before; zeros for a new queue."""
        self._check_open()
        times = self._shared.times
        for topic in self._shared.topics.values():
            for partition in topic.partitions:
                running_ms = partition.last_running_ms + 1
                times = times._replace(running_ms=max(times.running_ms, running_ms))
        return times

    async def save_times(self, times: SavedTimes) -> None:
        """Keep for the next life how far time has come."""
        self._check_open()
        self._shared.times = times

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Forget the entries before `offset`; one at or before the start changes nothing.

        Raises:
            OffsetOutOfRangeError: the offset is after the end.
        """
        found = self._partition(topic, partition)
        if offset > found.end:
            raise out_of_range(topic, partition, offset, found.start, found.end)
        del found.entries[: max(0, offset - found.start)]
        if not found.entries:
            found.last_running_ms = -1
        found.start = max(found.start, offset)

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store a group's next offsets; those of other partitions stay.

        Raises:
            InvalidRequestError: the group's name, a partition or an offset is not valid.
            FencedError: this process has not fenced write partition 0, or another one has since.
        """
        check_group_name(group)
        found = self._topic(topic)
        check_group_offsets(topic, offsets, len(found.partitions))
        self._check_owner(topic, GROUPS)
        if group not in found.groups:
            check_group_count(topic, group, len(found.groups))
        if offsets:
            found.groups.setdefault(group, {}).update(offsets)

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's stored offsets; partitions without one are absent."""
        check_group_name(group)
        return dict(self._topic(topic).groups.get(group, {}))

    async def groups(self, topic: str) -> list[str]:
        """Groups that have stored offsets for the topic, sorted."""
        return sorted(self._topic(topic).groups)

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; an unknown group is fine."""
        check_group_name(group)
        self._check_owner(topic, GROUPS)
        self._topic(topic).groups.pop(group, None)

    async def hold(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """Store what the members of a group may hold, in place of what was stored."""
        check_group_name(group)
        found = self._topic(topic)
        self._check_owner(topic, GROUPS)
        found.holdings.pop(group, None)
        if holdings:
            found.holdings[group] = dict(holdings)

    async def holdings(self, topic: str) -> dict[str, dict[str, Holding] | None]:
        """What the members of each group may hold, as stored last."""
        return {**self._topic(topic).holdings}

    async def close(self) -> None:
        """Close this process's queue; further calls raise `ClosedError`."""
        if not self._closed:
            self._closed = True
            self._waiters.wake_all()
            self._shared.waiters.remove(self._waiters)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this queue has been closed; make another one")

    def _topic(self, topic: str) -> _Topic:
        self._check_open()
        if topic not in self._shared.topics:
            raise UnknownTopicError(f"the queue has no topic {topic!r}: deleted, or never made")
        return self._shared.topics[topic]

    def _check_owner(self, topic: str, write_partition: int) -> None:
        if self._topic(topic).owners.get(write_partition) is not self:
            raise not_owned(topic, write_partition)

    def _partition(self, topic: str, partition: int) -> _Partition:
        partitions = self._topic(topic).partitions
        check_partition(topic, partition, len(partitions))
        return partitions[partition]

    def _wake(self, topic: str) -> None:
        for waiters in self._shared.waiters:
            waiters.wake(topic)
