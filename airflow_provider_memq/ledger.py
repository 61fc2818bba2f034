"""How far a topic is planned: where the next plan begins, with neither Airflow nor a broker.

Theory of operation
-------------------
A plan goes on, for each read partition, where the last committed plan ended. What was planned last
is a `Ledger`: it travels in the extra of an asset event beside those that emit the ranges, and
Airflow stores them all in the transaction that makes the planning task a success. So there is one
truth:

- a try that dies before its success has emitted nothing, and the next try plans the same offsets;
- a try that succeeded has emitted ranges *and* ledger, and the next plan goes on behind them.

So no offset is planned twice, and none is left out, whatever the order of wake-ups, crashes and
retries.

Two things are refused rather than guessed at. Retention may have removed offsets before they were
planned: that is lost data, unless the caller chooses to skip it, and then the ledger says so. And a
topic may have been deleted and made again: it is of another incarnation, and its offsets begin
again at 0 and name other data. Who chooses to begin anew with it gets a ledger of another *life*,
beside which those of the ones before do not count any more.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_memq.ranges import PlannedRange, contiguous_end
from memq.errors import ConfigError, CorruptDataError, DataLossError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEDGER_VERSION = 1
MAX_GAPS = 100  # each stands in every event; one means lost data, so there are few


class Gap(msgspec.Struct, frozen=True):
    """Offsets that retention had removed before they were planned, and that were skipped."""

    partition: int
    start: int
    end: int


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """How far a topic is planned, and its last ranges: the extra of the event of a plan.

    Attributes:
        topic: the topic.
        incarnation: of the topic, which tells it from another one of the same name.
        life: how many incarnations were planned before this one.
        origins: where the first range of each read partition began.
        ends: one past the last planned offset of each read partition.
        cuts: where the ranges of this plan begin and end, by read partition.
        again: keys of ranges of earlier plans that had got no run, and were emitted again with
            this one.
        skipped: what was left out because retention had removed it; the newest `MAX_GAPS` of it.
        version: of this format.
    """

    topic: str
    incarnation: str
    life: int = 0
    origins: dict[int, int]
    ends: dict[int, int]
    cuts: dict[int, list[int]] = {}
    again: list[str] = []
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
            PlannedRange(partition, *bounds, self.incarnation)
            for partition, cuts in self.cuts.items()
            for bounds in pairwise(cuts)
        ]

    @property
    def gaps(self) -> list[PlannedRange]:
        """What was skipped, as ranges in which there is nothing to process."""
        return [PlannedRange(gap.partition, gap.start, gap.end) for gap in self.skipped]

    def advanced(self, ranges: Iterable[PlannedRange], again: Iterable[str] = ()) -> Ledger:
        """The ledger when these ranges are planned as well, and those keys emitted again.

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
        return msgspec.structs.replace(self, ends=ends, cuts=cuts, again=list(again))


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
    return max(ledgers, key=lambda each: (each.life, sum(each.ends.values())), default=None)


class Held(NamedTuple):
    """The offsets that a read partition holds: from `start` up to, not including, `end`."""

    start: int
    end: int


class Topic(NamedTuple):
    """A topic as the broker describes it now."""

    name: str
    incarnation: str
    held: Mapping[int, Held]


def first_ledger(topic: Topic, start: str | Mapping[int, int], life: int = 0) -> Ledger:
    """The ledger of a topic of which nothing is planned yet.

    Args:
        topic: the topic.
        start: "earliest", "latest", or the first offset by partition ("earliest" for others).
        life: how many incarnations of it were planned before.

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
        topic=topic.name,
        incarnation=topic.incarnation,
        life=life,
        origins=origins,
        ends=dict(origins),
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


def is_same_topic(last: Ledger, topic: Topic) -> bool:
    """Whether what was planned is about the topic that there is."""
    return (last.topic, last.incarnation) == (topic.name, topic.incarnation)


def check_same_topic(last: Ledger, topic: Topic) -> None:
    """Make sure that what was planned is about the topic that there is.

    Raises:
        TopicRecreatedError: the topic was deleted and made again, or it is another one.
    """
    if not is_same_topic(last, topic):
        raise TopicRecreatedError(
            f"what was planned belongs to topic {last.topic!r} of incarnation {last.incarnation}, "
            f"and there is {topic.name!r} of incarnation {topic.incarnation}: its offsets name "
            "other data. To begin anew with it, run the planner once with on_recreated='begin'; "
            "runs of the ranges planned before fail, and nothing of them is committed"
        )


def carried_on(last: Ledger, topic: Topic, *, skip_removed: bool) -> Ledger:
    """The ledger that the next plan goes on from, checked against what the topic holds now.

    Raises:
        TopicRecreatedError: the topic is not the one that was planned.
        DataLossError: retention removed offsets that were not planned, or the topic lost its newest
            notifications.
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
