"""The planner's decisions: ranges meet, whatever happens between two plans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.planning.ranges import (
    MAX_OFFSET,
    MAX_PARTITION,
    UNBOUNDED,
    Limits,
    cut,
    finish,
    parse_key,
    range_key,
)
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError
from tests.unit.airflow.fakes import published

CREATED_MS = 1_700_000_000_000
TOPIC_ID = "0123456789abcdef"

limits = st.builds(
    Limits,
    max_offsets=st.integers(1, 20),
    max_bytes=st.integers(1, 500),
    max_records=st.integers(1, 50),
    max_age_ms=st.integers(0, 50),
    linger_ms=st.integers(0, 40),
    min_bytes=st.integers(0, 200),
    longest_ms=st.integers(1, 60),
    max_ranges=st.integers(1, 5),
)


def batches(start: int, end: int) -> list:
    """Batches of a busy partition; every one differs."""
    return [published(o, CREATED_MS + 3 * o, 7 * o % 90 + 1, o % 9) for o in range(start, end)]


def planned(
    start: int,
    found: list,
    limits: Limits,
    now_ms: int = CREATED_MS,
    partition: int = 0,
    *,
    held: bool = False,
) -> list:
    offsets = OffsetRange(partition, start, UNBOUNDED)
    return finish([cut(offsets, found, limits)], limits, now_ms, held=held).ranges


# -- keys -----------------------------------------------------------------------------------


@given(st.integers(0, MAX_PARTITION - 1), st.integers(0, MAX_OFFSET - 2), st.data())
def test_a_key_names_its_range(partition, start, data):
    """What is made of a key is the range that it was made of, and keys sort as ranges do."""
    end = data.draw(st.integers(start + 1, MAX_OFFSET - 1))
    for topic_id in ("", TOPIC_ID):
        of = OffsetRange(partition, start, end, topic_id)

        assert parse_key(range_key(of)) == of
        assert range_key(of) < range_key(of._replace(partition=partition + 1))
        assert range_key(of) < range_key(of._replace(end=end + 1))


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "0:5-9",
        "00000:000000000005-000000000005",
        "00000:000000000009-000000000005",
        "00000:000000000005-000000000009@",
        "00000:000000000005-000000000009@x",
    ],
)
def test_what_is_no_key_is_refused(key):
    """A partition key of something else, and an empty range, are errors that show it."""
    with pytest.raises(ConfigError, match=r"no range|empty"):
        parse_key(key)


# -- cutting --------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(0, 80), limits, st.integers(0, 400))
def test_ranges_meet_and_fit(start, length, limits, now):
    """Ranges begin where the last one ended, within all limits unless they hold one Batch."""
    ranges = planned(start, batches(start, start + length), limits, CREATED_MS + now)

    assert len(ranges) <= limits.max_ranges
    expected = start
    for each in ranges:
        assert each.range.start == expected
        assert each.batches == each.range.size > 0
        assert each.fits(limits) or each.batches == 1
        expected = each.range.end


@given(st.integers(0, 50), st.integers(1, 80), limits)
def test_a_range_is_as_large_as_it_may_be(start, length, limits):
    """A range is only cut when one more Batch would not fit."""
    found = batches(start, start + length)
    ranges = planned(
        start, found, limits._replace(max_ranges=UNBOUNDED, linger_ms=0), 2 * CREATED_MS
    )

    assert ranges[-1].range.end == start + length
    for each in ranges[:-1]:
        assert not each.with_batch(found[each.range.end - start]).fits(limits)


def test_gaps_in_offsets_belong_to_a_range():
    """Offsets that the queue left out, as Kafka's does, are in the range that follows them."""
    found = [published(o, CREATED_MS, 10, 1) for o in (3, 4, 9, 20)]
    ranges = planned(0, found, Limits(max_offsets=2))

    assert [each.range for each in ranges] == [OffsetRange(0, 0, 5), OffsetRange(0, 5, 21)]
    assert [each.batches for each in ranges] == [2, 2]


LINGER = Limits(max_offsets=5, linger_ms=1000)
ENOUGH = Limits(max_bytes=30, linger_ms=10_000, min_bytes=20)
OLD = Limits(linger_ms=10_000, min_bytes=99, longest_ms=500)


@pytest.mark.parametrize(
    ("limits", "held", "age_ms", "expected"),
    [
        (LINGER, False, 999, 0),
        (LINGER, False, 1000, 1),
        (Limits(max_offsets=2, linger_ms=10_000), False, 0, 1),
        (Limits(max_bytes=20, linger_ms=10_000), False, 0, 1),
        (Limits(max_records=2, linger_ms=10_000), False, 0, 1),
        (ENOUGH, False, 0, 1),
        (ENOUGH, True, 0, 0),
        (ENOUGH._replace(min_bytes=21), False, 0, 0),
        (OLD, False, 499, 0),
        (OLD, False, 500, 1),
        (OLD, True, 499, 0),
        (OLD, True, 500, 1),
        (Limits(), False, -60_000, 1),
    ],
)
def test_a_small_tail_waits_for_more(limits, held, age_ms, expected):
    """Until its first Batch has lingered, it is full or large enough, or retention comes near.

    What is large enough waits too while enough is planned; no clock that is slow holds it back.
    """
    found = [published(0, CREATED_MS, 10, 1), published(1, CREATED_MS + 400, 10, 1)]

    assert len(planned(0, found, limits, CREATED_MS + age_ms, held=held)) == expected


def test_tails_that_wait_go_together():
    """One wait makes one range of each partition: the oldest takes the others along."""
    found = [[published(0, CREATED_MS + 900 * p, 10, partition=p)] for p in range(2)]
    cuts = [
        cut(OffsetRange(p, 0, UNBOUNDED), each, Limits()) for p, each in enumerate([*found, []])
    ]
    limits = Limits(linger_ms=1000)

    early = finish(cuts, limits, CREATED_MS + 999, held=False)
    assert (early.ranges, early.due_ms) == ([], CREATED_MS + 1000)
    assert [each.range.partition for each in early.waiting] == [0, 1]
    plan = finish(cuts, limits, CREATED_MS + 1000, held=False)
    assert [each.range.partition for each in plan.ranges] == [0, 1]
    assert plan.waiting == []
