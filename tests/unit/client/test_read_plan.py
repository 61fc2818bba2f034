"""Times of records: exact for every unit, and Batches that cannot have them are passed over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memq.client.read_plan import EventTimes, Selection
from memq.core.format.message import timestamp_range_us
from memq.errors import ConfigError, InvalidRequestError
from tests.unit.client.batches import Sent, notify, records, seal

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NOON = datetime(2025, 6, 30, 12, tzinfo=UTC)
NOON_US = 1_751_284_800_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)
NEAR = st.builds(lambda steps, more: steps * 1_000 + more, st.integers(-2, 2), st.integers(-1, 1))
"""Numbers of which many are the same time in units that differ by thousands."""
BOUND = st.none() | NEAR | st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


UNITS = st.sampled_from(sorted(PER_SECOND))


def rows_of(ticks, unit="us", zone="UTC"):
    """Rows of a typed topic with some times, in ticks."""
    kind = pa.timestamp(unit, zone)
    return pa.record_batch({"timestamp": pa.array(ticks, pa.int64()).view(kind)})


@given(st.lists(st.none() | NEAR | INT64), UNITS, BOUND, BOUND)
@example([1, 2, 3], "us", 1, 3)
@example([999, 1_000, 2_999, 3_000], "ns", 1, 3)
@example([0, 1, 2], "s", 1_000_000, 2_000_000)
def test_rows_are_selected_exactly(ticks, unit, start_us, end_us):
    """A row is taken when its time is at the start or later, and before the end, in any unit."""
    per_second = PER_SECOND[unit]
    expected = [
        tick
        for tick in ticks
        if tick is not None
        and (start_us is None or tick * 10**6 >= start_us * per_second)
        and (end_us is None or tick * 10**6 < end_us * per_second)
    ]

    selected = EventTimes(start_us, end_us).select(rows_of(ticks, unit))

    assert selected.column(0).view(pa.int64()).to_pylist() == expected


@given(st.lists(NEAR | INT64, min_size=1), UNITS, BOUND, BOUND)
@example([1, 2], "us", 2, 9)
@example([1_000, 2_999], "ns", 2, 9)
@example([3, 4], "us", 1, 4)
def test_a_batch_is_passed_over_only_when_it_has_no_such_row(ticks, unit, start_us, end_us):
    """What the notification says never hides a row that would be selected."""
    times = EventTimes(start_us, end_us)
    rows = rows_of(ticks, unit)
    least, greatest = timestamp_range_us(rows)
    notification = msgspec.structs.replace(BASE, min_timestamp_us=least, max_timestamp_us=greatest)

    if times.select(rows).num_rows:
        assert times.may_be_in(notification)


BASE = notify(seal(Sent("p", 0, records(b"v"))))


def test_a_batch_of_other_times_is_passed_over():
    """A Batch is read when its times meet those wanted; the end is not one of them."""
    sealed = seal(Sent("p", 0, records(b"a", b"b", times_us=[100, 200])))

    def read(start_us, end_us):
        return EventTimes(start_us, end_us).may_be_in(notify(sealed))

    assert read(200, 300)
    assert not read(201, 300)
    assert read(50, 101)
    assert not read(50, 100)
    assert read(None, 101)
    assert read(200, None)


def test_a_message_of_the_year_1970_hides_nothing():
    """Times of 0 also stand for unknown ones and are not in the range of a Batch: it is read."""
    sealed = seal(
        Sent("p", 0, records(b"a", times_us=[0])), Sent("p", 1, records(b"b", times_us=[500]))
    )

    assert notify(sealed).min_timestamp_us == 500
    assert EventTimes(0, 1).may_be_in(notify(sealed))
    assert not EventTimes(1, 500).may_be_in(notify(sealed))


def test_rows_without_a_time_are_in_no_range():
    """A null, a column that is no timestamp, and no column at all: none of them has a time."""
    times = EventTimes(None, 10)

    assert times.select(rows_of([None, 1, 11])).num_rows == 1
    assert times.select(pa.record_batch({"timestamp": ["then"]})).num_rows == 0
    assert times.select(pa.record_batch({"at": [1]})).num_rows == 0


def test_nothing_is_copied_where_all_is_wanted():
    """Rows that all have one of the times come back as they are."""
    rows = rows_of([1, 2, 3])

    assert EventTimes(1, 4).select(rows) is rows


def test_times_have_a_zone():
    """A time without a zone, text and an end before the start are refused; any zone will do."""
    tokyo = timezone(timedelta(hours=9))
    same = Selection(start_time=datetime(2025, 6, 30, 21, tzinfo=tokyo), end_time=NOON).times

    assert same[:2] == (NOON_US, NOON_US)
    assert Selection(start_time=NOON).times[:2] == (NOON_US, None)
    assert Selection().times is None
    with pytest.raises(ConfigError, match="2025-06-30T12:00:00 has no time zone"):
        Selection(end_time=datetime(2025, 6, 30, 12)).times  # noqa: B018, DTZ001
    with pytest.raises(ConfigError, match="'yesterday' is no time; give a datetime"):
        Selection(start_time="yesterday").times  # noqa: B018
    with pytest.raises(InvalidRequestError, match=r"end at 2025-06-30T12:00:00.00:00, before they"):
        Selection(start_time=NOON + timedelta(1), end_time=NOON).times  # noqa: B018


@pytest.mark.parametrize("selection", [Selection(start=1), Selection(end=0)])
def test_offsets_need_a_partition(selection):
    """Offsets are those of one partition."""
    with pytest.raises(InvalidRequestError, match="offsets of t are those of one partition"):
        selection.check("t")
