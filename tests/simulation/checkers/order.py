"""What was sent in an order is read in it, where that is promised.

The LogMessages of a Message stand together in one Batch, in their order. In a topic with order
every producer's Messages appear in one read partition, in the order of their sequences. In a topic
without, Messages of a producer that sends one at a time appear in their order where they are in one
read partition; more is not promised.

What a producer places by key has one write partition for each key, so that with order the records
of a key stand in one read partition, as they were written.
"""

from collections.abc import Iterator

import numpy as np

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import OK


def nonmonotonic_sends_within(log: Log) -> Iterator[Violation]:
    """LogMessages of one Message are apart, or in another order."""
    if not len(log.key):
        return
    row = log.first_row[log.sent_value]
    a, b = row[:-1], row[1:]
    both = (log.sent_by[1:] == log.sent_by[:-1]) & (a >= 0) & (b >= 0)
    apart = (
        (log.key[a] != log.key[b])
        | (log.offset[a] != log.offset[b])
        | (log.position[a] + 1 != log.position[b])
    )
    for at in np.flatnonzero(both & apart):
        yield Violation(
            "non-monotonic send within", f"{log.where(a[at])} is followed by {log.where(b[at])}"
        )


def nonmonotonic_sends(log: Log) -> Iterator[Violation]:
    """A producer's later Message stands before an earlier one."""
    first_row, last_row = _rows_of_sends(log)
    read = np.flatnonzero(first_row >= 0)
    sends = log.history.sends
    numbers: dict[tuple, int] = {}
    of = np.array(
        [
            numbers.setdefault(
                (
                    sends[number].topic,
                    sends[number].topic_id,
                    sends[number].name[:3],
                    # Without order a producer is looked at in each read partition by itself.
                    -1 if sends[number].ordered else int(log.key[first_row[number]]),
                ),
                len(numbers),
            )
            for number in read
        ],
        np.int64,
    )
    sequence = np.array([sends[number].name.sequence for number in read], np.int64)
    order = np.lexsort((sequence, of))
    one, other = order[:-1], order[1:]
    follows = (of[one] == of[other]) & (sequence[one] != sequence[other])
    ends, starts = last_row[read[one]], first_row[read[other]]
    in_order = (log.key[ends] == log.key[starts]) & (log.place[ends] < log.place[starts])
    for at in np.flatnonzero(follows & ~in_order):
        before, after, a, b = sends[read[one[at]]], sends[read[other[at]]], ends[at], starts[at]
        if after.ordered:
            yield Violation("non-monotonic send", f"{log.where(b)} came after {log.where(a)}")
        elif before.max_in_flight == 1 and _followed(before, after):
            yield Violation(
                "non-monotonic send",
                f"{log.where(b)} came after {log.where(a)}, sent one at a time",
            )


def moved_keys(log: Log) -> Iterator[Violation]:
    """A producer has sent one key to two write partitions."""
    places: dict[tuple, int] = {}
    for send in log.history.sends:
        for key in send.keys:
            of = (send.topic, send.topic_id, send.name.producer_id, send.name.epoch, key)
            place = places.setdefault(of, send.name.write_partition)
            if place != send.name.write_partition:
                yield Violation(
                    "moved key",
                    f"{send.name.producer_id} sent key {key} to write partition {place} of "
                    f"{send.topic}, and then to {send.name.write_partition}",
                )


def _followed(before, after) -> bool:
    """Whether the later one was sent when the earlier one had been acked as new."""
    return (
        before.outcome == OK
        and not before.duplicate
        and before.end_us is not None
        and before.end_us <= after.start_us
    )


def _rows_of_sends(log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Of each send, the row of its first and of its last LogMessage that was read; -1 for none."""
    row = log.first_row[log.sent_value]
    there = np.flatnonzero(row >= 0)
    first = np.full(len(log.history.sends), -1)
    last = first.copy()
    first[log.sent_by[there[::-1]]] = row[there[::-1]]
    last[log.sent_by[there]] = row[there]
    return first, last
