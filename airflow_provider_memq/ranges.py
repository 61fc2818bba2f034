"""Ranges of offsets: their names, what is in them, and how a plan cuts a partition into them.

Ranges of a partition meet: none is planned twice, none is left out. A range is cut when one more
Batch would pass one of the `Limits`; how it is cut never moves where the next one begins. Where a
plan begins is said by its `ledger`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from memq.core.audit.reports import CRC_MODULUS
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.notification.notification import PublishedBatch

UNBOUNDED = 2**62  # no topic has as many offsets, bytes, records or milliseconds
MAX_PARTITION = 99_999  # five digits, so that keys sort as numbers do
MAX_OFFSET = 10**12 - 1  # twelve digits: 30,000 Batches a second for a year

_KEY = re.compile(r"(\d{5}):(\d{12})-(\d{12})(?:@([0-9a-f]{16}))?")


# -- names ----------------------------------------------------------------------------------


def range_key(offsets: OffsetRange) -> str:
    """The name of a range as an asset partition key, such as
    `00000:000000000005-000000000009@0123456789abcdef`.
    """
    of = f"@{offsets.incarnation}" if offsets.incarnation else ""
    return f"{offsets.partition:05d}:{offsets.start:012d}-{offsets.end:012d}{of}"


def parse_key(key: str | None) -> OffsetRange:
    """The range that a key names.

    Raises:
        ConfigError: it names none.
    """
    match = _KEY.fullmatch(key or "")
    if match is None:
        raise ConfigError(
            f"{key!r} is no range; write it like 00000:000000000005-000000000009: read partition, "
            "first offset, one past the last offset; and, where it matters, @ and the topic's "
            "incarnation"
        )
    partition, start, end = map(int, match.groups()[:3])
    if end <= start:
        raise ConfigError(f"{key!r}: the range is empty")
    return OffsetRange(partition, start, end, match[4] or "")


class RangeRow(TypedDict):
    """A range as asset events, XComs and lineage hold it."""

    partition: int
    start: int
    end: int


def to_row(offsets: OffsetRange) -> RangeRow:
    """A range as plain JSON."""
    return {"partition": offsets.partition, "start": offsets.start, "end": offsets.end}


# -- what is in a range ---------------------------------------------------------------------


class Limits(NamedTuple):
    """How large a range may get. One Batch is taken however large it is.

    Attributes:
        offsets: Batches at most.
        size_bytes: bytes of objects at most.
        records: LogMessages at most.
        age_ms: time between its first and its last Batch at most.
        linger_ms: the last range of a partition, which reached no limit, waits until its first
            Batch is this old: more may still come to it.
        ranges: per read partition and plan at most; the next plan goes on there.
    """

    offsets: int = UNBOUNDED
    size_bytes: int = UNBOUNDED
    records: int = UNBOUNDED
    age_ms: int = UNBOUNDED
    linger_ms: int = 0
    ranges: int = UNBOUNDED

    def check(self) -> None:
        """Refuse limits that no range fits.

        Raises:
            ConfigError: naming the limit.
        """
        for name, value in self._asdict().items():
            least = 0 if name in ("linger_ms", "age_ms") else 1
            if type(value) is not int or value < least:
                raise ConfigError(f"limit {name} = {value!r}: must be a whole number from {least}")


class RangeContents(NamedTuple):
    """A range, and what the notifications of its Batches say of them.

    Attributes:
        range: the range.
        batches: Batches.
        messages: Messages, duplicates among them.
        records: LogMessages in them.
        size_bytes: of the objects.
        crc_sum: sum of the CRC32C of the Messages, modulo 2**64.
        first_ms: when its first Batch was published, milliseconds since 1970 UTC.
        last_ms: when its last one was.
    """

    range: OffsetRange
    batches: int = 0
    messages: int = 0
    records: int = 0
    size_bytes: int = 0
    crc_sum: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def with_batch(self, batch: PublishedBatch) -> RangeContents:
        """The range with the next Batch, up to which it reaches at least."""
        it = batch.notification
        return RangeContents(
            self.range._replace(end=max(self.range.end, batch.offset + 1)),
            self.batches + 1,
            self.messages + it.messages,
            self.records + it.records,
            self.size_bytes + it.size_bytes,
            (self.crc_sum + sum(run.crc_sum for run in it.producers)) % CRC_MODULUS,
            self.first_ms if self.batches else batch.timestamp_ms,
            batch.timestamp_ms,
        )

    def fits(self, limits: Limits) -> bool:
        """Whether it is within all limits."""
        return (
            self.batches <= limits.offsets
            and self.size_bytes <= limits.size_bytes
            and self.records <= limits.records
            and self.last_ms - self.first_ms <= limits.age_ms
        )

    def to_row(self) -> dict[str, Any]:
        """As plain JSON, for XComs and logs."""
        amounts = {"batches": self.batches, "bytes": self.size_bytes, "records": self.records}
        return {"key": range_key(self.range)} | amounts


# -- planning -------------------------------------------------------------------------------


class RangeCutter:
    """Cuts the Batches of one read partition into ranges that meet.

    Offsets may have gaps, as Kafka's have; a gap belongs to the range after it.

    Args:
        unplanned: what is not planned yet.
        limits: of each range.

    Attributes:
        ranges: that are cut.
    """

    def __init__(self, unplanned: OffsetRange, limits: Limits) -> None:
        self._limits = limits
        self._open = self._empty_at(unplanned, unplanned.start)
        self.ranges: list[RangeContents] = []

    def __repr__(self) -> str:
        return f"<RangeCutter [{len(self.ranges)} ranges, open: {self._open}]>"

    @property
    def full(self) -> bool:
        """As many ranges are cut as one plan may have."""
        return len(self.ranges) >= self._limits.ranges

    def add(self, batch: PublishedBatch) -> None:
        """Take the next Batch, in the order of offsets; not when it is full."""
        grown = self._open.with_batch(batch)
        if self._open.batches and not grown.fits(self._limits):
            self._cut()
            grown = self._open.with_batch(batch)
        self._open = grown

    def finish(self, now_ms: int) -> list[RangeContents]:
        """All ranges, when there are no more Batches now; the last one only if it is due."""
        if self._open.batches and not self.full and self._is_due(self._open, now_ms):
            self._cut()
        return self.ranges

    def _cut(self) -> None:
        self.ranges.append(self._open)
        self._open = self._empty_at(self._open.range, self._open.range.end)

    def _empty_at(self, offsets: OffsetRange, start: int) -> RangeContents:
        return RangeContents(offsets._replace(start=start, end=start))

    def _is_due(self, tail: RangeContents, now_ms: int) -> bool:
        """Whether the last range is planned as it is, though more may come to it."""
        limits = self._limits
        at_limit = (
            tail.batches >= limits.offsets
            or tail.size_bytes >= limits.size_bytes
            or tail.records >= limits.records
        )
        # A broker's clock may be ahead of ours: without lingering, clocks do not matter.
        lingered = not limits.linger_ms or now_ms - tail.first_ms >= limits.linger_ms
        return at_limit or lingered


# -- replay and commit ----------------------------------------------------------------------


def touching(ranges: Iterable[OffsetRange], wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The ranges that share an offset with a wanted one of their topic, sorted, each once.

    A replay runs whole ranges as they were planned: then each run replaces its own output, and no
    other output holds the same rows.
    """
    wanted = list(wanted)
    return sorted(
        {
            each
            for each in ranges
            if any(
                each.partition == other.partition
                and each.start < other.end
                and other.start < each.end
                and other.incarnation in ("", each.incarnation)
                for other in wanted
            )
        }
    )


def contiguous_end(start: int, done: Iterable[OffsetRange]) -> int:
    """How far ranges of one partition reach from `start` on without a gap."""
    end = start
    for each in sorted(done, key=lambda r: r.start):
        if each.start > end:
            break
        end = max(end, each.end)
    return end
