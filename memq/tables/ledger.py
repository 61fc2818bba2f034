"""Which ranges of which topics are in a table: the ledger that the table itself carries.

Theory of operation
-------------------
A table takes ranges of offsets. It must take each offset once, whatever was tried again, tried
twice at a time, tried out of order, or killed. A record of that outside the table could say
something else than the table, so the table has it: each commit adds the rows of a range *and*
replaces the ledger, in one step that the catalog does or does not do, and only if the table is
still the one that the committer has read (`memq.tables.commit`).

The ledger names, for each topic, topic id and read partition, the offsets that are in, as
intervals that do not meet. Ranges that follow one another become one, so it stays small however
many there were; it grows with the gaps alone, and those have a limit. It also counts what
the ranges held, with the sum of the CRC32C of their Messages: sums of ranges add up, in whatever
order they came, so the whole can be compared with the topic as one range can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from memq.core.audit.reports import CRC_MODULUS
from memq.core.decoding import UNDECODABLE
from memq.core.ranges import Interval, OffsetRange, difference, intersection, union
from memq.core.units import counted
from memq.errors import CorruptDataError, LimitReachedError, RangeConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.core.manifest import Manifest

LEDGER_VERSION = 1
MAX_INTERVALS = 1_000
"""Of one read partition. The ledger stands in each snapshot of the table, 20 bytes for each."""


class TopicRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a topic, with what is in its rows.

    Attributes:
        topic: the topic.
        topic_id: of it.
        partition: read partition.
        start: first offset.
        end: one past the last one.
        batches: Batches in the range.
        messages: Messages whose LogMessages are in the rows.
        records: the rows.
        crc_sum: of the CRC32C of these Messages, modulo 2**64.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    batches: int = 0
    messages: int = 0
    records: int = 0
    crc_sum: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> TopicRange:
        """Return the range of a manifest."""
        return cls(**{name: getattr(manifest, name) for name in cls.__struct_fields__})

    def __str__(self) -> str:
        return f"topic {self.topic!r} {self.offsets}"

    @property
    def offsets(self) -> OffsetRange:
        """Its offsets."""
        return OffsetRange(self.partition, self.start, self.end, self.topic_id)

    def folder(self, location: str, attempt: str) -> str:
        """Return the folder, in that of the table, of the files of an attempt to put it in."""
        place = f"{self.topic}/{self.topic_id}/{self.partition}"
        return f"{location}/data/{place}/{self.start:012d}-{self.end:012d}/{attempt}"


class PartitionLedger(msgspec.Struct, frozen=True, kw_only=True):
    """What a table has of a read partition.

    Attributes:
        intervals: the offsets; sorted, and none meets the next.
        ranges: how many were committed.
        batches: as in `TopicRange`, over all ranges.
        messages: as in `TopicRange`, over all ranges.
        records: as in `TopicRange`, over all ranges.
        crc_sum: as in `TopicRange`, over all ranges.
    """

    intervals: list[Interval] = []
    ranges: int = 0
    batches: int = 0
    messages: int = 0
    records: int = 0
    crc_sum: int = 0

    def plus(self, added: TopicRange) -> PartitionLedger:
        """Add one more range, of which it has nothing yet."""
        mine = Interval(added.start, added.end)
        return PartitionLedger(
            intervals=union(sorted([*self.intervals, mine])),
            ranges=self.ranges + 1,
            batches=self.batches + added.batches,
            messages=self.messages + added.messages,
            records=self.records + added.records,
            crc_sum=(self.crc_sum + added.crc_sum) % CRC_MODULUS,
        )


NOTHING = PartitionLedger()


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a table has, by topic, topic id and read partition."""

    version: int = LEDGER_VERSION
    topics: dict[str, dict[str, dict[int, PartitionLedger]]] = {}

    def partition(self, topic: str, topic_id: str, partition: int) -> PartitionLedger:
        """Return what it has of a read partition."""
        return self.topics.get(topic, {}).get(topic_id, {}).get(partition, NOTHING)

    def partitions(self) -> Iterator[tuple[str, str, int, PartitionLedger]]:
        """Yield all that it has, sorted by topic, topic id and read partition."""
        for topic, lives in sorted(self.topics.items()):
            for topic_id, partitions in sorted(lives.items()):
                for number, held in sorted(partitions.items()):
                    yield topic, topic_id, number, held

    def has(self, wanted: TopicRange) -> bool:
        """Return whether all of a range is in; always for one without offsets.

        Raises:
            RangeConflictError: some of it is.
        """
        held = self.partition(wanted.topic, wanted.topic_id, wanted.partition)
        whole = Interval(wanted.start, wanted.end)
        there = intersection(held.intervals, whole)
        if there and there != [whole]:
            missing = difference([whole], held.intervals)
            raise RangeConflictError(
                f"{wanted} is in the table in part: {_words(there)} are, {_words(missing)} are "
                "not. Commit what is missing, as ranges of its own"
            )
        return bool(there) or not wanted.offsets.size

    def plus(self, added: TopicRange) -> Ledger:
        """Add one more range.

        Raises:
            RangeConflictError: some of it is in already.
            LimitReachedError: the read partition has too many gaps.
        """
        if self.has(added):
            raise RangeConflictError(f"{added} is in the table already")
        held = self.partition(added.topic, added.topic_id, added.partition).plus(added)
        if len(held.intervals) > MAX_INTERVALS:
            raise LimitReachedError(
                f"{added}: the table would have {counted(len(held.intervals), 'piece')} of this "
                f"read partition, and {MAX_INTERVALS} is the limit. Commit the ranges between them "
                "first"
            )
        lives = self.topics.get(added.topic, {})
        partitions = lives.get(added.topic_id, {}) | {added.partition: held}
        return Ledger(
            topics=self.topics | {added.topic: lives | {added.topic_id: partitions}},
        )


EMPTY = Ledger()

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Ledger)


def encode_ledger(ledger: Ledger) -> str:
    """Encode a ledger as JSON."""
    return _encoder.encode(ledger).decode()


def decode_ledger(text: str) -> Ledger:
    """Decode a ledger from its JSON.

    Raises:
        CorruptDataError: it is none, or of a version that this reader does not know.
    """
    try:
        ledger = _decoder.decode(text)
    except UNDECODABLE as exc:
        raise CorruptDataError(f"not the ledger of a table: {exc}: {text[:80]!r}") from exc
    if ledger.version != LEDGER_VERSION:
        raise CorruptDataError(
            f"the table's ledger is of version {ledger.version}; this reader knows "
            f"{LEDGER_VERSION}: upgrade memq"
        )
    if not all(_makes_sense(held) for *_, held in ledger.partitions()):
        raise CorruptDataError(f"a table's ledger that makes no sense: {text[:400]!r}")
    return ledger


def _makes_sense(held: PartitionLedger) -> bool:
    intervals = held.intervals
    return all(0 <= start < end for start, end in intervals) and intervals == union(
        sorted(intervals)
    )


def _words(intervals: list[Interval]) -> str:
    return ", ".join(f"{start} to {end - 1}" for start, end in intervals[:10])
