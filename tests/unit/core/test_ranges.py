"""Ranges of offsets, and sets of intervals, against sets of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from memq.core.ranges import (
    Interval,
    IntervalSet,
    OffsetRange,
    contains,
    difference,
    intersection,
    ranges_without,
    union,
)

numbers = st.integers(0, 20)
bounds = st.tuples(numbers, numbers).map(lambda ends: (min(ends), max(ends)))
intervals = st.lists(bounds.filter(lambda ends: ends[0] < ends[1])).map(
    lambda found: union(sorted(Interval(*each) for each in found))
)


def offset_range(partition):
    return bounds.map(lambda ends: OffsetRange(partition, *ends))


def numbers_of(found):
    return [number for start, end in found for number in range(start, end)]


@given(
    ranges=st.tuples(offset_range(0), offset_range(1)),
    others=st.tuples(offset_range(0), offset_range(1)),
)
def test_ranges_without_are_all_that_was_left_out(ranges, others):
    """What is without some ranges is everything but these, once."""

    def offsets(found):
        return [(part, at) for part, start, end, _ in found for at in range(start, end)]

    left = offsets(ranges_without(ranges, others))
    assert sorted(left) == sorted(set(offsets(ranges)) - set(offsets(others)))


@given(left=intervals, right=intervals, part=bounds, number=numbers)
def test_lists_of_intervals_are_sets(left, right, part, number):
    """Union, intersection, difference and membership are those of the numbers, sorted, once."""
    one, two = set(numbers_of(left)), set(numbers_of(right))
    assert numbers_of(union(sorted([*left, *right]))) == sorted(one | two)
    assert numbers_of(difference(left, right)) == sorted(one - two)
    assert numbers_of(intersection(left, Interval(*part))) == sorted(one & set(range(*part)))
    assert contains(left, number) == (number in one)


@given(added=st.lists(bounds.filter(lambda ends: ends[0] < ends[1])), number=numbers)
def test_an_interval_set_is_a_set(added, number):
    """Whatever is added in whatever order, the set has just these numbers, in intervals apart."""
    found = IntervalSet()
    wanted = set()
    for start, end in added:
        found.add(start, end)
        wanted |= set(range(start, end))
    kept = list(zip(found.starts, found.ends, strict=True))
    assert numbers_of(kept) == sorted(wanted)
    assert kept == union(kept)
    assert len(found) == len(kept)
    assert (number in found) == (number in wanted)
    if kept:
        assert found.pop_first() == kept[0]
        assert len(found) == len(kept) - 1
