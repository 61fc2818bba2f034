"""Which ranges of offsets come next: the planner's decisions, with neither Airflow nor a broker.

Theory of operation
-------------------
A plan goes on, for each read partition, where the last committed plan ended. What was planned last
is a `Ledger`: it travels in the extra of an asset event beside those that emit the ranges, and
Airflow stores them all in the transaction that makes the planning task a success. So there is one
truth:

- a try that dies before its success has emitted nothing, and the next try plans the same offsets;
- a try that succeeded has emitted ranges *and* ledger, and the next plan goes on behind them.

Ranges of a partition therefore meet: none is planned twice, none is left out, whatever the order of
wake-ups, crashes and retries. A range is cut when one more notification would pass one of the
`Limits`; how it is cut never moves where the next one begins.

Two things are refused rather than guessed at. Retention may have removed offsets before they were
planned: that is lost data, unless the caller chooses to skip it, and then the ledger says so. And a
topic may have been deleted and made again: its offsets begin again at 0 and name other data.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.errors import ConfigError, CorruptDataError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEDGER_VERSION = 1
UNBOUNDED = 2**62  # no topic has as many offsets, bytes, records or milliseconds
MAX_PARTITION = 99_999  # five digits, so that keys sort as numbers do
MAX_OFFSET = 10**12 - 1  # twelve digits: 30,000 Batches a second for a year
MAX_GAPS = 100  # each stands in every event; one means lost data, so there are few

_KEY = re.compile(r"(\d{5}):(\d{12})-(\d{12})")


class PlannedRange(NamedTuple):
    """Offsets of one read partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int

    @property
    def key(self) -> str:
        """Its name as an asset partition key, such as `00000:000000000005-000000000009`."""
        return f"{self.partition:05d}:{self.start:012d}-{self.end:012d}"

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
            "first offset, one past the last offset"
        )
    found = PlannedRange(*map(int, match.groups()))
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
    """

    def __init__(self, partition: int, start: int, limits: Limits) -> None:
        self._limits = limits
        self._empty = PlannedRange(partition, start, start)
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
        self._empty = PlannedRange(done.range.partition, done.range.end, done.range.end)
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


# -- what was planned last ------------------------------------------------------------------


class Gap(msgspec.Struct, frozen=True):
    """Offsets that retention had removed before they were planned, and that were skipped."""

    partition: int
    start: int
    end: int


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """How far a topic is planned, and its last ranges: the extra of the event of a plan.

    Attributes:
        topic: the topic.
        created_ms: when the topic was made, which tells it from a later one of the same name.
        origins: where the first range of each read partition began.
        ends: one past the last planned offset of each read partition.
        cuts: where the ranges of this plan begin and end, by read partition.
        skipped: what was left out because retention had removed it; the newest `MAX_GAPS` of it.
        version: of this format.
    """

    topic: str
    created_ms: int
    origins: dict[int, int]
    ends: dict[int, int]
    cuts: dict[int, list[int]] = {}
    skipped: list[Gap] = []
    version: int = LEDGER_VERSION

    def to_extra(self) -> dict[str, Any]:
        """As plain JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return {"memq_plan": plain}

    @property
    def ranges(self) -> list[PlannedRange]:
        """The ranges of this plan."""
        return [
            PlannedRange(partition, *bounds)
            for partition, cuts in self.cuts.items()
            for bounds in pairwise(cuts)
        ]

    @property
    def gaps(self) -> list[PlannedRange]:
        """What was skipped, as ranges in which there is nothing to process."""
        return [PlannedRange(gap.partition, gap.start, gap.end) for gap in self.skipped]

    def advanced(self, ranges: Iterable[PlannedRange]) -> Ledger:
        """The ledger when these ranges are planned as well.

        Raises:
            CorruptDataError: a range does not begin where its partition ends.
        """
        ends = dict(self.ends)
        cuts: dict[int, list[int]] = {}
        for each in ranges:
            if each.start != ends.get(each.partition):
                planned = ends.get(each.partition)
                raise CorruptDataError(f"{each} does not meet what is planned, up to {planned}")
            ends[each.partition] = each.end
            cuts.setdefault(each.partition, [each.start]).append(each.end)
        return msgspec.structs.replace(self, ends=ends, cuts=cuts)


def ledger_of(extra: object) -> Ledger | None:
    """The ledger in an event's extra; None in one that a plan did not emit.

    Raises:
        CorruptDataError: there is one, and it makes no sense.
    """
    if not isinstance(extra, dict) or "memq_plan" not in extra:
        return None
    try:
        ledger = msgspec.convert(extra["memq_plan"], Ledger, strict=True, str_keys=True)
    except msgspec.ValidationError as exc:
        raise CorruptDataError(f"an asset event has a plan that makes no sense: {exc}") from exc
    if ledger.version != LEDGER_VERSION:
        raise CorruptDataError(
            f"an asset event has a plan of version {ledger.version}; this planner knows "
            f"{LEDGER_VERSION}: upgrade memq"
        )
    return ledger


def newest(ledgers: Iterable[Ledger]) -> Ledger | None:
    """The last of some ledgers, in whatever order: ends never go back while a topic lives."""
    return max(ledgers, key=lambda each: (each.created_ms, sum(each.ends.values())), default=None)


# -- where to go on -------------------------------------------------------------------------


class Held(NamedTuple):
    """The offsets that a read partition holds: from `start` up to, not including, `end`."""

    start: int
    end: int


class Topic(NamedTuple):
    """A topic as the broker describes it now."""

    name: str
    created_ms: int
    held: Mapping[int, Held]


def first_ledger(topic: Topic, start: str | Mapping[int, int]) -> Ledger:
    """The ledger of a topic of which nothing is planned yet.

    Args:
        topic: the topic.
        start: "earliest", "latest", or the first offset by partition ("earliest" for others).

    Raises:
        ConfigError: `start` is none of these, or names what the topic does not hold.
    """
    if start in ("earliest", "latest"):
        origins = {p: held[start == "latest"] for p, held in topic.held.items()}
    elif isinstance(start, str):
        raise ConfigError(
            f"start = {start!r}: must be 'earliest', 'latest' or offsets by partition"
        )
    else:
        for partition, offset in start.items():
            _check_start(topic, partition, offset)
        origins = {p: start.get(p, held.start) for p, held in topic.held.items()}
    return Ledger(
        topic=topic.name, created_ms=topic.created_ms, origins=origins, ends=dict(origins)
    )


def _check_start(topic: Topic, partition: int, offset: int) -> None:
    held = topic.held.get(partition)
    if held is None:
        raise ConfigError(f"start: topic {topic.name!r} has no read partition {partition}")
    if not held.start <= offset <= held.end:
        raise ConfigError(
            f"start: partition {partition} of {topic.name!r} holds [{held.start}, {held.end}), "
            f"not {offset}"
        )


def check_same_topic(last: Ledger, topic: Topic) -> None:
    """Make sure that what was planned is about the topic that there is.

    Raises:
        DataLossError: the topic was deleted and made again, or it is another one.
    """
    if (last.topic, last.created_ms) != (topic.name, topic.created_ms):
        raise DataLossError(
            f"what was planned belongs to topic {last.topic!r} made at {last.created_ms} ms, and "
            f"{topic.name!r} was made at {topic.created_ms} ms: its offsets name other data. Give "
            "the assets of planned and processed ranges other names, and the jobs another folder"
        )


def carried_on(last: Ledger, topic: Topic, *, skip_removed: bool) -> Ledger:
    """The ledger that the next plan goes on from, checked against what the topic holds now.

    Raises:
        DataLossError: retention removed offsets that were not planned, or the topic is not the one
            that was planned, or it lost its newest notifications.
    """
    check_same_topic(last, topic)
    ends, origins = dict(last.ends), dict(last.origins)
    gaps: list[Gap] = []
    for partition, held in topic.held.items():
        # One that was added since the last plan is planned from its very first offset.
        end = ends.setdefault(partition, 0)
        origins.setdefault(partition, 0)
        if held.end < end:
            raise DataLossError(
                f"partition {partition} of {topic.name!r} is planned up to {end}, and ends at "
                f"{held.end}: its queue lost notifications"
            )
        if held.start > end:
            gaps.append(Gap(partition, end, held.start))
            ends[partition] = held.start
    if gaps and not skip_removed:
        named = ", ".join(f"partition {gap.partition} [{gap.start}, {gap.end})" for gap in gaps)
        raise DataLossError(
            f"retention removed offsets of {topic.name!r} that were never planned: {named}. They "
            "are gone. Set on_removed='skip' to go on behind them, which the plan records"
        )
    skipped = [*last.skipped, *gaps][-MAX_GAPS:]
    return msgspec.structs.replace(last, ends=ends, origins=origins, skipped=skipped)


# -- replay and commit ----------------------------------------------------------------------


def touching(ranges: Iterable[PlannedRange], wanted: Iterable[PlannedRange]) -> list[PlannedRange]:
    """The ranges that share an offset with a wanted one, sorted, each once.

    A replay runs whole ranges as they were planned: then each run replaces its own output, and no
    other output holds the same rows.
    """
    stretches = list(wanted)
    return sorted(
        {
            each
            for each in ranges
            if any(
                each.partition == s.partition and each.start < s.end and s.start < each.end
                for s in stretches
            )
        }
    )


def settled(ledger: Ledger, stored: Mapping[int, int]) -> dict[int, int]:
    """Up to where nothing is left to process, by read partition.

    That is what is stored as processed, what lies before the first plan, and the gaps behind them
    that a plan has skipped.
    """
    return {
        partition: contiguous_end(
            max(origin, stored.get(partition, 0)),
            (gap for gap in ledger.gaps if gap.partition == partition),
        )
        for partition, origin in ledger.origins.items()
    }


def contiguous_end(start: int, done: Iterable[PlannedRange]) -> int:
    """How far ranges of one partition reach from `start` on without a gap."""
    end = start
    for each in sorted(done, key=lambda r: r.start):
        if each.start > end:
            break
        end = max(end, each.end)
    return end
