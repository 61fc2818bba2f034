"""What was acked is there."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from tests.simulation.checkers.log import Log, shown
from tests.simulation.checkers.streams import streams_of
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import OK, Key


def lost_writes(log: Log) -> Iterator[Violation]:
    """Acked, or read in part; some reader went past where it is; and nobody has read it.

    So it is known to be missing, before anybody waits for it.
    """
    covered = _covered(log)
    for number in _unread_sends(log):
        at = log.stored_at(number)
        if at is None or log.excused(*at):
            continue
        key, offset = at
        starts, reaches = covered.get(key, ((), ()))
        before = int(np.searchsorted(starts, offset, side="right")) - 1
        if before >= 0 and offset < reaches[before]:
            send = log.history.sends[number]
            yield Violation(
                "lost write", f"{shown(send.name, send)}, at {key.partition}:{offset}, is not read"
            )


def unseen(log: Log) -> Iterator[Violation]:
    """Acked, and never read by anybody though the topic was read to its end."""
    drained: dict[tuple[str, str], int] = {}
    for each in log.history.drained:
        drained[each.topic, each.topic_id] = each.time_us
    removed = {(key.topic, key.topic_id) for key, _ in log.removed}
    for number in _unread_sends(log):
        send = log.history.sends[number]
        topic = send.topic, send.topic_id
        time_us = drained.get(topic)
        if time_us is None or send.end_us is None or send.end_us > time_us:
            continue
        at = log.stored_at(number)
        excused = topic in removed if at is None else log.excused(*at)
        if not excused and topic not in log.deleted:
            yield Violation("unseen", f"{shown(send.name, send)} was acked and never read")


def _unread_sends(log: Log) -> list[int]:
    """Messages that must be there and of which some LogMessage was not read."""
    sends = log.history.sends
    read = log.read_values[log.sent_value]
    part_read = np.zeros(len(sends), bool)
    part_read[log.sent_by[read]] = True
    return [
        int(number)
        for number in np.unique(log.sent_by[~read])
        if (sends[number].outcome == OK and sends[number].acks == "all") or part_read[number]
    ]


def _covered(log: Log) -> dict[Key, tuple[np.ndarray, np.ndarray]]:
    """Stretches of offsets that some reader went through, by key: where they begin, and how far
    those that begin there or before reach; the last offset of a stream is not whole.
    """
    spans: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    row, begins, _ = streams_of(log)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(row)) - 1 if len(first) else first
    for start, end in zip(row[first], row[last], strict=True):
        spans[log.keys[log.key[start]]].append((int(log.offset[start]), int(log.offset[end])))
    for poll in log.history.polls:
        for partition, begin, stop in poll.asked:
            spans[Key(poll.topic, poll.topic_id, partition)].append((begin, stop))
    result = {}
    for key, parts in spans.items():
        array = np.array(sorted(parts), np.int64)
        result[key] = array[:, 0], np.maximum.accumulate(array[:, 1])
    return result
