"""What Airflow remembers of ranges, however many events lie between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.planning import ledger
from airflow_provider_memq.planning.backfill import Cuts, cuts_of
from airflow_provider_memq.planning.ledger import (
    TOPIC_ID_KEY,
    PlanLedger,
    StoredPlan,
    is_planned,
    known_ranges,
    last_ledger,
    ledger_of,
    plans_since,
    unstored_ranges,
)
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.range_assets import plan_asset, processed_asset, ranges_asset
from memq.core.ranges import OffsetRange
from tests.integration.airflow.event_store import BEGIN, EventStore

PLAN, DONE = plan_asset(ranges_asset("t")), processed_asset("t", "job")
OLD, NEW = "a" * 16, "b" * 16


@pytest.fixture(autouse=True, scope="module")
def small_pages():
    """Pages of three events, so that few are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "LEDGER_EVENTS", 3)
        patch.setattr(ledger, "PAGE_EVENTS", 3)
        patch.setattr(ledger, "PLAN_EVENTS", 3)
        yield


def test_only_ranges_of_the_topic_that_there_is_count():
    """By their keys, or else by what the event says; one that says neither counts, and events that
    are of no range hide none.
    """
    store = EventStore()
    ranges = [OffsetRange(0, n, n + 1, OLD) for n in range(5)]
    last = PlanLedger(topic="t", topic_id=OLD, origins={0: 0}, ends={0: 0}).advanced(ranges)
    store.add(PLAN, None, last.to_extra())
    without = [range_key(each._replace(topic_id="")) for each in ranges]
    old, new = ({TOPIC_ID_KEY: topic_id} for topic_id in (OLD, NEW))
    for key, extra in [
        (range_key(ranges[0]), new),
        (None, old),
        (without[1], new),
        ("a person's", None),
        (without[2], old),
        (range_key(ranges[3]._replace(topic_id=NEW)), old),
        (without[4], None),
    ]:
        store.add(DONE, key, extra)

    for stored, left in ((0, {ranges[0], ranges[2], ranges[4]}), (1, {ranges[2], ranges[4]})):
        assert unstored_ranges(store, PLAN, DONE, last, {0: stored}) == left


class History:
    """Plans, cuts of backfills and events of people, in this order, of a topic made once or twice.

    Attributes:
        ledgers: of all plans.
        cuts: ranges that backfills have cut, all of them before the first plan.
    """

    BEGUN = 20

    def __init__(self, draw):
        self.store = EventStore()
        self.ledgers: list[PlanLedger] = []
        self.cuts: set[OffsetRange] = set()
        self.plans: list[StoredPlan] = []
        for life, topic_id in enumerate([OLD, NEW][: draw(st.integers(1, 2))]):
            origins = {0: self.BEGUN, 1: self.BEGUN}
            last = PlanLedger(
                topic="t", topic_id=topic_id, life=life, origins=origins, ends=origins
            )
            for what in draw(st.lists(st.sampled_from("ppppbx"), min_size=1, max_size=8)):
                if what == "p":
                    last = self.plan(last, draw(st.lists(st.integers(0, 1), max_size=3)))
                elif what == "b":
                    self.cut(draw(st.integers(0, self.BEGUN - 3)), topic_id)
                else:
                    self.store.add(PLAN, None, {"from": "a person"})

    def plan(self, last, partitions):
        ends, ranges = dict(last.ends), []
        for partition in partitions:
            ranges.append(OffsetRange(partition, ends[partition], ends[partition] + 2, OLD))
            ends[partition] += 2
        ranges = [each._replace(topic_id=last.topic_id) for each in ranges]
        self.ledgers.append(last.advanced(ranges))
        self.store.add(PLAN, None, self.ledgers[-1].to_extra())
        self.plans.append(StoredPlan(self.store.clock, self.ledgers[-1]))
        return self.ledgers[-1]

    def cut(self, start, topic_id):
        ranges = [OffsetRange(0, start, start + 1, topic_id)]
        ranges.append(OffsetRange(0, start + 1, start + 3, topic_id))
        self.cuts.update(ranges)
        self.store.add(PLAN, None, Cuts.of(ranges, topic_id).to_extra())

    def ranges(self):
        return self.cuts.union(*(each.ranges for each in self.ledgers))

    def forget(self, events):
        """Have Airflow forget the oldest events; returns what is left of plans and of cuts."""
        kept = self.store.events.setdefault(PLAN.name, [])
        del kept[:events]
        ledgers = [each for event in kept if (each := ledger_of(event.extra))]
        cuts = [each for event in kept if (each := cuts_of(event.extra))]
        return ledgers, {found for each in cuts for found in each.ranges}


@given(st.data())
def test_what_is_known_of_plans(data):
    """What any event has is known, whatever came after it; what was not planned is said to be so
    only where no event is forgotten that could have it; and with none forgotten it always is.
    """
    history = History(data.draw)
    planned = history.ranges()
    forgotten = data.draw(st.one_of(st.just(0), st.integers(0, 9)))
    ledgers, cuts = history.forget(forgotten)
    there = cuts.union(*(each.ranges for each in ledgers))
    last = last_ledger(history.store, PLAN)

    reach = [(each.life, each.ends) for each in ledgers]
    assert ((last.life, last.ends) if last else None) == (reach[-1] if reach else None)
    left = history.plans[len(history.plans) - len(ledgers) :]
    for since in (BEGIN, *(at for at, _ in history.plans)):
        later = [each for each in left if each.at >= since]
        assert plans_since(history.store, PLAN, since) == later
    of_last = {each for each in there if last and each.topic_id == last.topic_id}
    assert known_ranges(history.store, PLAN) == (last, of_last)
    asked = {OffsetRange(p, start, start + 2, OLD) for p in (0, 1) for start in (0, 20, 22, 90)}
    for each in planned:
        asked |= {each, each._replace(end=each.end + 1), each._replace(start=each.start - 1)}
    for wanted in asked:
        found = is_planned(history.store, PLAN, wanted)
        assert (found is True) == (wanted in there)
        assert found is not False or wanted not in planned
        if not forgotten and any(each.topic_id == wanted.topic_id for each in ledgers):
            assert found is not None or wanted.start < history.BEGUN
        if wanted in of_last:
            assert is_planned(history.store, PLAN, wanted._replace(topic_id=""))
