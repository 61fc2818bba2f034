"""What a backfill cuts, and what it keeps of it."""

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.planning.backfill import uncut
from memq.core.ranges import OffsetRange

LIFE = "a" * 16
stretches = st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 9)).map(
    lambda drawn: OffsetRange(drawn[0], drawn[1], drawn[1] + drawn[2], LIFE)
)


def offsets(ranges):
    return [(each.partition, offset) for each in ranges for offset in range(each.start, each.end)]


@given(stretches, st.lists(stretches, max_size=6), st.integers(0, 30))
def test_what_is_cut_is_wanted_old_and_new(wanted, known, origin):
    """Exactly the offsets that are wanted, lie before the first plan and are in no known range."""
    found = offsets(uncut([wanted], known, {0: origin}))

    taken = set(offsets(known))
    expected = [
        each
        for each in offsets([wanted])
        if each not in taken and (each[0] != 0 or each[1] < origin)
    ]
    assert found == expected
