"""How far a topic is planned: what a ledger keeps, and what it is checked against."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_memq.planning.ledger import (
    PlanLedger,
    carried_on,
    first_ledger,
    ledger_of,
    newest,
    settled,
    taken_over,
)
from airflow_provider_memq.planning.ranges import MAX_OFFSET
from airflow_provider_memq.planning.topics import TopicState
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, CorruptDataError, DataLossError

OLD, NEW = "a" * 16, "b" * 16


def topic(**retained: tuple[int, int]) -> TopicState:
    """A topic with read partitions p0, p1 and so on."""
    starts = {int(p[1:]): start for p, (start, _) in retained.items()}
    ends = {int(p[1:]): end for p, (_, end) in retained.items()}
    return TopicState("clicks", OLD, starts, ends, 0)


def gap(partition, start, end):
    return {"partition": partition, "start": start, "end": end}


def ledger(**changes) -> PlanLedger:
    fields = {"topic": "clicks", "topic_id": OLD, "origins": {0: 0}, "ends": {0: 10}}
    return PlanLedger(**{**fields, **changes})


@given(
    st.dictionaries(st.integers(0, 300), st.integers(0, MAX_OFFSET)),
    st.dictionaries(st.integers(0, 300), st.integers(0, MAX_OFFSET)),
)
def test_a_ledger_survives_json(origins, ends):
    """What an event's extra says after Airflow stored it is what was put into it."""
    made = ledger(origins=origins, ends=ends)

    assert ledger_of(json.loads(json.dumps(made.to_extra()))) == made


@pytest.mark.parametrize(
    "plan", [{}, "x", {**ledger().to_extra()["memq_plan"], "version": 9}, {"ends": {"0": "many"}}]
)
def test_a_ledger_that_makes_no_sense_is_an_error(plan):
    """Passing over a damaged ledger would plan everything again."""
    with pytest.raises(CorruptDataError):
        ledger_of({"memq_plan": plan})


def test_the_newest_ledger_is_found_in_any_order():
    """Events come by their time, and clocks differ: how far they reach decides."""
    early, late = ledger(), ledger(ends={0: 20})
    other_topic = ledger(topic_id=NEW, life=1, ends={0: 1})

    assert newest([late, early]) == newest([early, late]) == late
    assert newest([late, other_topic, early]) == other_topic
    assert newest([]) is None


def test_a_ledger_takes_only_what_meets():
    """A range that leaves a gap or overlaps is a bug, and never becomes part of a plan."""
    ranges = [OffsetRange(0, 10, 12, OLD), OffsetRange(0, 12, 15, OLD)]
    assert ledger().advanced(ranges).ends == {0: 15}
    assert ledger().advanced(ranges).ranges == ranges
    assert ledger().advanced(ranges).advanced([]).ranges == []
    for start in (9, 11):
        with pytest.raises(CorruptDataError, match="does not meet"):
            ledger().advanced([OffsetRange(0, start, 20)])


@pytest.mark.parametrize(
    ("start", "ends"),
    [("earliest", {0: 5, 1: 0}), ("latest", {0: 9, 1: 3}), ({0: 7}, {0: 7, 1: 0})],
)
def test_the_first_plan_begins_where_it_is_told(start, ends):
    """At the oldest retained offsets, at the ends, or at given offsets."""
    first = first_ledger(topic(p0=(5, 9), p1=(0, 3)), start)

    assert first.ends == first.origins == ends


@pytest.mark.parametrize("start", ["newest", {0: 4}, {0: 10}, {7: 0}])
def test_a_start_that_cannot_be_is_refused(start):
    """A word that is none, and offsets that are not retained, are errors."""
    with pytest.raises(ConfigError, match="start"):
        first_ledger(topic(p0=(5, 9)), start)


def test_removed_offsets_fail_or_are_recorded():
    """What retention removed unplanned is data loss; skipped on demand, and then on record.

    A read partition that was added is planned from its very first offset.
    """
    added = carried_on(ledger(), topic(p0=(10, 10), p1=(0, 4)), skip_removed=False)
    assert (added.ends, added.origins) == ({0: 10, 1: 0}, {0: 0, 1: 0})

    now = topic(p0=(12, 20), p1=(3, 4))
    with pytest.raises(DataLossError, match=r"0, offsets 10 to 11, partition 1, offsets 0 to 2\."):
        carried_on(ledger(), now, skip_removed=False)
    skipped = carried_on(ledger(), now, skip_removed=True)

    assert (skipped.ends, skipped.origins) == ({0: 12, 1: 3}, {0: 0, 1: 0})
    assert skipped.skipped == [gap(0, 10, 12), gap(1, 0, 3)]
    assert skipped.gaps == [OffsetRange(0, 10, 12), OffsetRange(1, 0, 3)]
    assert carried_on(skipped, now, skip_removed=False).skipped == skipped.skipped


def test_a_queue_that_went_back_is_refused():
    """Offsets that end before what was planned would be given to other data."""
    with pytest.raises(DataLossError, match="lost notifications"):
        carried_on(ledger(), topic(p0=(0, 9)), skip_removed=True)


@pytest.mark.parametrize(
    ("stored", "expected"), [({}, 5), ({0: 3}, 5), ({0: 8}, 8), ({0: 10}, 14), ({0: 20}, 20)]
)
def test_nothing_is_left_to_process_in_what_was_left_out(stored, expected):
    """What lies before the first plan, and the gaps that meet what is stored, are settled."""
    gaps = [gap(0, 12, 14), gap(0, 10, 12), gap(1, 14, 90)]

    assert settled(ledger(origins={0: 5}, skipped=gaps), stored) == {0: expected}


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.lists(st.integers(0, 40), min_size=2, max_size=9, unique=True).map(sorted),
    st.randoms(use_true_random=False),
)
def test_who_takes_over_goes_on_after_what_is_processed(planned, committed, cuts, randomness):
    """After what is planned, committed, and written across that; what is written beyond is told as
    it was cut.
    """
    written = [OffsetRange(0, *each, OLD) for each in pairwise(cuts) if randomness.random() < 0.6]
    randomness.shuffle(written)
    last = ledger(origins={0: 0, 1: 0}, ends={0: planned, 1: 4})

    taken, beyond = taken_over(last, {0: committed}, [*written, OffsetRange(1, 9, 12, OLD)])

    reached = max(planned, committed)
    across = [each.end for each in written if each.start < reached]
    assert taken.ends == {0: max([reached, *across]), 1: 4}
    later = sorted(each for each in written if each.start >= reached)
    assert beyond == [*later, OffsetRange(1, 9, 12, OLD)]
    assert replace(taken, ends=last.ends) == last
