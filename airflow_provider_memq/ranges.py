"""Ranges of offsets: their names, how notifications are cut into them, and which of them meet.

Ranges of a partition meet: none is planned twice, none is left out. A range is cut when one more
notification would pass one of the `Limits`; how it is cut never moves where the next one begins.
Where a plan begins is said by its `ledger`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

UNBOUNDED = 2**62  # no topic has as many offsets, bytes, records or milliseconds
MAX_PARTITION = 99_999  # five digits, so that keys sort as numbers do
MAX_OFFSET = 10**12 - 1  # twelve digits: 30,000 Batches a second for a year

_KEY = re.compile(r"(\d{5}):(\d{12})-(\d{12})(?:@([0-9a-f]{16}))?")


class PlannedRange(NamedTuple):
    """Offsets of one read partition from `start` up to, not including, `end`.

    Offsets name data of one incarnation of a topic: when it is made again, they begin anew.

    Attributes:
        partition: read partition.
        start: first offset.
        end: one past the last offset.
        incarnation: of the topic; empty for whichever there is.
    """

    partition: int
    start: int
    end: int
    incarnation: str = ""

    @property
    def key(self) -> str:
        """Its name as an asset partition key, such as
        `00000:000000000005-000000000009@0123456789abcdef`.
        """
        of = f"@{self.incarnation}" if self.incarnation else ""
        return f"{self.partition:05d}:{self.start:012d}-{self.end:012d}{of}"

    @property
    def offsets(self) -> int:
        """How many offsets it spans."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"partition {self.partition} [{self.start}, {self.end})"


def parse_key(key: str | None) -> PlannedRange:
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
    found = PlannedRange(partition, start, end, match[4] or "")
    if found.end <= found.start:
        raise ConfigError(f"{key!r}: the range is empty")
    return found


class Facts(NamedTuple):
    """What a plan needs to know of one notification.

    Attributes:
        offset: of the notification.
        timestamp_ms: when it was published, milliseconds since 1970 UTC.
        size_bytes: of the Batch's object.
        records: LogMessages in the Batch.
    """

    offset: int
    timestamp_ms: int
    size_bytes: int
    records: int


class Limits(NamedTuple):
    """How large a range may get. One notification is taken however large it is.

    Attributes:
        offsets: notifications at most.
        size_bytes: bytes of objects at most.
        records: LogMessages at most.
        age_ms: time between its first and its last notification at most.
        linger_ms: the last range of a partition, which reached no limit, waits until its first
            notification is this old: more may still come to it.
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


class Sized(NamedTuple):
    """A range and what its notifications say about it."""

    range: PlannedRange
    batches: int
    size_bytes: int
    records: int
    first_ms: int
    last_ms: int

    def with_one(self, facts: Facts) -> Sized:
        """The range with one more notification at its end."""
        return Sized(
            self.range._replace(end=facts.offset + 1),
            self.batches + 1,
            self.size_bytes + facts.size_bytes,
            self.records + facts.records,
            self.first_ms,
            facts.timestamp_ms,
        )

    def fits(self, limits: Limits) -> bool:
        """Whether it is within all limits."""
        return (
            self.batches <= limits.offsets
            and self.size_bytes <= limits.size_bytes
            and self.records <= limits.records
            and self.last_ms - self.first_ms <= limits.age_ms
        )


class Cutter:
    """Cuts the notifications of one read partition into ranges that meet.

    Offsets may have gaps, as Kafka's have; a gap belongs to the range behind it.

    Args:
        partition: read partition.
        start: first offset that is not planned yet.
        limits: of each range.
        incarnation: of the topic.
    """

    def __init__(self, partition: int, start: int, limits: Limits, incarnation: str = "") -> None:
        self._limits = limits
        self._empty = PlannedRange(partition, start, start, incarnation)
        self._open: Sized | None = None
        self.ranges: list[Sized] = []

    def __repr__(self) -> str:
        return f"<Cutter {self._empty} [{len(self.ranges)} ranges, open: {self._open}]>"

    @property
    def full(self) -> bool:
        """As many ranges are cut as one plan may have."""
        return len(self.ranges) >= self._limits.ranges

    def add(self, facts: Facts) -> None:
        """Take the next notification, in the order of offsets; not when it is full."""
        alone = Sized(self._empty, 0, 0, 0, facts.timestamp_ms, facts.timestamp_ms)
        grown = (self._open or alone).with_one(facts)
        if self._open is not None and not grown.fits(self._limits):
            self._cut(self._open)
            alone = alone._replace(range=self._empty)
            grown = alone.with_one(facts)
        self._open = grown

    def finish(self, now_ms: int) -> list[Sized]:
        """All ranges, when there are no more notifications now; the last one only if it is due."""
        if self._open is not None and not self.full and self._is_due(self._open, now_ms):
            self._cut(self._open)
        return self.ranges

    def _cut(self, done: Sized) -> None:
        self.ranges.append(done)
        self._empty = done.range._replace(start=done.range.end)
        self._open = None

    def _is_due(self, tail: Sized, now_ms: int) -> bool:
        """Whether a range that more may come to is planned as it is."""
        limits = self._limits
        at_limit = (
            tail.batches >= limits.offsets
            or tail.size_bytes >= limits.size_bytes
            or tail.records >= limits.records
        )
        # A broker's clock may be ahead of ours: who need not linger does not depend on clocks.
        lingered = not limits.linger_ms or now_ms - tail.first_ms >= limits.linger_ms
        return at_limit or lingered


def touching(ranges: Iterable[PlannedRange], wanted: Iterable[PlannedRange]) -> list[PlannedRange]:
    """The ranges that share an offset with a wanted one of their topic, sorted, each once.

    A replay runs whole ranges as they were planned: then each run replaces its own output, and no
    other output holds the same rows.
    """
    stretches = list(wanted)
    return sorted(
        {
            each
            for each in ranges
            if any(
                each.partition == s.partition
                and each.start < s.end
                and s.start < each.end
                and s.incarnation in ("", each.incarnation)
                for s in stretches
            )
        }
    )


def contiguous_end(start: int, done: Iterable[PlannedRange]) -> int:
    """How far ranges of one partition reach from `start` on without a gap."""
    end = start
    for each in sorted(done, key=lambda r: r.start):
        if each.start > end:
            break
        end = max(end, each.end)
    return end
