"""Names that were seen before: exact for intervals, bounded, and forgotten in time."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from memq.core.format.batch import ProducerRun
from memq.spark.seen import History, Intervals, Names, Seen
from tests.unit.client.batches import Sent, notify, records, seal

BASE = notify(seal(Sent("p", 0, records(b"v"))))


def notification(*runs, write_partition=0):
    """A notification of some runs, each a producer id and its first and last sequence."""
    return msgspec.structs.replace(
        BASE,
        write_partition=write_partition,
        producers=[ProducerRun(name, 0, first, last, 1, 0) for name, first, last in runs],
    )


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=30)


@given(spans, st.integers(0, 60), st.integers(0, 8))
def test_intervals_are_a_set_of_numbers(added, first, length):
    """Intervals know what a set of the same numbers knows, merged as far as they can be."""
    intervals, numbers = Intervals(), set()
    for start, more in added:
        intervals.add(start, start + more)
        numbers.update(range(start, start + more + 1))
    last = first + length

    wanted = numbers & set(range(first, last + 1))
    assert intervals.meets(first, last) == bool(wanted)
    assert {n for a, b in intervals.common(first, last) for n in range(a, b + 1)} == wanted
    gaps = sum(number + 1 not in numbers for number in numbers)
    assert len(intervals) == gaps


def test_only_names_seen_before_are_noted():
    """A name is write partition, producer, epoch and sequence; a run may be partly known."""
    seen, names = Seen(), Names()
    for each in (notification(("p", 0, 4)), notification(("q", 0, 9))):
        seen.add(each)

    seen.compare(notification(("p", 5, 9)), names)
    seen.compare(notification(("p", 0, 9), write_partition=1), names)
    assert not names
    seen.compare(notification(("p", 4, 9)), names)

    assert names
    assert names.name_some_of(notification(("p", 2, 4)))
    assert not names.name_some_of(notification(("p", 5, 9)))
    assert not names.name_some_of(notification(("q", 4, 4)))


def test_a_steady_producer_costs_one_interval():
    """Runs that follow each other merge, in whatever order they are seen."""
    seen = Seen()
    for start in (10, 0, 30, 20):
        seen.add(notification(("p", start, start + 9)))

    assert repr(seen) == "<Seen [1 senders, 1 intervals]>"


def test_memory_is_bounded():
    """Past the limit the sender not seen for longest is forgotten, and that is said."""
    seen = Seen(max_intervals=3)
    for name in "abcd":
        seen.add(notification((name, 0, 0)))
    names = Names()
    seen.compare(notification(("a", 0, 0)), names)

    assert seen.forgotten == 1
    assert not names


def test_history_forgets_what_is_older_than_twice_its_window():
    """A name is known within the window, and forgotten after twice that time at the latest."""
    history = History(window_ms=100)

    def known_at(time_ms):
        names = Names()
        history.add(notification(("p", 7, 7)), time_ms, names)
        return bool(names)

    def pass_by(time_ms):
        history.add(notification(("other", time_ms, time_ms)), time_ms, Names())

    assert not known_at(0)
    assert known_at(90)
    pass_by(195)
    assert known_at(190)
    pass_by(400)
    pass_by(501)
    assert not known_at(502)
