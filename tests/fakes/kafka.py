"""A Kafka in memory, at the seam of its client, with the faults of the real one.

It has transactions as Kafka has them, as far as a queue can see: each ends with a marker in each of
its partitions, which takes an offset; the marker comes some time after the commit; what is written
after the first record of a transaction that is open is not stable yet; a producer is the only one
of its id until another is made; what it has left open is aborted by that, or by a time limit.

It has no threads, and a simulation may run clients of several machines on it.

    kafka = InMemoryKafka()
    queue = KafkaQueue(kafka.client(), cluster_id="c", broker_id="b")
    await queue.start()
    kafka.loses = 0.5       # half of all commits take effect, and their answers are lost
    kafka.away = "silent"   # nobody is answered
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.errors import (
    ClosedError,
    FencedError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
    UnknownTopicError,
)
from memq.queue.kafka.client import Bounds, KafkaRecord, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memq.queue.kafka.client import NewRecord, Reader

    Schedule = Callable[[float, Callable[[], None]], None]

SILENCE_S = 10.0  # after which a request is given up that nobody answers
TRANSACTION_S = (10.0, 20.0)  # after which a transaction is aborted that nobody ends
PATIENCE = 6  # attempts to end a transaction
RECHECK_S = 0.05  # between looks at what has not happened yet


@dataclass(eq=False)
class _Transaction:
    """One transaction.

    Attributes:
        places: partitions in which its marker is still to be written, and their logs: a topic may
            be deleted, or made again, before it ends.
        committed: None while it is open.
    """

    places: dict[Place, _Partition] = field(default_factory=dict)
    committed: bool | None = None
    hangs: bool = False  # it was told to be committed, and is not


@dataclass(eq=False)
class _Partition:
    """The log of one partition: its records, and how far it goes with all markers."""

    start: int = 0
    end: int = 0
    records: list[tuple[KafkaRecord, _Transaction]] = field(default_factory=list)
    unstable: dict[_Transaction, int] = field(default_factory=dict)  # and where each begins

    @property
    def stable(self) -> int:
        return min(self.unstable.values(), default=self.end)

    def committed(self, start: int, end: int) -> list[KafkaRecord]:
        records = self._between(start, end)
        return [record for record, transaction in records if transaction.committed]

    def of(self, transaction: _Transaction) -> list[KafkaRecord]:
        start = self.unstable.get(transaction, self.end)
        return [record for record, of in self._between(start, self.end) if of is transaction]

    def _between(self, start: int, end: int) -> list[tuple[KafkaRecord, _Transaction]]:
        first = bisect_left(self.records, start, key=lambda each: each[0].offset)
        last = bisect_left(self.records, end, key=lambda each: each[0].offset)
        return self.records[first:last]


class InMemoryKafka:
    """The brokers of Kafka, as one. It grows with what is written and not truncated.

    Args:
        schedule: calls something after so many seconds; by default on the running event loop.
        rng: chance, of delays and faults.
        on_committed: told of each record at the moment when nothing can undo it.
        on_truncated: told of each partition, and of the offset before which all is gone.
        markers: the marker of a transaction takes an offset.

    Attributes:
        cluster_id: what it calls itself.
        latency_s: how long a request takes, least and most.
        marker_s: how long after a commit its markers are written, least and most.
        told_s: how long after that who follows is told, least and most; of the marker itself as
            long again. None for never.
        cuts: how likely a page of records ends before it is full.
        away: nobody is answered; "refuse" at once, "silent" not at all.
        loses: how likely a commit takes effect, and its answer is lost.
        drops: how likely a commit is lost on its way.
        refuses: how likely a transaction is aborted.
        hangs: how likely a commit is answered and its markers are forgotten, as by a Kafka that is
            killed in between; whatever is decided next of its producer's is decided of it, too.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        rng: random.Random | None = None,
        on_committed: Callable[[Place, KafkaRecord], None] = lambda _place, _record: None,
        on_truncated: Callable[[Place, int], None] = lambda _place, _offset: None,
        *,
        markers: bool = True,
    ) -> None:
        self.cluster_id = "in-memory"
        self.latency_s = self.marker_s = (0.0, 0.0)
        self.told_s: tuple[float, float] | None = (0.0, 0.0)
        self.cuts = 0.0
        self.away = ""
        self.loses = self.drops = self.refuses = self.hangs = 0.0
        self.rng = rng or random.Random(0)
        self._schedule = schedule or _later_here
        self._on_committed = on_committed
        self._on_truncated = on_truncated
        self._marker_offsets = int(markers)
        self._topics: dict[str, list[_Partition]] = {}
        self._producers: dict[str, InMemoryTransactions] = {}
        self._clients: dict[InMemoryClient, None] = {}

    def __repr__(self) -> str:
        return f"<InMemoryKafka [{len(self._topics)} topics, {len(self._producers)} producers]>"

    def client(self, schedule: Schedule | None = None) -> InMemoryClient:
        """A client, as one process has it.

        Args:
            schedule: calls something in that process after so many seconds, while it lives.
        """
        found = InMemoryClient(self, schedule or self._schedule)
        self._clients[found] = None
        return found

    def mend(self) -> None:
        """The end of all faults."""
        self.away = ""
        self.loses = self.drops = self.refuses = self.hangs = 0.0

    def later(self, span_s: tuple[float, float], call: Callable[[], None]) -> None:
        """Call something, some time later; at once where that is no time."""
        if span_s[1] == 0:
            call()
        else:
            self._schedule(self.rng.uniform(*span_s), call)

    # -- what clients ask for ---------------------------------------------------------------

    def create(self, name: str, partitions: int) -> int:
        """Make a topic; returns the partitions that it has."""
        return len(self._topics.setdefault(name, [_Partition() for _ in range(partitions)]))

    def delete(self, name: str) -> None:
        """Remove a topic, and tell those who follow it."""
        if self._topics.pop(name, None) is not None:
            for client in self._clients:
                client.lost(name)

    def partitions(self) -> dict[str, int]:
        """How many each topic has."""
        return {name: len(each) for name, each in self._topics.items()}

    def partition(self, place: Place) -> _Partition:
        """The log of a partition."""
        partitions = self._topics.get(place.topic, [])
        if place.partition >= len(partitions):
            raise UnknownTopicError(f"no {place}")
        return partitions[place.partition]

    def truncate(self, place: Place, offset: int) -> None:
        """Forget what is before an offset."""
        found = self.partition(place)
        found.start = max(found.start, min(offset, found.end))
        found.records = [each for each in found.records if each[0].offset >= found.start]
        self._on_truncated(place, found.start)

    def lose(self, place: Place, end: int) -> None:
        """Lose what is at an offset and after it, as an election does that is not clean."""
        log = self.partition(place)
        log.end = min(log.end, end)
        log.start = min(log.start, end)
        log.records = [each for each in log.records if each[0].offset < end]
        log.unstable = {each: begin for each, begin in log.unstable.items() if begin < end}
        for client in list(self._clients):
            client.news(place)

    def become(self, transactional_id: str, producer: InMemoryTransactions) -> None:
        """Make this the only producer of an id; what the one before has begun is aborted."""
        before = self._producers.get(transactional_id)
        self._producers[transactional_id] = producer
        if before is not None and before.transaction is not None:
            self.end(before.transaction, committed=False)

    def is_current(self, transactional_id: str, producer: InMemoryTransactions) -> bool:
        """Whether no other producer of the id was made since."""
        return self._producers.get(transactional_id) is producer

    def begin(self, records: Sequence[NewRecord]) -> tuple[_Transaction, list[int]]:
        """Write the records of a transaction that is open; gives their offsets."""
        logs = [self.partition(record.place) for record in records]
        transaction = _Transaction()
        offsets = []
        for record, log in zip(records, logs, strict=True):
            log.unstable.setdefault(transaction, log.end)
            transaction.places[record.place] = log
            log.records.append(
                (
                    KafkaRecord(
                        log.end, record.timestamp_ms, record.value, record.key, record.running_ms
                    ),
                    transaction,
                )
            )
            offsets.append(log.end)
            log.end += 1
        if TRANSACTION_S[1]:
            give_up_s = self.rng.uniform(*TRANSACTION_S)
            self._schedule(give_up_s, lambda: self._give_up(transaction))
        return transaction, offsets

    def _give_up(self, transaction: _Transaction) -> None:
        if not transaction.hangs:
            self.end(transaction, committed=False)

    def end(self, transaction: _Transaction, *, committed: bool) -> None:
        """Decide what becomes of a transaction, if nobody has; its markers come later."""
        if transaction.committed is not None:
            return
        transaction.committed = committed
        for place, log in list(transaction.places.items()):
            if committed:
                for record in log.of(transaction):
                    self._on_committed(place, record)
            self.later(self.marker_s, lambda place=place: self._mark(transaction, place))  # type: ignore[misc]

    def _mark(self, transaction: _Transaction, place: Place) -> None:
        log = transaction.places.pop(place)
        if log.unstable.pop(transaction, None) is not None:
            log.end += self._marker_offsets
            for client in list(self._clients):
                client.news(place)


class InMemoryClient:
    """A `KafkaClient` of an `InMemoryKafka`.

    Attributes:
        cut_off: this one is answered nothing, as where `away` is "silent".
    """

    def __init__(self, kafka: InMemoryKafka, schedule: Schedule) -> None:
        self._kafka = kafka
        self._schedule = schedule
        self._following: dict[Place, tuple[Reader, int]] = {}
        self._closed = False
        self.cut_off = False

    def __repr__(self) -> str:
        return f"<InMemoryClient [{len(self._following)} followed]>"

    async def request(self) -> None:
        """Let a request take its time.

        Raises:
            QueueError: nobody answers it.
        """
        if self._closed:
            raise ClosedError("the client is closed")
        kafka = self._kafka
        waited_s = 0.0
        while kafka.away or self.cut_off:
            await asyncio.sleep(RECHECK_S)  # who is silent may answer after all
            waited_s += RECHECK_S
            if (kafka.away or self.cut_off) and (kafka.away == "refuse" or waited_s >= SILENCE_S):
                raise QueueError("Kafka is away; try again")
        if kafka.latency_s[1]:
            await asyncio.sleep(kafka.rng.uniform(*kafka.latency_s))

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> int:
        """Make a topic. Returns its partitions: of one that is there, too."""
        await self.request()
        return self._kafka.create(name, partitions)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic; an unknown one is fine."""
        await self.request()
        self._kafka.delete(name)

    async def cluster_id(self) -> str:
        """What Kafka calls its cluster."""
        await self.request()
        return self._kafka.cluster_id

    async def topics(self) -> dict[str, int]:
        """The number of partitions of each topic there is."""
        await self.request()
        return self._kafka.partitions()

    async def bounds(self, places: Sequence[Place]) -> list[Bounds]:
        """What each of these partitions has now."""
        await self.request()
        logs = [self._kafka.partition(place) for place in places]
        found = [Bounds(log.start, log.stable, log.end) for log in logs]
        await self.request()  # as much again for the answer, in which nothing later is
        return found

    async def read(
        self, place: Place, start: int, end: int, *, max_records: int, max_bytes: int
    ) -> list[KafkaRecord]:
        """Committed records between two offsets, from the first on."""
        if start >= end:
            return []
        await self.request()
        log = self._kafka.partition(place)
        if not log.start <= start <= log.end:
            raise OffsetOutOfRangeError(f"offset {start} of {place}: {log.start} to {log.end}")
        found: list[KafkaRecord] = []
        for record in log.committed(start, min(end, log.stable)):
            max_bytes -= len(record.value or b"")
            full = len(found) == max_records or max_bytes < 0
            if found and (full or self._kafka.rng.random() < self._kafka.cuts):
                break
            found.append(record)
        return found

    def follow(self, place: Place, offset: int, reader: Reader) -> None:
        """From now on tell a reader, and no other, of what is committed from an offset on."""
        self._following[place] = reader, offset
        self.news(place)

    def unfollow(self, place: Place) -> None:
        """Tell of it no more."""
        self._following.pop(place, None)

    async def delete_records(self, place: Place, offset: int) -> None:
        """Forget what is before an offset."""
        await self.request()
        self._kafka.truncate(place, offset)

    async def append(self, place: Place, records: Sequence[NewRecord]) -> None:
        """Write records after those that are there, at neighbouring offsets."""
        await self.request()
        log = self._kafka.partition(place)
        written = _Transaction(committed=True)
        for each in records:
            record = KafkaRecord(log.end, each.timestamp_ms, each.value, each.key, each.running_ms)
            log.records.append((record, written))
            log.end += 1

    async def transactions(self, transactional_id: str) -> InMemoryTransactions:
        """A producer, the only one of its id from now on."""
        await self.request()
        producer = InMemoryTransactions(self._kafka, self, transactional_id)
        before = self._kafka._producers.get(transactional_id)
        self._kafka.become(transactional_id, producer)
        # It looks again and again, as the real one does, until all markers are written.
        while before is not None and before.transaction and before.transaction.places:
            await asyncio.sleep(RECHECK_S)
        return producer

    async def close(self) -> None:
        """Ask for nothing more."""
        self._closed = True
        self._following.clear()
        self._kafka._clients.pop(self, None)

    # -- what Kafka tells -------------------------------------------------------------------

    def news(self, place: Place) -> None:
        """There may be something to tell, a little later."""
        told_s, latency_s = self._kafka.told_s, self._kafka.latency_s
        if place not in self._following or told_s is None:
            return
        if latency_s[1] == told_s[1] == 0:
            self._tell(place)
        else:
            delay_s = self._kafka.rng.uniform(*latency_s) + self._kafka.rng.uniform(*told_s)
            self._schedule(delay_s, lambda: self._tell(place))

    def lost(self, topic: str) -> None:
        """A topic is gone."""
        for place in [each for each in self._following if each.topic == topic]:
            reader, _ = self._following.pop(place)
            self._schedule(0.0, lambda reader=reader: reader.failed(UnknownTopicError(topic)))  # type: ignore[misc]

    def _tell(self, place: Place) -> None:
        if place not in self._following:
            return
        if self._kafka.away or self.cut_off:
            self._schedule(0.5, lambda: self._tell(place))
            return
        reader, offset = self._following[place]
        try:
            log = self._kafka.partition(place)
        except UnknownTopicError:
            return
        if not log.start <= offset <= log.end:
            del self._following[place]
            reader.failed(OffsetOutOfRangeError(f"offset {offset} of {place} is not there"))
            return
        records, reached = log.committed(offset, log.stable), log.stable
        if records and self._kafka.told_s != (0.0, 0.0):  # the rest comes with another answer
            if self._kafka.rng.random() < self._kafka.cuts:
                records = records[: self._kafka.rng.randint(1, len(records))]
            reached = records[-1].offset + 1
            self.news(place)
        self._following[place] = reader, max(offset, reached)
        reader.read(records, reached)


class InMemoryTransactions:
    """The one producer of a transactional id in an `InMemoryKafka`.

    Attributes:
        over: it takes nothing more.
        transaction: that it has begun last.
    """

    def __init__(self, kafka: InMemoryKafka, client: InMemoryClient, transactional_id: str) -> None:
        self.over = False
        self.transaction: _Transaction | None = None
        self._kafka = kafka
        self._client = client
        self._id = transactional_id

    def __repr__(self) -> str:
        return f"<InMemoryTransactions {self._id} [{'over' if self.over else 'open'}]>"

    def close(self) -> None:
        """End without waiting."""
        self.over = True

    async def commit(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records in one transaction, in order and durably. Returns their offsets."""
        kafka = self._kafka
        await self._client.request()
        self._check_current()
        if kafka.rng.random() < kafka.refuses:
            raise QueueError("the transaction was aborted; try again")
        transaction, offsets = kafka.begin(records)
        self.transaction = transaction
        if kafka.latency_s[1]:
            await asyncio.sleep(kafka.rng.uniform(*kafka.latency_s))
        self._check_current()
        await self._end(transaction)
        return offsets

    def _check_current(self) -> None:
        if not self._kafka.is_current(self._id, self):
            self.over = True
            raise FencedError(f"another producer has {self._id}")

    async def _end(self, transaction: _Transaction) -> None:
        kafka = self._kafka
        for _ in range(PATIENCE):
            try:
                await self._client.request()
            except QueueError:
                continue
            if kafka.rng.random() < kafka.drops:
                break
            if kafka.rng.random() < kafka.hangs:
                transaction.hangs = True
                return
            if kafka.is_current(self._id, self):
                kafka.end(transaction, committed=True)
            if not transaction.committed or kafka.rng.random() < kafka.loses:
                break
            return
        self.over = True
        raise PublishUncertainError("the transaction may have been committed, or not")


def _later_here(delay_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, call)
