"""The notification queue in Kafka, behind the brokers.

Theory of operation
-------------------
A topic of the queue is a topic of Kafka, named after the cluster and the topic id, with its read
partitions. There is also one compacted topic, in which brokers say to each other what else a
queue has to know (`state`). Notifications stay readable with any client of Kafka.

*Publishing.* A broker has one transactional producer. All that it has to write at a time goes into
one transaction, in the order of the calls: notifications of many write partitions, group offsets,
and how far its running time has come. What comes meanwhile waits for the next one.

*Fencing.* Kafka lets one producer of a transactional id write, the latest. So an id is used by one
life of one producer alone, and never again; it is random. A write partition belongs to the id that
has made its latest claim. To fence write partitions is:

1. To make a producer of the id that has the latest claim, where it is not our own. From then on the
   owner of that claim can write nothing more, and what it has begun is committed or aborted.
2. To read the state to its end; and back to the first step if there is a later claim.
3. To write our own claims, and to read until they are seen. Had somebody else been quicker, theirs
   would have come first: back to the first step.
4. To read every partition of the topic up to where it ended just now.

Nothing by an earlier owner can come after the first step, so what the fourth has read is all that
was ever published for these write partitions, but by ourselves. Neither a clock nor a lease is part
of that. It holds even if another broker thinks that it owns them, however long it was not heard of.

*When an outcome is not known*, the producer is given up, and with it its id, which is fenced like
anybody's: so what was uncertain is decided. The broker takes another id, and claims with it what it
has, unless somebody has taken that over meanwhile. Write partitions with a publication in doubt are
refused until their owner fences them again and has read what came of it.

*Groups* of a topic belong to the owner of its write partition 0: a coordinator that was replaced
cannot move an offset.

*Offsets have gaps*: each transaction ends with a marker in each of its partitions, which takes an
offset. The end of a partition is one past its last notification, whatever markers follow.

*What a transaction has written is seen a little after it was committed*, or never: a Kafka that is
killed after a commit may forget to write its markers. The records then stay hidden, and the next
transaction of the same producer that is aborted takes them along. So a publication ends when its
entries are seen, and is in doubt when they are not. A reader at another broker asks Kafka how far
the partition was written, and waits for that.

A broker that dies may leave a transaction open, and nobody sees what others have written after it
until it is fenced or Kafka gives it up, after ten seconds or twenty. So a broker that starts waits
for that: it must know what an earlier life of its own has claimed, and release it. Otherwise
those who wait for it to let go, for it lives, would wait for ever.

*A Kafka that has lost what it has confirmed*, as after an election that was not clean, has less of
a partition than was written or read here. That is noticed when it is asked how far the partition
goes, and told; there is nothing to wait for. When it is the state that has lost its end, claims may
be gone: others do not know whom to fence. So a broker that has read more of it publishes no more,
and starts over with what there is.

*Times.* Each broker's entries bear times that do not decrease. Clocks of several brokers are never
quite the same, so entries of two of them may; searches by time find the first entry that has the
time or a later one, but for that difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from memq.core.clock import SavedTimes
from memq.core.group import check_group_name
from memq.core.queue import (
    GROUPS,
    check_fetch,
    check_group_count,
    check_group_offsets,
    check_new_topic,
    check_partition,
    check_publications,
    not_owned,
    out_of_range,
)
from memq.core.units import counted
from memq.errors import (
    ClosedError,
    MemqError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
    TopicExistsError,
    UnknownTopicError,
)
from memq.queue.kafka.client import NewRecord, Place, log_failure
from memq.queue.kafka.followed import (
    AT_ONCE,
    AT_ONCE_BYTES,
    SEEN_S,
    PartitionTail,
    entries_of,
    lost,
    pages,
)
from memq.queue.kafka.publisher import ROUND_RECORDS, Publisher
from memq.queue.kafka.restored import RestoredOffsets, records_of
from memq.queue.kafka.state import (
    StateTopic,
    bases_record,
    held_record,
    offset_records,
    topic_record,
)
from memq.queue.waiters import Waiters
from memq.runtime.system import SYSTEM, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memq.core.queue import Holding, Publication, QueueEntry
    from memq.errors import DataLossError
    from memq.queue.kafka.client import Bounds, KafkaClient, OnFailure
    from memq.queue.kafka.publisher import Owner
    from memq.queue.kafka.state import StateRecord

log = logging.getLogger(__name__)

START_S = 5.0  # for which the start of a partition is believed, where others may truncate it
SETTLED_S = 1.0  # how long a look at the end of a partition waits for open transactions
TAIL_RECORDS = 64  # that are looked at for the last entry, first; eight times as many then
SEARCH_RECORDS = 500  # that a search by time reads at once
MAX_TAILS = 10_000  # partitions that are followed: those asked about last
RESTORED_AT_ONCE = 20_000  # records: some 10 MB, in a buffer of 100,000
CLAIMS_SEEN_S = 0.5  # for which claims are waited for that were written just now

TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # a notification goes when its Batch does, which Kafka does not know
    "retention.bytes": "-1",
    "max.message.bytes": str(4 << 20),
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": str((1 << 63) - 1),  # whatever clocks show
}


class KafkaQueue:
    """A `NotificationQueue` in Kafka. `start` comes before anything else.

    Args:
        client: of Kafka; closed with the queue.
        cluster_id: of the cluster, which shares what is in Kafka under this name.
        broker_id: of this broker.
        runtime: chance, for transactional ids, and the clock.
        on_failure: told of what the queue cannot go on after, and where: a bug, or that Kafka has
            lost what brokers have said; the queue's owner is to stop.
    """

    def __init__(
        self,
        client: KafkaClient,
        *,
        cluster_id: str,
        broker_id: str,
        runtime: Runtime = SYSTEM,
        on_failure: OnFailure = log_failure,
    ) -> None:
        client = self._client = RestoredOffsets(client, cluster_id)
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._runtime = runtime
        self._releases = Waiters()  # those who wait until other brokers let go
        self._state_topic = StateTopic(
            client,
            cluster_id,
            on_forgotten=self._forget_topic,
            on_read=self._releases.wake_all,
            on_failure=on_failure,
            runtime=runtime,
        )
        self._state = self._state_topic.state
        client.bases = self._state.bases
        self._publisher = Publisher(
            client,
            self._state_topic,
            name=f"{cluster_id}.{broker_id}",
            broker_id=broker_id,
            runtime=runtime,
            see_topic=self._see_topic,
            on_written=self._note_written,
            on_failure=on_failure,
        )
        self._tails: OrderedDict[Place, PartitionTail] = (
            OrderedDict()
        )  # asked about longest ago first
        self._opening: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()
        self._written: dict[Place, int] = {}  # one past the last that was written or read here
        self._last_times: dict[Place, tuple[int, int]] = {}  # that were given to a publication
        self._waiters = Waiters()
        self._closed = False

    def __repr__(self) -> str:
        if self._closed:
            return f"<KafkaQueue {self._cluster_id} [closed]>"
        return (
            f"<KafkaQueue {self._cluster_id} [{counted(len(self._state.topics), 'topic')} | "
            f"{self._publisher!r} | {len(self._tails)} followed]>"
        )

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what brokers have said to each other.

        Raises:
            QueueError: Kafka is away.
            ConfigError: the state topic was made by somebody else, with more than one partition.
        """
        await self._state_topic.start()
        await self._publisher.start()

    async def close(self) -> None:
        """Release threads and connections; further calls raise `ClosedError`."""
        if self._closed:
            return
        self._closed = True
        error = _closed()
        for waiters in (self._waiters, self._releases):
            waiters.wake_all()
        await self._publisher.close()
        await self._client.close()
        self._state_topic.failed(error)
        for tail in self._tails.values():
            tail.failed(error)

    # -- topics -----------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic with that many read partitions; doing it again changes nothing.

        Raises:
            InvalidRequestError: the name or the number is not valid.
            TopicExistsError: it exists with another number of partitions.
        """
        self._check_open()
        check_new_topic(topic, partitions)
        name = self._kafka_topic(topic)
        found = await self._client.create_topic(name, partitions, TOPIC_SETTINGS)
        if found != partitions:
            raise TopicExistsError(
                f"topic {topic!r} has {counted(found, 'read partition')}, not {partitions}"
            )
        await self._state_topic.see_all()
        if topic not in self._state.topics:
            await self._say([topic_record(topic, partitions)])
            await self._state_topic.see_all()

    async def restore_topic(
        self,
        topic: str,
        entries: Sequence[Sequence[QueueEntry]],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        """Make a topic that has these entries at their offsets, in each read partition.

        What an attempt that failed has left is removed first.

        Args:
            topic: that the queue does not have.
            entries: by read partition, by offset.
            starts: first offset of each read partition.
            ends: no offset before these is used again.

        Raises:
            TopicExistsError: the queue has it.
            QueueError: it is not there, or not as a whole; it is not shown.
        """
        self._check_open()
        await self._state_topic.see_all()
        name = self._kafka_topic(topic)
        if topic in self._state.topics and name in await self._client.topics():
            raise TopicExistsError(
                f"Kafka has {name}, which lacks what was backed up: delete it in Kafka, and "
                "restore it again"
            )
        await self._client.delete_topic(name)
        await self._client.create_topic(name, len(starts), TOPIC_SETTINGS)
        for number, (of_one, start, end) in enumerate(zip(entries, starts, ends, strict=True)):
            records = records_of(Place(name, number), of_one, start, end)
            while some := list(itertools.islice(records, RESTORED_AT_ONCE)):
                await self._client.append(Place(name, number), some)
        await self._say([bases_record(topic, starts), topic_record(topic, len(starts))])
        await self._state_topic.see_all()

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic with its notifications and group offsets; unknown ones are fine."""
        self._check_open()
        self._publisher.forget_topic(topic)  # what waits is not published to what is gone
        await self._client.delete_topic(self._kafka_topic(topic))
        await self._state_topic.see_all()
        if topic in self._state.topics:
            forgotten = list(self._state.forget(topic))
            for first in range(0, len(forgotten), ROUND_RECORDS):
                await self._say(forgotten[first : first + ROUND_RECORDS])
            await self._state_topic.see_all()

    async def topics(self) -> list[str]:
        """Return the topics of this queue, sorted."""
        self._check_open()
        there = await self._client.topics()
        await self._state_topic.see_all()
        return sorted(each for each in self._state.topics if self._kafka_topic(each) in there)

    async def service_id(self) -> str:
        """Kafka's own id of its cluster."""
        self._check_open()
        return await self._client.cluster_id()

    # -- publishing -------------------------------------------------------------------------

    async def fence(self, topic: str, *write_partitions: int, again: bool = False) -> None:
        """Make this process the only one that can publish for these write partitions.

        Raises:
            FencedError: `again`, and another process has fenced one of them.
        """
        await self._partitions(topic)
        await self._publisher.fence(topic, write_partitions, again=again)

    async def release(self, topic: str, *write_partitions: int) -> None:
        """Let go of write partitions, so that another process can fence them and harm nobody.

        Raises:
            QueueError: they may be released, or not; `owns` says so when that is known.
        """
        await self._partitions(topic)
        await self._publisher.release(topic, write_partitions)

    def owns(self, topic: str, write_partition: int) -> bool:
        """Return whether this process has fenced it, and does not know of a later owner.

        Times are saved by a producer that had the claims of all that is owned then. A process that
        fences a write partition fences that producer first.
        """
        self._check_open()
        return self._publisher.owns((topic, write_partition))

    async def wait_released(
        self,
        topic: str,
        write_partitions: Sequence[int],
        lives: Callable[[str], bool],
        timeout_s: float,
    ) -> bool:
        """Wait until none of them is claimed by another broker that lives."""
        await self._partitions(topic)

        def ready() -> bool:
            self._check_open()
            if topic not in self._state.topics:
                raise _unknown(topic)
            claimed_by = (self._claimed_by(topic, each) for each in write_partitions)
            return not any(each not in ("", self._broker_id) and lives(each) for each in claimed_by)

        # A dead broker may have left a transaction open, which holds up for many seconds what is
        # seen of the state; the fence ends it, so this must not wait for it. What is not seen yet
        # is at worst a claim of a live broker, which is then fenced without need.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, CLAIMS_SEEN_S)):
                await self._state_topic.see_all()
        return await self._releases.wait(topic, ready, timeout_s)

    def wake_owners(self) -> None:
        """Let those who wait for brokers to let go ask again who lives."""
        self._releases.wake_all()

    async def publish(
        self, topic: str, write_partition: int, publications: Sequence[Publication]
    ) -> list[int]:
        """Publish in order; durable, and seen by everybody, when it returns. Returns the offsets.

        Raises:
            FencedError: the write partition was not fenced, or its last outcome was uncertain, or
                another process has fenced it.
            PublishUncertainError: some of them may have been published; `fence`, then `fetch`.
            QueueError: none of them was.
        """
        partitions = await self._partitions(topic)
        check_publications(topic, publications, partitions)
        owner = (topic, write_partition)
        if not self._publisher.owns(owner):  # what is refused moves no time
            raise not_owned(*owner)
        records = [self._new_record(topic, each) for each in publications]
        offsets = await self._publisher.write(records, owner, doubtful=True)
        try:
            await self._see_entries(topic, publications, offsets)
        except UnknownTopicError:
            raise
        except MemqError as exc:
            self._publisher.doubt(owner)
            raise PublishUncertainError(f"it was committed, and is not there: {exc}") from exc
        return offsets

    async def _see_entries(
        self, topic: str, publications: Sequence[Publication], offsets: Sequence[int]
    ) -> None:
        """Wait until everybody can read what was committed.

        A Kafka that is killed between a commit and its markers may never write them. It then hides
        the entries for good, or drops them with the next transaction of the same producer.

        Raises:
            QueueError: they were dropped, or are not there in time.
        """
        written: dict[int, list[int]] = {}
        for publication, offset in zip(publications, offsets, strict=True):
            written.setdefault(publication.partition, []).append(offset)
        for partition, wanted in written.items():
            tail = await self._tail(topic, partition)
            missing = {each for each in wanted if each >= tail.start}  # else seen, and truncated
            at, end = max(wanted[0], tail.start), wanted[-1] + 1
            while at < end and (page := await self._entries(tail, at, end, AT_ONCE, AT_ONCE_BYTES)):
                missing -= {each.offset for each in page}
                at = page[-1].offset + 1
            if missing:
                raise QueueError(f"Kafka has dropped the entries {sorted(missing)} of {tail.place}")

    # -- reading ----------------------------------------------------------------------------

    async def fetch(
        self, topic: str, partition: int, offset: int, *, max_entries: int, max_bytes: int
    ) -> list[QueueEntry]:
        """Entries from `offset` on; at least one whatever `max_bytes` says, none at the end.

        Raises:
            OffsetOutOfRangeError: the offset is before the start or after the end.
        """
        check_fetch(max_entries, max_bytes)
        tail = await self._tail(topic, partition)
        known_s = self._runtime.mono_s() - tail.looked_s
        if known_s > START_S or not tail.start <= offset <= tail.end:
            await self.offsets(topic, partition)  # what is known here may be old
        if not tail.start <= offset <= tail.end:
            raise out_of_range(topic, partition, offset, tail.start, tail.end)
        try:
            found = await self._entries(tail, offset, tail.end, max_entries, max_bytes)
        except OffsetOutOfRangeError:
            start, end = await self.offsets(topic, partition)
            raise out_of_range(topic, partition, offset, start, end) from None
        if not found and offset < tail.end:
            raise QueueError(f"{tail.place} was not read from {offset} to {tail.end}; try again")
        return found

    async def _entries(
        self, tail: PartitionTail, offset: int, end: int, max_entries: int, max_bytes: int
    ) -> list[QueueEntry]:
        """Entries from an offset on, from memory or from Kafka."""
        found = tail.fetch(offset, max_entries, max_bytes)
        while found is None:
            records = await self._client.read(
                tail.place, offset, end, max_records=max_entries, max_bytes=max_bytes
            )
            if (entries := entries_of(records)) or not records:
                return entries
            offset = records[-1].offset + 1  # where a topic was restored, gaps have records too
            found = [] if offset >= end else None
        return found

    async def wait(self, topic: str, positions: Mapping[int, int], timeout_s: float) -> bool:
        """Wait until a partition has an entry at or past the offset given for it."""
        tails = [(await self._tail(topic, each), at) for each, at in positions.items()]

        def ready() -> bool:
            self._check_open()
            for tail, offset in tails:
                if tail.error is not None:
                    raise tail.error
                if tail.end > offset:
                    return True
            return False

        return await self._waiters.wait(topic, ready, timeout_s)

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Start and end of a partition, as Kafka has it now."""
        tail = await self._tail(topic, partition)
        place = self._place(topic, partition)
        bounds = (await self._bounds([place]))[0]
        tail.looked_s = self._runtime.mono_s()
        tail.forget_before(bounds.start)
        try:
            await tail.see(bounds, SETTLED_S)
        except QueueError:  # a transaction that stays open hides only what comes after it
            await tail.wait_for(bounds.stable, SEEN_S)
        return tail.start, tail.end

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return one past the last entry of an earlier timestamp; the start when there is none.

        So what was published before a time and what was from then on meet, whenever it is asked,
        also where offsets between them have no entry.
        """
        return await self._find(topic, partition, lambda entry: entry.timestamp_ms >= timestamp_ms)

    async def offset_since(self, topic: str, partition: int, running_ms: int) -> int:
        """Return one past the last entry of an earlier running time; the start without one."""
        return await self._find(topic, partition, lambda entry: entry.running_ms >= running_ms)

    async def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Forget the entries before `offset`; one at or before the start changes nothing.

        Raises:
            OffsetOutOfRangeError: the offset is after the end.
        """
        start, end = await self.offsets(topic, partition)
        if offset > end:
            raise out_of_range(topic, partition, offset, start, end)
        if offset > start:
            await self._client.delete_records(self._place(topic, partition), offset)
            (await self._tail(topic, partition)).forget_before(offset)

    # -- groups -----------------------------------------------------------------------------

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store a group's next offsets, durably; those of other partitions stay.

        Raises:
            InvalidRequestError: the group's name, a partition or an offset is not valid.
            LimitReachedError: the group is new and there are as many as there may be.
            FencedError: the topic's write partition 0 is not owned here.
        """
        check_group_name(group)
        check_group_offsets(topic, offsets, await self._partitions(topic))
        new = not self._state.offsets(topic, group)
        if new:
            check_group_count(topic, group, len(self._state.groups(topic)))
        await self._say(offset_records(topic, group, offsets), (topic, GROUPS))
        if new:
            await self._state_topic.see_all()  # the next one is counted with it

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's stored offsets; partitions without one are absent."""
        check_group_name(group)
        await self._see_groups(topic)
        return self._state.offsets(topic, group)

    async def groups(self, topic: str) -> list[str]:
        """Groups that have stored offsets for the topic, sorted."""
        await self._see_groups(topic)
        return self._state.groups(topic)

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; an unknown group is fine."""
        check_group_name(group)
        await self._see_groups(topic)
        gone = dict.fromkeys(self._state.offsets(topic, group))
        await self._say(offset_records(topic, group, gone), (topic, GROUPS))
        await self._state_topic.see_all()

    async def hold(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """Store what the members of a group may hold, durably, in place of what was stored."""
        check_group_name(group)
        await self._partitions(topic)
        await self._say([held_record(topic, group, holdings)], (topic, GROUPS))

    async def holdings(self, topic: str) -> dict[str, dict[str, Holding] | None]:
        """Return what the members of each group may hold, as last stored."""
        await self._see_groups(topic)
        return {**self._state.held(topic)}

    # -- times ------------------------------------------------------------------------------

    async def times(self) -> SavedTimes:
        """Return the latest times of any broker; zeros for a new queue."""
        self._check_open()
        await self._publisher.settle()
        await self._state_topic.see_all()
        known = self._state.times.values()
        return SavedTimes(
            max((each.running_ms for each in known), default=0),
            max((each.wall_ms for each in known), default=0),
        )

    async def save_times(self, times: SavedTimes) -> None:
        """Keep for the next life how far time has come, durably."""
        self._check_open()
        await self._publisher.save_times(times)

    async def check(self) -> None:
        """Ask Kafka how far the state topic goes.

        Raises:
            QueueError: it does not say.
        """
        await self._client.bounds([self._state_topic.place])

    # -- what is seen -----------------------------------------------------------------------

    def _forget_topic(self, topic: str) -> None:
        """Forget a topic that was deleted, here or by another broker."""
        gone = UnknownTopicError(f"topic {topic!r} has been deleted")
        name = self._kafka_topic(topic)
        for place in [each for each in self._tails if each.topic == name]:
            self._tails.pop(place).failed(gone)
            self._client.unfollow(place)
        self._publisher.forget_topic(topic)
        for of_places in (self._written, self._last_times):
            for place in [each for each in of_places if each.topic == name]:
                del of_places[place]
        self._waiters.wake(topic)

    async def _see_groups(self, topic: str) -> None:
        """See what is stored of a topic's groups, and what was asked to be before this."""
        await self._partitions(topic)
        await self._publisher.settle()
        await self._state_topic.see_all()
        await self._partitions(topic)

    async def _see_topic(self, topic: str) -> None:
        """See all that was published to a topic up to now."""
        partitions = await self._partitions(topic)
        places = [self._place(topic, each) for each in range(partitions)]
        tails = [await self._tail(topic, each) for each in range(partitions)]
        for tail, bounds in zip(tails, await self._bounds(places), strict=True):
            tail.forget_before(bounds.start)
            await tail.see(bounds, SEEN_S)

    async def _partitions(self, topic: str) -> int:
        """Return how many read partitions a topic has."""
        self._check_open()
        if topic not in self._state.topics:
            await self._state_topic.see_all()
        if topic not in self._state.topics:
            raise _unknown(topic)
        return self._state.topics[topic]

    def _claimed_by(self, topic: str, write_partition: int) -> str:
        """Id of the broker with the latest claim; empty when there is none."""
        transactional_id = self._state.claim(topic, write_partition).owner
        return transactional_id.removeprefix(f"{self._cluster_id}.").rpartition(".")[0]

    async def _tail(self, topic: str, partition: int) -> PartitionTail:
        """Follow the end of a partition, with all that was written here."""
        check_partition(topic, partition, await self._partitions(topic))
        place = self._place(topic, partition)
        tail = self._tails.get(place)
        if tail is not None and tail.error is not None:
            del self._tails[place]  # it may be there again
            self._note_end(place, tail.reached)
            tail = None
        if tail is None:
            async with self._opening.setdefault(place, asyncio.Lock()):
                tail = self._tails.get(place) or await self._open(topic, place)
        if place in self._tails:
            self._tails.move_to_end(place)
        written = self._written.get(place, 0)
        if tail.reached < written:
            await self._see_written(tail, written)
        return tail

    async def _see_written(self, tail: PartitionTail, written: int) -> None:
        """Wait until what was written here is seen: a little later, unless Kafka has lost it."""
        try:
            await tail.wait_for(written, SETTLED_S)
        except QueueError:  # who follows may be told late, or never
            bounds = (await self._bounds([tail.place]))[0]
            await tail.see(bounds._replace(written=written), SEEN_S)

    async def _bounds(self, places: Sequence[Place]) -> list[Bounds]:
        """Look up what these partitions have now.

        Raises:
            DataLossError: Kafka has less of one than it had; it is told once.
        """
        before = []
        for place in places:
            tail = self._tails.get(place)
            read = 0 if tail is None else tail.reached
            before.append(max(read, self._written.get(place, 0)))
        found = await self._client.bounds(places)
        losses = [
            self._lose(place, lost(place, end, bounds), bounds)
            for place, end, bounds in zip(places, before, found, strict=True)
            if bounds.written < end
        ]
        if losses:
            raise losses[0]
        return found

    def _lose(self, place: Place, error: DataLossError, bounds: Bounds) -> DataLossError:
        """Go on with what Kafka has of a partition."""
        log.critical("%s; going on with what there is", error)
        self._written[place] = bounds.stable  # what is open may never be
        tail = self._tails.pop(place, None)
        if tail is not None:
            self._client.unfollow(place)
            tail.failed(error)
        return error

    async def _open(self, topic: str, place: Place) -> PartitionTail:
        """Begin to follow a partition."""
        bounds = (await self._bounds([place]))[0]
        last = await self._last_entries(place, bounds)
        tail = PartitionTail(self._client, place, bounds, last, lambda: self._waiters.wake(topic))
        tail.looked_s = self._runtime.mono_s()
        self._check_open()
        self._client.follow(place, bounds.stable, tail)
        self._tails[place] = tail
        while len(self._tails) > MAX_TAILS:
            unused, _ = self._tails.popitem(last=False)
            self._client.unfollow(unused)
        return tail

    async def _last_entries(self, place: Place, bounds: Bounds) -> list[QueueEntry]:
        """Read the last entries of a partition; others may be markers, or not committed."""
        begin, width = bounds.stable, TAIL_RECORDS
        found: list[QueueEntry] = []
        while begin > bounds.start:
            begin = max(bounds.start, begin - width)
            width *= 8
            async for records in pages(self._client, place, begin, bounds.stable):
                found += entries_of(records)
            if found:
                break
        return found

    async def _find(self, topic: str, partition: int, is_late: Callable[[QueueEntry], bool]) -> int:
        """Find one past the last entry that is not late, in a partition of which the later ones
        are.
        """
        low, high = await self.offsets(topic, partition)
        tail = await self._tail(topic, partition)
        while low < high:
            # All before `low` is early, and it is the start, or one past an entry; all from `high`
            # on is late, or has no entry.
            middle = low if high - low <= SEARCH_RECORDS else (low + high) // 2
            try:
                entries = await self._entries(tail, middle, high, SEARCH_RECORDS, 1 << 30)
            except OffsetOutOfRangeError as exc:
                problem = f"{tail.place} was truncated while it was searched; try again"
                raise QueueError(problem) from exc
            entries = [each for each in entries if each.offset < high]
            late = next((number for number, each in enumerate(entries) if is_late(each)), None)
            if late is None and entries:
                low = entries[-1].offset + 1
            elif late:
                return entries[late - 1].offset + 1
            elif middle == low:
                break
            else:
                high = middle
        return low

    # -- inside -----------------------------------------------------------------------------

    async def _say(self, records: Iterable[StateRecord], owner: Owner | None = None) -> None:
        """Tell the other brokers, and the next life of this one."""
        await self._publisher.write(self._state_topic.new_records(records), owner)

    def _note_written(self, records: Sequence[NewRecord], offsets: Sequence[int]) -> None:
        """Make readers here wait until they see what was written here."""
        for record, offset in zip(records, offsets, strict=True):
            if record.place == self._state_topic.place:
                self._state_topic.note_written(offset + 1)
            else:
                self._note_end(record.place, offset + 1)

    def _note_end(self, place: Place, end: int) -> None:
        self._written[place] = max(self._written.get(place, 0), end)

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _kafka_topic(self, topic: str) -> str:
        return f"{self._cluster_id}.{topic}"

    def _place(self, topic: str, partition: int) -> Place:
        return Place(self._kafka_topic(topic), partition)

    def _new_record(self, topic: str, publication: Publication) -> NewRecord:
        """Make a record whose times are not before those of the last entry known here."""
        place = self._place(topic, publication.partition)
        timestamp_ms, running_ms = self._last_times.get(place, (0, 0))
        tail = self._tails.get(place)
        if tail is not None and tail.last is not None:
            timestamp_ms = max(timestamp_ms, tail.last.timestamp_ms)
            running_ms = max(running_ms, tail.last.running_ms)
        timestamp_ms = max(timestamp_ms, publication.timestamp_ms)
        running_ms = max(running_ms, publication.running_ms)
        self._last_times[place] = timestamp_ms, running_ms
        return NewRecord(place, bytes(publication.payload), None, timestamp_ms, running_ms)


def _unknown(topic: str) -> UnknownTopicError:
    return UnknownTopicError(f"the queue has no topic {topic!r}: deleted, or never made")


def _closed() -> ClosedError:
    return ClosedError("this queue has been closed; make another one")
