"""Which windows were audited, and which are still to be."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.planning.audited import AuditedWindows, left_out
from memq.core.ranges import Interval
from memq.errors import CorruptDataError
from tests.integration.airflow.event_store import State

WINDOWS = st.builds(
    lambda start, width: Interval(start, start + width), st.integers(0, 60), st.integers(1, 9)
)


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
    record = AuditedWindows(State(), "audited")
    for window in windows:
        record.add(window)

    kept = record.read()

    assert hours(kept) == hours(windows)
    assert all(a.end < b.start for a, b in pairwise(kept))


def test_a_record_that_makes_no_sense_is_named():
    """What somebody wrote by hand into the store is refused, with the way out."""
    with pytest.raises(CorruptDataError, match=r"'audited'.*Delete the key"):
        AuditedWindows(State(audited=["yesterday"]), "audited").read()
