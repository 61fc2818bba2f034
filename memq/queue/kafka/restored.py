"""Topics of Kafka that were restored: their offsets do not begin at 0, and Kafka's do.

Kafka gives a new topic offsets from 0 on. A partition that is restored has, at Kafka's offset 0,
what had the offset `base` before; `RestoredOffsets` adds and takes away that much, for all above
it. The bases of a topic are said in the state topic (`memq.queue.kafka.state`), before the topic.

Between two notifications offsets may have had no entry, such as those of transactions' markers.
There a record without a value stands, which readers pass over (`entries_of`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.queue.kafka.client import Bounds, NewRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memq.core.queue import QueueEntry
    from memq.errors import MemqError
    from memq.queue.kafka.client import (
        KafkaClient,
        KafkaRecord,
        Place,
        Reader,
        Transactions,
    )


def records_of(
    place: Place, entries: Sequence[QueueEntry], start: int, end: int
) -> Iterator[NewRecord]:
    """Yield the records that stand at the offsets from `start` to `end`, one at each."""
    timestamp_ms = running_ms = 0
    for entry in entries:
        while start < entry.offset:
            yield NewRecord(place, None, None, timestamp_ms, running_ms)
            start += 1
        _, timestamp_ms, payload, running_ms = entry
        yield NewRecord(place, payload, None, timestamp_ms, running_ms)
        start += 1
    while start < end:
        yield NewRecord(place, None, None, timestamp_ms, running_ms)
        start += 1


class RestoredOffsets:
    """A `KafkaClient` whose offsets are those that the queue knows.

    Args:
        client: of Kafka.
        cluster_id: with which the names of topics begin.

    Attributes:
        bases: by topic of the queue, for each read partition.
    """

    def __init__(self, client: KafkaClient, cluster_id: str) -> None:
        self._client = client
        self._prefix = f"{cluster_id}."
        self.bases: Mapping[str, Sequence[int]] = {}
        self.create_topic = client.create_topic
        self.delete_topic = client.delete_topic
        self.cluster_id = client.cluster_id
        self.topics = client.topics
        self.append = client.append
        self.unfollow = client.unfollow
        self.close = client.close

    def __repr__(self) -> str:
        return f"<RestoredOffsets of {len(self.bases)} topics {self._client!r}>"

    def base(self, place: Place) -> int:
        """Return the offset of what Kafka has at 0."""
        if not self.bases:
            return 0
        bases = self.bases.get(place.topic.removeprefix(self._prefix))
        return bases[place.partition] if bases else 0

    async def bounds(self, places: Sequence[Place]) -> list[Bounds]:
        """Ask what each of these partitions has now."""
        found = await self._client.bounds(places)
        return [
            Bounds(*(number + self.base(place) for number in each))
            for place, each in zip(places, found, strict=True)
        ]

    async def read(
        self, place: Place, start: int, end: int, *, max_records: int, max_bytes: int
    ) -> list[KafkaRecord]:
        """Committed records between two offsets."""
        base = self.base(place)
        records = await self._client.read(
            place, start - base, end - base, max_records=max_records, max_bytes=max_bytes
        )
        return _moved(records, base)

    def follow(self, place: Place, offset: int, reader: Reader) -> None:
        """Tell this reader what is committed from an offset on."""
        base = self.base(place)
        self._client.follow(place, offset - base, _MovedReader(reader, base) if base else reader)

    async def delete_records(self, place: Place, offset: int) -> None:
        """Forget what is before an offset."""
        await self._client.delete_records(place, offset - self.base(place))

    async def transactions(self, transactional_id: str) -> Transactions:
        """Make a producer, the only one of its id from now on."""
        made = await self._client.transactions(transactional_id)
        return _MovedTransactions(self, made) if self.bases else made


class _MovedReader:
    def __init__(self, reader: Reader, base: int) -> None:
        self._reader, self._base = reader, base

    def read(self, records: Sequence[KafkaRecord], reached: int) -> None:
        self._reader.read(_moved(records, self._base), reached + self._base)

    def failed(self, error: MemqError) -> None:
        self._reader.failed(error)


class _MovedTransactions:
    def __init__(self, offsets: RestoredOffsets, transactions: Transactions) -> None:
        self._offsets, self._transactions = offsets, transactions
        self.close = transactions.close

    @property
    def over(self) -> bool:
        return self._transactions.over

    async def commit(self, records: Sequence[NewRecord]) -> list[int]:
        found = await self._transactions.commit(records)
        return [
            offset + self._offsets.base(record.place)
            for record, offset in zip(records, found, strict=True)
        ]


def _moved(records: Sequence[KafkaRecord], base: int) -> list[KafkaRecord]:
    return [each._replace(offset=each.offset + base) for each in records] if base else [*records]
