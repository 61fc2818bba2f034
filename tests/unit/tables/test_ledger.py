"""The ledger of a table: which ranges are in it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit.reports import CRC_MODULUS
from memq.core.ranges import Interval
from memq.errors import CorruptDataError, LimitReachedError, RangeConflictError
from memq.tables.ledger import (
    EMPTY,
    MAX_INTERVALS,
    Ledger,
    PartitionLedger,
    TopicRange,
    decode_ledger,
    encode_ledger,
)


def clicks(start, end, partition=0, topic_id="a1", **counts):
    return TopicRange(
        topic="clicks",
        topic_id=topic_id,
        partition=partition,
        start=start,
        end=end,
        **counts,
    )


def ledger(*ranges):
    result = EMPTY
    for each in ranges:
        result = result.plus(each)
    return result


cuts = st.lists(st.integers(0, 60), min_size=2, max_size=12, unique=True).map(sorted)
counts = st.integers(0, CRC_MODULUS - 1)


@given(cuts, st.data())
def test_the_order_of_commits_does_not_matter(bounds, data):
    """Ranges that meet give one interval and one sum, in whatever order they came."""
    ranges = [
        clicks(start, end, records=end, messages=1, batches=3, crc_sum=data.draw(counts))
        for start, end in pairwise(bounds)
    ]

    whole = ledger(*data.draw(st.permutations(ranges)))

    held = whole.partition("clicks", "a1", 0)
    assert held.intervals == [Interval(bounds[0], bounds[-1])]
    assert held.crc_sum == sum(each.crc_sum for each in ranges) % CRC_MODULUS
    assert held.records == sum(bounds[1:])
    assert (held.ranges, held.messages) == (len(ranges), len(ranges))
    assert held.batches == 3 * len(ranges)
    assert decode_ledger(encode_ledger(whole)) == whole


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=12))
def test_no_offset_is_in_twice(wanted):
    """A range is taken whole, found whole, or refused: what is in is what was taken, once."""
    taken: set[int] = set()
    held = EMPTY
    for start, size in wanted:
        offsets = set(range(start, start + size))
        each = clicks(start, start + size, records=size)
        if offsets <= taken:
            assert held.has(each)
            with pytest.raises(RangeConflictError, match="is in the table already"):
                held.plus(each)
        elif offsets & taken:
            with pytest.raises(RangeConflictError):
                held.has(each)
            with pytest.raises(RangeConflictError):
                held.plus(each)
        else:
            assert not held.has(each)
            held = held.plus(each)
            taken |= offsets

    found = held.partition("clicks", "a1", 0)
    assert [n for start, end in found.intervals for n in range(start, end)] == sorted(taken)
    assert found.records == len(taken)


def test_gaps_have_a_limit(monkeypatch):
    """So the ledger stays small; ranges between others are taken at the limit as well."""
    assert MAX_INTERVALS == 1_000
    monkeypatch.setattr("memq.tables.ledger.MAX_INTERVALS", 9)
    held = ledger(*(clicks(2 * n, 2 * n + 1) for n in range(9)))

    with pytest.raises(LimitReachedError, match="10 pieces"):
        held.plus(clicks(18, 19))

    held = held.plus(clicks(1, 2)).plus(clicks(18, 19))
    assert len(held.partition("clicks", "a1", 0).intervals) == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not the ledger of a table"),
        ('{"topics": {"t": {"a": {"x": {}}}}}', "not the ledger of a table"),
        ('{"version": 2, "topics": {}}', "version 2; this reader knows 1: upgrade memq"),
    ],
)
def test_what_is_no_ledger_is_refused(text, why):
    """Other text is damage, and not an empty ledger."""
    with pytest.raises(CorruptDataError, match=why):
        decode_ledger(text)


@pytest.mark.parametrize("intervals", [[(3, 3)], [(5, 6), (0, 1)], [(0, 2), (2, 3)], [(-1, 2)]])
def test_a_ledger_that_makes_no_sense_is_refused(intervals):
    """Intervals are sorted, have offsets, and do not meet."""
    held = PartitionLedger(intervals=[Interval(*each) for each in intervals])

    with pytest.raises(CorruptDataError, match="makes no sense"):
        decode_ledger(encode_ledger(Ledger(topics={"clicks": {"a1": {0: held}}})))
