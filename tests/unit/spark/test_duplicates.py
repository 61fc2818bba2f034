"""Names that were seen before: exact, bounded, and forgotten in time."""

from __future__ import annotations

import msgspec

from memq.client.duplicates import MessageNames
from memq.core.format.batch import ProducerRun
from memq.core.notification.notification import PublishedBatch
from memq.spark.duplicates import NameHistory
from tests.unit.client.batches import Sent, notify, records, seal

BASE = notify(seal(Sent("p", 0, records(b"v"))))


def notification(*runs, write_partition=0):
    """A notification of some runs, each a producer id and its first and last sequence."""
    return msgspec.structs.replace(
        BASE,
        write_partition=write_partition,
        producers=[ProducerRun(name, 0, first, last, 1, 0) for name, first, last in runs],
    )


def known(names, batch):
    """Sequences of a Batch whose names are known, by producer."""
    return {
        (sender[1], sequence)
        for sender, (start, end) in names.intersection(batch)
        for sequence in range(start, end)
    }


def test_a_message_is_known_by_its_whole_name():
    """A name is write partition, producer, epoch and sequence; a run may be partly known."""
    names = MessageNames()
    for each in (notification(("p", 0, 4)), notification(("q", 0, 9))):
        names.add_batch(each, MessageNames())

    assert not known(names, notification(("p", 5, 9)))
    assert not known(names, notification(("p", 0, 9), write_partition=1))
    assert known(names, notification(("p", 3, 9), ("r", 0, 0), ("q", 9, 10))) == {
        ("p", 3),
        ("p", 4),
        ("q", 9),
    }


def test_a_steady_producer_costs_one_interval():
    """Runs that follow each other merge, in whatever order they are seen."""
    names = MessageNames()
    for start in (10, 0, 30, 20):
        names.add_batch(notification(("p", start, start + 9)), MessageNames())

    assert repr(names) == "<MessageNames [1 senders, 1 intervals]>"


def test_memory_is_bounded():
    """Past the limit the sender not seen for longest is forgotten, and that is said."""
    names = MessageNames(max_intervals=3)
    for name in "abcd":
        names.add_batch(notification((name, 0, 0)), MessageNames())

    assert names.forgotten == 1
    assert not known(names, notification(("a", 0, 0)))


def test_only_names_known_before_are_noted():
    """The history notes the Messages whose names it has seen before, and no others."""
    history, noted = NameHistory(), MessageNames()
    for runs in ([("p", 0, 4)], [("p", 5, 9)], [("p", 8, 12), ("q", 0, 0)]):
        history.add(PublishedBatch(0, 0, 0, notification(*runs)), noted)

    assert known(noted, notification(("p", 0, 20), ("q", 0, 9))) == {("p", 8), ("p", 9)}


def test_history_forgets_what_is_older_than_twice_its_window():
    """A name is known within the window, and forgotten after twice that time at the latest."""
    history = NameHistory(window_ms=100)

    def known_at(time_ms):
        names = MessageNames()
        history.add(PublishedBatch(0, 0, time_ms, notification(("p", 7, 7))), names)
        return bool(names)

    def pass_by(time_ms):
        batch = notification(("other", time_ms, time_ms))
        history.add(PublishedBatch(0, 0, time_ms, batch), MessageNames())

    assert not known_at(0)
    assert known_at(90)
    pass_by(195)
    assert known_at(190)
    pass_by(400)
    pass_by(501)
    assert not known_at(502)
