"""What Airflow remembers of ranges, however many events lie between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_memq import ledger
from airflow_provider_memq.ledger import Ledger, unstored_ranges
from airflow_provider_memq.operators.progress import moved_ends, why_not_moved
from airflow_provider_memq.range_assets import plan_asset, processed_asset, ranges_asset
from airflow_provider_memq.ranges import range_key
from memq.core.ranges import OffsetRange
from tests.integration.airflow.event_store import EventStore

PLAN, DONE = plan_asset(ranges_asset("t")), processed_asset("t", "job")
OLD, NEW = "a" * 16, "b" * 16


class CountingStore(EventStore):
    """Counts how often events of what is done were asked for."""

    pages_done = 0

    def __getitem__(self, asset):
        self.pages_done += asset.name == DONE.name
        return super().__getitem__(asset)


class World:
    """Plans of a topic, and what was processed of them."""

    def __init__(self):
        self.store = CountingStore()
        self.ledger = Ledger(topic="t", incarnation=OLD, origins={0: 0, 1: 0}, ends={0: 0, 1: 0})

    def plan(self, partition, lengths):
        """Emit ranges of these lengths by one plan; returns them."""
        ranges, end = [], self.ledger.ends[partition]
        for length in lengths:
            ranges.append(OffsetRange(partition, end, end + length, OLD))
            end += length
        self.ledger = self.ledger.advanced(ranges)
        self.store.add(PLAN, None, self.ledger.to_extra())
        return ranges

    def process(self, *ranges):
        for each in ranges:
            self.store.add(DONE, range_key(each))

    def unstored(self, stored):
        return unstored_ranges(self.store, PLAN, DONE, self.ledger, stored)


@pytest.fixture(autouse=True, scope="module")
def small_pages():
    """Pages of three events, so that few are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "PAGE_EVENTS", 3)
        patch.setattr(ledger, "PLAN_EVENTS", 3)
        yield


def test_a_late_range_finds_those_after_it():
    """Ranges after one that was missing are found, however many of others came in between."""
    world = World()
    late, *after = world.plan(0, [5] * 4)
    world.process(*after)
    for _ in range(9):
        world.process(*world.plan(1, [1]))
    world.process(late)

    assert world.unstored({0: 0, 1: 9}) == {late, *after}


def test_a_range_that_is_processed_again_hides_nothing():
    """That an old range was processed once more does not end the search."""
    world = World()
    first, late, after = world.plan(0, [5] * 3)
    world.process(first, after)
    world.process(*[first] * 9)
    world.process(late)

    assert world.unstored({0: 5}) == {late, after}


def test_the_search_ends_where_nothing_can_come():
    """What was processed long before the ranges in question were planned is not looked at."""
    world = World()
    for _ in range(20):
        world.process(*world.plan(0, [1]), *world.plan(1, [1]))
        world.store.clock += ledger.CLOCKS_APART
    late = world.plan(0, [1])
    world.process(*late)

    assert world.unstored({0: 20, 1: 20}) == set(late)
    assert world.store.pages_done <= 2


def test_a_gap_does_not_prolong_the_search():
    """What a plan has skipped is not waited for."""
    world = World()
    for _ in range(20):
        world.process(*world.plan(0, [1]))
    world.ledger = replace(
        world.ledger, ends={0: 30, 1: 0}, skipped=[{"partition": 0, "start": 20, "end": 30}]
    )
    world.store.clock += ledger.CLOCKS_APART
    late = world.plan(1, [1])
    world.process(*late)

    assert world.unstored({0: 20}) == set(late)
    world.store.clock += ledger.CLOCKS_APART
    later = world.plan(1, [1])
    world.process(*later)
    world.store.pages_done = 0
    assert world.unstored({0: 20, 1: 1}) == set(later)
    assert world.store.pages_done <= 2


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=25),
    st.randoms(use_true_random=False),
)
def test_whatever_the_order_everything_is_committed_in_the_end(plans, randomness):
    """In any order of processing, what is stored moves on until all that was planned is stored."""
    world, stored = World(), {0: 0, 1: 0}
    world.store.clock += ledger.CLOCKS_APART
    todo = []
    for partition, ranges in plans:
        todo += world.plan(partition, [2] * ranges)
        if randomness.random() < 0.5:
            continue
        randomness.shuffle(todo)
        commit(world, stored, todo[: len(todo) // 2])
        del todo[: len(todo) // 2]
    randomness.shuffle(todo)
    for each in todo:
        commit(world, stored, [each])

    assert stored == world.ledger.ends


def commit(world, stored, done):
    """Process some ranges, and move what is stored as far as it goes."""
    world.process(*done)
    world.store.clock += ledger.CLOCKS_APART
    stored.update(moved_ends(world.ledger, stored, world.unstored(stored)))


def test_what_holds_a_group_back_is_named():
    """The offset at which the range begins that no event says is processed, of each partition."""
    planned = Ledger(
        topic="t", incarnation=NEW, origins={0: 2, 1: 0, 2: 4}, ends={0: 9, 1: 5, 2: 4}
    )

    assert why_not_moved(planned, {1: 3}) == (
        "no event says that the range is processed that begins at offset 2 of read partition 0 "
        "or at offset 3 of read partition 1"
    )
    assert why_not_moved(planned, {0: 9, 1: 5}) == "all that was planned is committed"
