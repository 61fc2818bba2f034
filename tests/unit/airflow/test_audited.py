"""Which windows were audited, and which are still to be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.audited import MAX_MADE_UP, Record, Window, joined, left_out
from memq.errors import CorruptDataError

WINDOWS = st.builds(
    lambda start, width: Window(start, start + width), st.integers(0, 60), st.integers(1, 9)
)


def hours(windows):
    return {hour for start, end in windows for hour in range(start, end)}


@given(st.lists(WINDOWS), WINDOWS)
def test_no_hour_goes_unaudited(audited, own):
    """After a run, all between the first window ever audited and its own end was audited."""
    made_up = left_out(audited, own)

    first = min([own, *audited]).start_ms
    assert hours([*audited, *made_up, own]) >= set(range(first, own.end_ms))
    assert not hours(made_up) & hours([*audited, own])
    assert sum(end - start for start, end in made_up) == len(hours(made_up))
    assert made_up == sorted(made_up)
    assert all(end <= own.start_ms for _, end in made_up)


@given(st.lists(WINDOWS))
def test_spans_are_joined(windows):
    """Windows become spans of the same hours, which do not touch."""
    spans = joined(windows)

    assert hours(spans) == hours(windows)
    assert all(a.end_ms < b.start_ms for a, b in pairwise(spans))


def test_one_run_makes_up_for_so_many():
    """A gap of a year is closed by several runs, the oldest first; none is endless."""
    audited, own = [Window(0, 1)], Window(1000, 1001)

    first = left_out(audited, own)
    then = left_out([*audited, *first, own], Window(1001, 1002))

    assert len(first) == len(then) == MAX_MADE_UP
    assert first[0] == Window(1, 2)
    assert then[0] == Window(MAX_MADE_UP + 1, MAX_MADE_UP + 2)


class Store(dict):
    set = dict.__setitem__


def test_a_record_is_kept_as_plain_json():
    """What is added is read again, and stands in the store as lists of numbers."""
    store = Store()
    record = Record(store, "audited")

    for start in (0, 20, 10):
        record.add(Window(start, start + 10))
    record.add(Window(50, 60))

    assert store == {"audited": [[0, 30], [50, 60]]}
    assert Record(store, "audited").read() == [Window(0, 30), Window(50, 60)]


def test_a_record_that_makes_no_sense_is_named():
    """What somebody wrote by hand into the store is refused, with the way out."""
    with pytest.raises(CorruptDataError, match=r"'audited'.*Delete the key"):
        Record(Store(audited=["yesterday"]), "audited").read()
