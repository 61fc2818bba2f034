"""A place names one LogMessage for ever, and a LogMessage has one place."""

from collections.abc import Iterator

import numpy as np

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import NOWHERE, OK, Key


def inconsistent_offsets(log: Log) -> Iterator[Violation]:
    """Two readers found different LogMessages at one place."""
    for row, other in _pairs(log.place, log.value):
        yield Violation("inconsistent offsets", f"{log.where(row)}; and {log.where(other)}")


def duplicates(log: Log) -> Iterator[Violation]:
    """One LogMessage stands at two places, whichever read partitions they are in."""
    for row, other in _pairs(log.value, log.place):
        yield Violation("duplicate", f"{log.where(row)}; and {log.where(other)}")
    places: dict[tuple, tuple[int, int]] = {}
    for send in log.history.sends:
        if send.outcome != OK or send.duplicate or send.offset == NOWHERE:
            continue
        said = send.partition, send.offset
        before = places.setdefault((send.topic, send.topic_id, send.name), said)
        if before != said:
            yield Violation("duplicate", f"{send.name} was acked as new at {before} and at {said}")


def misplaced(log: Log) -> Iterator[Violation]:
    """An ack named another place than the one where it was read, or it went to another topic."""
    if not len(log.key):
        return
    sends = log.history.sends
    topics = {(key.topic, key.topic_id): number for number, key in enumerate(log.keys)}
    keys = {key: number for number, key in enumerate(log.keys)}
    topic_of_key = np.array([topics[key.topic, key.topic_id] for key in log.keys], np.int64)
    topic = np.array([topics.get((send.topic, send.topic_id), -1) for send in sends], np.int64)
    said_key = np.array(
        [
            keys.get(Key(send.topic, send.topic_id, send.partition), -1)
            if send.outcome == OK and send.offset != NOWHERE
            else -2
            for send in sends
        ],
        np.int64,
    )
    said_offset = np.array([send.offset for send in sends], np.int64)
    row = log.first_row[log.sent_value]
    send = log.sent_by
    read = row >= 0
    elsewhere = read & (topic_of_key[log.key[row]] != topic[send])
    for at in np.flatnonzero(elsewhere):
        one = sends[send[at]]
        known = one.topic_id or one.topic != log.keys[log.key[row[at]]].topic
        if known:
            yield Violation("misplaced", f"{log.where(row[at])} was sent to {one.topic!r}")
    other = (said_key[send] != log.key[row]) | (said_offset[send] != log.offset[row])
    for at in np.flatnonzero(read & ~elsewhere & (said_key[send] != -2) & other):
        one = sends[send[at]]
        said = f"{one.partition}:{one.offset}"
        yield Violation("misplaced", f"{log.where(row[at])}; its ack said {said}")


def _pairs(of: np.ndarray, differ: np.ndarray) -> Iterator[tuple[int, int]]:
    """Two rows of each that is the same in `of` and has several in `differ`."""
    order = np.lexsort((differ, of))
    same = of[order][1:] == of[order][:-1]
    other = differ[order][1:] != differ[order][:-1]
    for at in np.flatnonzero(same & other):
        yield int(order[at]), int(order[at + 1])
