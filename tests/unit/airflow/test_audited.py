"""Which windows were audited, and which are still to be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.audited import MAX_MADE_UP, AuditedWindows, left_out
from memq.core.ranges import Interval
from memq.errors import CorruptDataError

WINDOWS = st.builds(
    lambda start, width: Interval(start, start + width), st.integers(0, 60), st.integers(1, 9)
)


class Store(dict):
    set = dict.__setitem__


def hours(windows):
    return {hour for start, end in windows for hour in range(start, end)}


@given(st.lists(WINDOWS), WINDOWS)
def test_no_hour_goes_unaudited(audited, own):
    """After a run, all between the first window ever audited and its own end was audited."""
    made_up = left_out(audited, own)

    first = min([own, *audited]).start
    assert hours([*audited, *made_up, own]) >= set(range(first, own.end))
    assert not hours(made_up) & hours([*audited, own])
    assert sum(end - start for start, end in made_up) == len(hours(made_up))
    assert made_up == sorted(made_up)
    assert all(end <= own.start for _, end in made_up)


@given(st.lists(WINDOWS))
def test_audited_windows_are_merged(windows):
    """Windows are kept as intervals of the same hours, which do not meet."""
    record = AuditedWindows(Store(), "audited")
    for window in windows:
        record.add(window)

    kept = record.read()

    assert hours(kept) == hours(windows)
    assert all(a.end < b.start for a, b in pairwise(kept))


def test_one_run_makes_up_for_so_many():
    """A gap of a year is closed by several runs, the oldest first; none is endless."""
    audited, own = [Interval(0, 1)], Interval(1000, 1001)

    first = left_out(audited, own)
    then = left_out([*audited, *first, own], Interval(1001, 1002))

    assert len(first) == len(then) == MAX_MADE_UP
    assert first[0] == Interval(1, 2)
    assert then[0] == Interval(MAX_MADE_UP + 1, MAX_MADE_UP + 2)


def test_a_record_is_kept_as_plain_json():
    """What is added is read again, and stands in the store as lists of numbers."""
    store = Store()
    record = AuditedWindows(store, "audited")

    for start in (0, 20, 10):
        record.add(Interval(start, start + 10))
    record.add(Interval(50, 60))

    assert store == {"audited": [[0, 30], [50, 60]]}
    assert AuditedWindows(store, "audited").read() == [Interval(0, 30), Interval(50, 60)]


def test_a_record_that_makes_no_sense_is_named():
    """What somebody wrote by hand into the store is refused, with the way out."""
    with pytest.raises(CorruptDataError, match=r"'audited'.*Delete the key"):
        AuditedWindows(Store(audited=["yesterday"]), "audited").read()
