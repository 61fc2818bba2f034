"""What Airflow remembers of ranges: the asset events that emitted them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from airflow_provider_memq.ledger import ledger_of, newest, settled
from airflow_provider_memq.ranges import PlannedRange, parse_key
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from airflow_provider_memq.ledger import Ledger

CLOCKS_APART = timedelta(minutes=10)  # how far the clocks of API servers may be
LEDGER_EVENTS = 20  # looked at for the last plan: clocks of API servers may be a little apart
TOPIC_MARK = "memq_incarnation"  # in the extra of an event about a processed range
PLAN_EVENTS = 100  # asked for at a time of a plan: each holds up to some hundred ranges
PAGE_EVENTS = 1_000  # asked for at a time


def last_ledger(inlet_events: Any, plan: Asset) -> Ledger | None:
    """How far is planned, by the newest events of a plan's asset; None before the first plan.

    Events that somebody made by hand carry no ledger and are passed over.
    """
    for page in _pages(inlet_events, plan, LEDGER_EVENTS):
        found = newest(_ledgers(page))
        if found is not None:
            return found
    return None


def planned_ranges(inlet_events: Any, plan: Asset) -> set[PlannedRange]:
    """Every range that was planned of the topic as it is now, and is still remembered."""
    ledgers = [each for page in _pages(inlet_events, plan, PAGE_EVENTS) for each in _ledgers(page)]
    last = newest(ledgers)
    return {
        found
        for ledger in ledgers
        if last is not None and ledger.incarnation == last.incarnation
        for found in ledger.ranges
    }


def ledgers_since(inlet_events: Any, plan: Asset, since: datetime) -> list[tuple[datetime, Ledger]]:
    """The plans that were stored since a time, and when; the oldest first."""
    found: dict[datetime, Ledger] = {}
    for page in _pages(inlet_events, plan, PLAN_EVENTS):
        for event in page:
            ledger = ledger_of(event.extra)
            if ledger is not None and event.timestamp >= since:
                found[event.timestamp] = ledger
        if page[-1].timestamp < since:
            break
    return sorted(found.items())


def _ledgers(page: list[Any]) -> Iterator[Ledger]:
    return (ledger for event in page if (ledger := ledger_of(event.extra)) is not None)


def _pages(inlet_events: Any, asset: Asset, size: int) -> Iterator[list[Any]]:
    """The events of an asset, the newest first; those at the seam of two pages may come twice."""
    accessor = inlet_events[asset].ascending(False).limit(size)
    oldest = None
    while page := list(accessor):
        yield page
        if len(page) < size or page[-1].timestamp == oldest:
            return
        oldest = page[-1].timestamp
        accessor = inlet_events[asset].ascending(False).limit(size).before(oldest)


def range_of(event: Any) -> PlannedRange | None:
    """The range that an event's partition key names; None in an event about no range."""
    try:
        return parse_key(event.partition_key)
    except ConfigError:
        return None


def mark_events(outlet_events: Any, outlets: Iterable[Any], incarnation: str) -> None:
    """Have the events of a task say which incarnation of the topic its range is of."""
    for asset in outlets:
        if isinstance(asset, Asset):
            accessor = outlet_events[asset]
            accessor.extra = {**accessor.extra, TOPIC_MARK: incarnation}


def _is_of(event: Any, found: PlannedRange, incarnation: str) -> bool:
    """Whether an event is about an incarnation of the topic, by its key or else by its mark; one
    that says neither is about whichever there is.
    """
    marked = event.extra.get(TOPIC_MARK, "") if isinstance(event.extra, dict) else ""
    return (found.incarnation or marked or incarnation) == incarnation


def ranges_behind(
    inlet_events: Any, plan: Asset, done: Asset, ledger: Ledger, stored: Mapping[int, int]
) -> set[PlannedRange]:
    """The processed ranges that reach behind what is stored and what is left out on purpose.

    A range may be processed long after those behind it, and an old one once more. So it looks back
    to the last plan that has nothing behind: what was processed before that plan was planned before
    it. Events about an earlier topic of the same name are passed over.

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
    found: set[PlannedRange] = set()
    for page in _pages(inlet_events, done, PAGE_EVENTS):
        for event in page:
            each = range_of(event)
            if each is None or not _is_of(event, each, ledger.incarnation):
                continue
            if each.end > starts.get(each.partition, 0):
                found.add(each._replace(incarnation=ledger.incarnation))
        if since is not None and page[-1].timestamp < since:
            break
    return found


def _settled_since(
    inlet_events: Any, plan: Asset, ledger: Ledger, starts: Mapping[int, int]
) -> datetime | None:
    """Before which time no range behind some offsets was planned; None when nobody remembers."""
    for page in _pages(inlet_events, plan, PLAN_EVENTS):
        for event in page:
            found = ledger_of(event.extra)
            if found is None or found.incarnation != ledger.incarnation:
                continue
            if all(end <= starts.get(partition, 0) for partition, end in found.ends.items()):
                time: datetime = event.timestamp
                return time - CLOCKS_APART
    return None
