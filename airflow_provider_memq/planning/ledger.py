"""How far a topic is planned: where the next plan begins, and what Airflow remembers of it.

Theory of operation
-------------------
A plan goes on, for each read partition, where the last committed plan ended. What was planned last
is a `PlanLedger`: it travels in the extra of an asset event besides those that emit the ranges, and
Airflow stores them all in the transaction that makes the planning task a success. So there is one
truth:

- a try that dies before its success has emitted nothing, and the next try plans the same offsets;
- a try that succeeded has emitted ranges *and* ledger, and the next plan goes on after them.

So no offset is planned twice, and none is left out, whatever the order of wake-ups, crashes and
retries.

Four things are refused rather than guessed at. Retention may have removed offsets before they were
planned: that is lost data, unless the caller chooses to skip it, and then the ledger says so. A
topic may have been deleted and recreated: it is of another topic id, and its offsets begin again
at 0 and name other data. A caller that starts over with it gets a ledger of another *life*, and
those of earlier lives no longer count. The ledger may be of another planner, and two would plan the
same. And Airflow may have forgotten plans, as when its database was restored: then what is outside
of it, a group's offsets and manifests, is ahead of the ledger. A take-over goes on after
those offsets; manifests beyond them tell how ranges were cut, so that each replaces its own output.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from airflow.sdk import Asset

from airflow_provider_memq.planning.backfill import cuts_of
from airflow_provider_memq.planning.ranges import (
    RangeRow,
    contiguous_end,
    parse_key,
    range_key,
    to_row,
)
from memq.core.ranges import OffsetRange, retained_in_words
from memq.errors import ConfigError, CorruptDataError, DataLossError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider_memq.planning.topics import TopicState

LEDGER_VERSION = 2
MAX_GAPS = 1_000  # each stands in every event; one means lost data: few do

CLOCKS_APART = timedelta(minutes=10)  # how far the clocks of API servers may be
LEDGER_EVENTS = 20  # looked at for the last plan: clocks of API servers may be a little apart
PLAN_EVENTS = 100  # asked for at a time of a plan: each holds up to some hundred ranges
PAGE_EVENTS = 1_000  # asked for at a time
TOPIC_ID_KEY = "memq_topic_id"  # in the extra of an event about a processed range


class PlanLedger(msgspec.Struct, frozen=True, kw_only=True):
    """How far a topic is planned, and its last ranges: the extra of the event of a plan.

    Attributes:
        topic: the topic.
        topic_id: of the topic, which tells it from another one of the same name.
        life: how many topic ids were planned before this one.
        origins: where the first range of each read partition began.
        ends: one past the last planned offset of each read partition.
        cuts: where the ranges of this plan begin and end, by read partition.
        again: keys of ranges of earlier plans that had got no run, and were emitted again with
            this one.
        skipped: what was left out because retention had removed it before it was planned; the
            newest `MAX_GAPS`.
        planner: DAG and task that planned; empty in a plan of an earlier version.
        version: of this format.
    """

    topic: str
    topic_id: str
    life: int = 0
    origins: dict[int, int]
    ends: dict[int, int]
    cuts: dict[int, list[int]] = {}
    again: list[str] = []
    skipped: list[RangeRow] = []
    planner: str = ""
    version: int = LEDGER_VERSION

    def to_extra(self) -> dict[str, Any]:
        """Return the ledger as plain JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return {"memq_plan": plain}

    @property
    def ranges(self) -> list[OffsetRange]:
        """The ranges of this plan."""
        return [
            OffsetRange(partition, *bounds, self.topic_id)
            for partition, cuts in self.cuts.items()
            for bounds in pairwise(cuts)
        ]

    @property
    def gaps(self) -> list[OffsetRange]:
        """What was skipped, as ranges in which there is nothing to process."""
        return [OffsetRange(**row) for row in self.skipped]

    def advanced(self, ranges: Iterable[OffsetRange], again: Iterable[str] = ()) -> PlanLedger:
        """Return the ledger after these ranges were planned, and those keys emitted again.

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


def ledger_of(extra: object) -> PlanLedger | None:
    """Return the ledger in an event's extra; None in one that a plan did not emit.

    Raises:
        CorruptDataError: there is one, and it is damaged.
    """
    if not isinstance(extra, dict) or "memq_plan" not in extra:
        return None
    try:
        ledger = msgspec.convert(extra["memq_plan"], PlanLedger, strict=True, str_keys=True)
    except msgspec.ValidationError as exc:
        raise CorruptDataError(f"an asset event has a plan that is damaged: {exc}") from exc
    if ledger.version != LEDGER_VERSION:
        raise CorruptDataError(
            f"an asset event has a plan of version {ledger.version}; this planner knows "
            f"{LEDGER_VERSION}: upgrade memq"
        )
    return ledger


def newest(ledgers: Iterable[PlanLedger]) -> PlanLedger | None:
    """Return the last of some ledgers, in any order: ends never go back while a topic lives."""
    return max(ledgers, key=lambda each: (each.life, sum(each.ends.values())), default=None)


# -- from one plan to the next --------------------------------------------------------------


def first_ledger(topic: TopicState, start: str | Mapping[int, int], life: int = 0) -> PlanLedger:
    """Return the ledger of a topic of which nothing is planned yet.

    Args:
        topic: the topic.
        start: "earliest", "latest", or the first offset by partition ("earliest" for others).
        life: how many topic ids of it were planned before.

    Raises:
        ConfigError: `start` is none of these, or names what the topic does not retain.
    """
    if start == "earliest":
        origins = topic.starts
    elif start == "latest":
        origins = topic.ends
    elif isinstance(start, str):
        raise ConfigError(
            f"start = {start!r}: must be 'earliest', 'latest' or offsets by partition"
        )
    else:
        for partition, offset in start.items():
            _check_start(topic, partition, offset)
        origins = topic.starts | dict(start)
    return PlanLedger(
        topic=topic.topic,
        topic_id=topic.topic_id,
        life=life,
        origins=origins,
        ends=dict(origins),
    )


def _check_start(topic: TopicState, partition: int, offset: int) -> None:
    if partition not in topic.starts:
        raise ConfigError(f"start: topic {topic.topic!r} has no read partition {partition}")
    start, end = topic.starts[partition], topic.ends[partition]
    if not start <= offset <= end:
        raise ConfigError(
            f"start: offset {offset} of {topic.topic}/{partition} is not retained; "
            f"{retained_in_words(start, end)}"
        )


def is_same_topic(last: PlanLedger, topic: TopicState) -> bool:
    """Return whether the plan is about the topic that exists now."""
    return (last.topic, last.topic_id) == (topic.topic, topic.topic_id)


def check_same_topic(last: PlanLedger, topic: TopicState) -> None:
    """Make sure that what was planned is about the topic that there is.

    Raises:
        TopicRecreatedError: the topic was deleted and recreated, or it is another one.
    """
    if not is_same_topic(last, topic):
        raise TopicRecreatedError(
            f"what was planned belongs to topic {last.topic!r} of topic id {last.topic_id}, "
            f"and there is {topic.topic!r} of topic id {topic.topic_id}: its offsets name "
            "other data. To start over with it, run the planner once with on_recreated='begin'; "
            "runs of the ranges planned before fail, and nothing of them is committed"
        )


def carried_on(last: PlanLedger, topic: TopicState, *, skip_removed: bool) -> PlanLedger:
    """Return the ledger that the next plan goes on from, checked against what the topic retains
    now.

    Raises:
        TopicRecreatedError: the topic is not the one that was planned.
        DataLossError: retention removed offsets that were not planned, or the topic lost its newest
            notifications.
    """
    check_same_topic(last, topic)
    ends, origins = dict(last.ends), dict(last.origins)
    gaps: list[OffsetRange] = []
    for partition, start in topic.starts.items():
        # One that was added since the last plan is planned from its very first offset.
        end = ends.setdefault(partition, 0)
        origins.setdefault(partition, 0)
        if topic.ends[partition] < end:
            raise DataLossError(
                f"partition {partition} of {topic.topic!r} is planned up to {end}, and ends at "
                f"{topic.ends[partition]}: its queue lost notifications"
            )
        if start > end:
            gaps.append(OffsetRange(partition, end, start))
            ends[partition] = start
    if gaps and not skip_removed:
        raise DataLossError(
            f"retention removed offsets of {topic.topic!r} that were never planned: "
            f"{', '.join(map(str, gaps))}. They are gone. Set on_removed='skip' to go on after "
            "them, which the plan records"
        )
    skipped = [*last.skipped, *map(to_row, gaps)][-MAX_GAPS:]
    return msgspec.structs.replace(last, ends=ends, origins=origins, skipped=skipped)


def processed_ahead(
    ledger: PlanLedger, stored: Mapping[int, int], written: Iterable[OffsetRange]
) -> str:
    """Describe in words what is processed beyond the plan; empty for nothing.

    Args:
        ledger: how far is planned.
        stored: next offsets of the group that follows.
        written: ranges that have manifests.
    """
    reached = {p: (end, f"offset {end} is committed") for p, end in stored.items()}
    for each in written:
        if each.end > reached.get(each.partition, (0,))[0]:
            reached[each.partition] = each.end, f"a manifest is there for {range_key(each)}"
    return "; ".join(
        f"partition {p} is planned up to {ledger.ends[p]}, and {words}"
        for p, (end, words) in sorted(reached.items())
        if end > ledger.ends.get(p, end)
    )


def taken_over(
    ledger: PlanLedger, stored: Mapping[int, int], written: Iterable[OffsetRange]
) -> tuple[PlanLedger, list[OffsetRange]]:
    """Return the ledger that goes on after what a group has committed, and what is written beyond
    that.

    Args:
        ledger: how far is planned.
        stored: next offsets of the group that follows.
        written: ranges that have manifests.
    """
    ends = {p: max(end, stored.get(p, 0)) for p, end in ledger.ends.items()}
    beyond = []
    for each in sorted(written):
        if each.start >= ends[each.partition]:
            beyond.append(each)
        else:  # its first rows cannot be told from the others of its output
            ends[each.partition] = max(ends[each.partition], each.end)
    return msgspec.structs.replace(ledger, ends=ends), beyond


def settled(
    ledger: PlanLedger, stored: Mapping[int, int], done: Iterable[OffsetRange] = ()
) -> dict[int, int]:
    """Up to where nothing is left to process, by read partition.

    That is what lies before the first plan and what is stored as processed; and after them the gaps
    that a plan has skipped and the ranges that are done, as far as they meet.
    """
    passed = [*done, *ledger.gaps]
    return {
        partition: contiguous_end(
            max(origin, stored.get(partition, 0)),
            (each for each in passed if each.partition == partition),
        )
        for partition, origin in ledger.origins.items()
    }


# -- the asset events that Airflow remembers ------------------------------------------------


class StoredPlan(NamedTuple):
    """A plan, and when Airflow stored it."""

    at: datetime
    ledger: PlanLedger


def last_ledger(inlet_events: Any, plan: Asset) -> PlanLedger | None:
    """Return how far is planned, by the newest events of a plan's asset; None before the first
    plan.

    Events that a person created carry no ledger and are passed over.
    """
    for page in _pages(inlet_events, plan, LEDGER_EVENTS):
        found = newest(_ledgers(page))
        if found is not None:
            return found
    return None


def known_ranges(inlet_events: Any, plan: Asset) -> tuple[PlanLedger | None, set[OffsetRange]]:
    """Read the last plan, and every range that plans or backfills have cut of its topic id, as
    far as Airflow remembers.
    """
    events = [event for page in _pages(inlet_events, plan, PAGE_EVENTS) for event in page]
    cuts = [each for event in events if (each := ledger_of(event.extra) or cuts_of(event.extra))]
    last = newest(each for each in cuts if isinstance(each, PlanLedger))
    known = {
        found
        for each in cuts
        if last is not None and each.topic_id == last.topic_id
        for found in each.ranges
    }
    return last, known


def is_planned(inlet_events: Any, plan: Asset, wanted: OffsetRange) -> bool | None:
    """Return whether a range was planned, or cut by a backfill; None where Airflow may have
    forgotten.
    """
    oldest = None
    for page in _pages(inlet_events, plan, PLAN_EVENTS):
        for event in page:
            found = ledger_of(event.extra) or cuts_of(event.extra)
            if found is None or wanted.topic_id not in ("", found.topic_id):
                continue
            if wanted._replace(topic_id=found.topic_id) in found.ranges:
                return True
            oldest = found if isinstance(found, PlanLedger) else oldest
        if oldest is None:
            continue
        # Plans before one that began there cannot have it; those of one page may be out of order.
        planned_until = oldest.ends.get(wanted.partition, 0)
        if oldest.cuts.get(wanted.partition, [planned_until])[0] <= wanted.start:
            return False
    return None


def plans_since(inlet_events: Any, plan: Asset, since: datetime) -> list[StoredPlan]:
    """Return the plans that were stored since a time, the oldest first."""
    found: dict[datetime, PlanLedger] = {}
    for page in _pages(inlet_events, plan, PLAN_EVENTS):
        for event in page:
            ledger = ledger_of(event.extra)
            if ledger is not None and event.timestamp >= since:
                found[event.timestamp] = ledger
        if page[-1].timestamp < since:
            break
    return [StoredPlan(at, found[at]) for at in sorted(found)]


def mark_events(outlet_events: Any, outlets: Iterable[Any], topic_id: str) -> None:
    """Have the events of a task say which topic id its range is of."""
    for asset in outlets:
        if isinstance(asset, Asset):
            accessor = outlet_events[asset]
            accessor.extra = {**accessor.extra, TOPIC_ID_KEY: topic_id}


def unstored_ranges(
    inlet_events: Any, plan: Asset, done: Asset, ledger: PlanLedger, stored: Mapping[int, int]
) -> set[OffsetRange]:
    """Return the processed ranges that reach beyond what is stored and what is left out on purpose.

    A range may be processed long after those that follow it, and an old one once more. So it looks
    back to the last plan that had nothing beyond: what was processed before that plan was planned
    before it. Events about an earlier topic of the same name are passed over.

    A range that stays unprocessed makes it look at more events, `PAGE_EVENTS` at a time, as far
    as Airflow remembers.

    Args:
        inlet_events: of the task.
        plan: asset of the plan.
        done: asset of processed ranges.
        ledger: how far is planned.
        stored: next offsets by read partition.
    """
    starts = settled(ledger, stored)
    since = _settled_since(inlet_events, plan, ledger, starts)
    found: set[OffsetRange] = set()
    for page in _pages(inlet_events, done, PAGE_EVENTS):
        for event in page:
            each = _range_of(event)
            if each is None or not _is_of(event, each, ledger.topic_id):
                continue
            if each.end > starts.get(each.partition, 0):
                found.add(each._replace(topic_id=ledger.topic_id))
        if since is not None and page[-1].timestamp < since:
            break
    return found


def _settled_since(
    inlet_events: Any, plan: Asset, ledger: PlanLedger, starts: Mapping[int, int]
) -> datetime | None:
    """Return a time before which no range beyond some offsets was planned; None where none is
    known.
    """
    for page in _pages(inlet_events, plan, PLAN_EVENTS):
        for event in page:
            found = ledger_of(event.extra)
            if found is None or found.topic_id != ledger.topic_id:
                continue
            if all(end <= starts.get(partition, 0) for partition, end in found.ends.items()):
                time: datetime = event.timestamp
                return time - CLOCKS_APART
    return None


def _is_of(event: Any, found: OffsetRange, topic_id: str) -> bool:
    """Return whether an event is about a topic id, by its key or its mark. One without either
    matches any topic id.
    """
    marked = event.extra.get(TOPIC_ID_KEY, "") if isinstance(event.extra, dict) else ""
    return (found.topic_id or marked or topic_id) == topic_id


def _range_of(event: Any) -> OffsetRange | None:
    """Return the range that an event's partition key names; None in an event about no range."""
    try:
        return parse_key(event.partition_key)
    except ConfigError:
        return None


def _ledgers(page: list[Any]) -> Iterator[PlanLedger]:
    return (ledger for event in page if (ledger := ledger_of(event.extra)) is not None)


def _pages(inlet_events: Any, asset: Asset, size: int) -> Iterator[list[Any]]:
    """Yield the events of an asset, newest first; those where two pages meet may come twice."""
    accessor = inlet_events[asset].ascending(False).limit(size)
    oldest = None
    while page := list(accessor):
        yield page
        if len(page) < size or page[-1].timestamp == oldest:
            return
        oldest = page[-1].timestamp
        accessor = inlet_events[asset].ascending(False).limit(size).before(oldest)
