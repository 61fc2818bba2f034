"""What Airflow remembers of ranges: the asset events that emitted them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_memq.ranges import PlannedRange, ledger_of, newest, parse_key
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Asset

    from airflow_provider_memq.ranges import Ledger

LEDGER_EVENTS = 20  # looked at for the last plan: clocks of API servers may be a little apart
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
        if last is not None and ledger.created_ms == last.created_ms
        for found in ledger.ranges
    }


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


def ranges_behind(inlet_events: Any, asset: Asset, offsets: Mapping[int, int]) -> set[PlannedRange]:
    """The ranges emitted to an asset that reach behind some offsets by read partition.

    Ranges are processed nearly in their order. So it looks back until a whole page of events has
    nothing that is new.
    """
    found: set[PlannedRange] = set()
    for page in _pages(inlet_events, asset, PAGE_EVENTS):
        ranges = {each for event in page if (each := range_of(event)) is not None}
        behind = {each for each in ranges if each.end > offsets.get(each.partition, 0)}
        if ranges and not behind:
            break
        found |= behind
    return found
