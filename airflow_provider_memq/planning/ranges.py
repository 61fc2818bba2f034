"""Ranges of offsets: their names, what is in them, and how a plan cuts a partition into them.

Ranges of a partition meet: none is planned twice, none is left out. A range is cut when one more
Batch would pass one of the `Limits`; how it is cut never moves where the next one begins. Where a
plan begins is said by its `ledger`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from airflow_provider_memq.values import bytes_or, count_or, duration_ms_or
from memq.core.audit.reports import CRC_MODULUS
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memq.core.notification import PublishedBatch

UNBOUNDED = 2**62  # no topic has as many offsets, bytes, records or milliseconds
MAX_PARTITION = 99_999  # five digits, so that keys sort as numbers do
MAX_OFFSET = 10**12 - 1  # twelve digits: 30,000 Batches a second for a year

_KEY = re.compile(r"(\d{5}):(\d{12})-(\d{12})(?:@([0-9a-f]{16}))?")


# -- names ----------------------------------------------------------------------------------


def range_key(offsets: OffsetRange) -> str:
    """Return the name of a range as an asset partition key, such as
    `00000:000000000005-000000000009@0123456789abcdef`.
    """
    of = f"@{offsets.topic_id}" if offsets.topic_id else ""
    return f"{offsets.partition:05d}:{offsets.start:012d}-{offsets.end:012d}{of}"


def parse_key(key: str | None) -> OffsetRange:
    """Parse the range that a key names.

    Raises:
        ConfigError: it names none.
    """
    match = _KEY.fullmatch(key or "")
    if match is None:
        raise ConfigError(
            f"{key!r} is no range; write it like 00000:000000000005-000000000009: read partition, "
            "first offset, one past the last offset; and, where it matters, @ and the topic's "
            "topic_id"
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
    """Return a range as plain JSON."""
    return {"partition": offsets.partition, "start": offsets.start, "end": offsets.end}


# -- what is in a range ---------------------------------------------------------------------


class Limits(NamedTuple):
    """How large a range may get, named as the planner's options. One Batch is always taken.

    Attributes:
        max_offsets: Batches at most.
        max_bytes: bytes of objects at most.
        max_records: LogMessages at most.
        max_age_ms: time between its first and its last Batch at most.
        max_ranges: per read partition and plan at most; the next plan goes on there.
        linger_ms: the last range of a partition, which reached no limit, waits for more until the
            first Batch of any such range is this old. 0 for not at all.
        min_bytes: of this size it does not wait; 0 for up to its limits.
        longest_ms: no wait is longer than this, whatever it is for.
    """

    max_offsets: int = UNBOUNDED
    max_bytes: int = UNBOUNDED
    max_records: int = UNBOUNDED
    max_age_ms: int = UNBOUNDED
    max_ranges: int = UNBOUNDED
    linger_ms: int = 0
    min_bytes: int = 0
    longest_ms: int = UNBOUNDED

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Limits:
        """Read limits from options as people write them; those not given have their default.

        Raises:
            ConfigError: one is no such value, or a range would never fit.
        """
        found = cls()
        for name, default in found._asdict().items():
            given = options.get(name.removesuffix("_ms"))
            if name.endswith("_ms"):
                value = duration_ms_or(default, given)
            else:
                value = (bytes_or if name.endswith("_bytes") else count_or)(default, name, given)
            if value == 0 and name in ("max_offsets", "max_bytes", "max_records", "max_ranges"):
                raise ConfigError(f"{name} = {given!r}: must be 1 or more; empty for no limit")
            found = found._replace(**{name: value})
        return found


class RangeContents(NamedTuple):
    """A range, and what the notifications of its Batches say of them.

    Attributes:
        range: the range.
        batches: Batches.
        messages: Messages.
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
        """Return the range with the next Batch, up to which it reaches at least."""
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
        """Return whether it is within all limits."""
        return (
            self.batches <= limits.max_offsets
            and self.size_bytes <= limits.max_bytes
            and self.records <= limits.max_records
            and self.last_ms - self.first_ms <= limits.max_age_ms
        )

    def to_row(self) -> dict[str, Any]:
        """Return the contents as plain JSON, for XComs and logs."""
        amounts = {"batches": self.batches, "bytes": self.size_bytes, "records": self.records}
        return {"key": range_key(self.range)} | amounts


# -- planning -------------------------------------------------------------------------------


class Cut(NamedTuple):
    """Offsets of one read partition, cut into ranges that meet.

    Attributes:
        ranges: that are complete.
        tail: the last range, to which more may come; None where there is none.
    """

    ranges: list[RangeContents]
    tail: RangeContents | None


def cut(offsets: OffsetRange, batches: Iterable[PublishedBatch], limits: Limits) -> Cut:
    """Cut offsets into ranges that meet, `max_ranges` of them at most.

    Offsets may have gaps, as Kafka's have; a gap belongs to the range after it.

    Args:
        offsets: where the first range begins.
        batches: that are published there, in their order.
        limits: of each range.
    """
    ranges: list[RangeContents] = []
    tail = RangeContents(offsets._replace(end=offsets.start))
    for batch in batches:
        grown = tail.with_batch(batch)
        if tail.batches and not grown.fits(limits):
            ranges.append(tail)
            if len(ranges) >= limits.max_ranges:
                return Cut(ranges, None)
            grown = RangeContents(grown.range._replace(start=tail.range.end)).with_batch(batch)
        tail = grown
    return Cut(ranges, tail if tail.batches else None)


class Plan(NamedTuple):
    """What one plan decides.

    Attributes:
        ranges: that are planned.
        waiting: what is not planned yet because more may come to it.
        due_ms: when the wait is over, milliseconds since 1970 UTC; 0 where nothing waits.
        full_bytes: a waiting range of this size is planned at once.
    """

    ranges: list[RangeContents]
    waiting: list[RangeContents]
    due_ms: int
    full_bytes: int


def finish(cuts: Sequence[Cut], limits: Limits, now_ms: int, *, held: bool) -> Plan:
    """Decide which ranges are planned, when there are no more Batches now.

    The tails of all partitions begin to wait together, and go together once the oldest has waited
    long enough: so each wait makes one range of each partition.

    Args:
        cuts: of all partitions.
        limits: of the ranges, and of the wait.
        now_ms: the time, milliseconds since 1970 UTC.
        held: enough is planned that is not processed: a tail goes on growing, up to its limits.
    """
    full_bytes = limits.max_bytes if held else limits.min_bytes or limits.max_bytes
    wait_ms = limits.longest_ms if held else min(limits.linger_ms, limits.longest_ms)
    first_ms = min((tail.first_ms for _, tail in cuts if tail), default=0)
    # A broker's clock may be ahead of ours: where nothing is to wait, clocks do not matter.
    late = not wait_ms or now_ms - first_ms >= wait_ms
    ranges: list[RangeContents] = []
    waiting: list[RangeContents] = []
    for complete, tail in cuts:
        ranges += complete
        if tail:
            (ranges if late or _is_full(tail, limits, full_bytes) else waiting).append(tail)
    due_ms = min((each.first_ms for each in waiting), default=-wait_ms) + wait_ms
    return Plan(ranges, waiting, due_ms, full_bytes)


def _is_full(tail: RangeContents, limits: Limits, full_bytes: int) -> bool:
    return (
        tail.batches >= limits.max_offsets
        or tail.size_bytes >= full_bytes
        or tail.records >= limits.max_records
    )


# -- backfill and commit --------------------------------------------------------------------


def touching(ranges: Iterable[OffsetRange], wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges that share an offset with a wanted one of their topic, sorted, each once.

    A backfill runs whole ranges as they were planned: then each run replaces its own output, and no
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
                and other.topic_id in ("", each.topic_id)
                for other in wanted
            )
        }
    )


def contiguous_end(start: int, done: Iterable[OffsetRange]) -> int:
    """Return how far ranges of one partition reach from `start` on without a gap."""
    end = start
    for each in sorted(done, key=lambda r: r.start):
        if each.start > end:
            break
        end = max(end, each.end)
    return end
