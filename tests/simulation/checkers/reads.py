"""What is read was sent, and was there to stay."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import NOWHERE, OK

_NEVER = np.iinfo(np.int64).max


def phantoms(log: Log) -> Iterator[Violation]:
    """Something was read that nobody has sent: other bytes than were sent, too."""
    sent = np.zeros(len(log.values), bool)
    sent[log.sent_value] = True
    for row in np.flatnonzero(~sent[log.value]):
        yield Violation("phantom", log.where(row))


def precommitted_reads(log: Log) -> Iterator[Violation]:
    """Something was read, or acked, before it was sure to stay; or read before it was sent."""
    history = log.history
    ends = np.array([poll.end_us for poll in history.polls], np.int64)
    starts = np.array([send.start_us for send in history.sends], np.int64)
    sent_us = np.full(len(log.values), _NEVER)
    np.minimum.at(sent_us, log.sent_value, starts[log.sent_by])
    known = sent_us[log.value] != _NEVER
    for row in np.flatnonzero(known & (ends[log.poll] < sent_us[log.value])):
        yield Violation("precommitted read", f"{log.where(row)} was read before it was sent")
    durable: dict[tuple[str, str, int], dict[int, int]] = defaultdict(dict)
    for each in reversed(history.durables):
        durable[each.topic, each.topic_id, each.partition][each.offset] = each.time_us
    if not durable:
        return
    times = [durable.get(key) for key in log.keys]
    for row in _first_rows(log, ends):
        known = times[log.key[row]]
        if known is not None and ends[log.poll[row]] < known.get(int(log.offset[row]), _NEVER):
            yield Violation("precommitted read", f"{log.where(row)} was not durable")
    for send in history.sends:
        if send.outcome != OK or send.acks != "all" or send.offset == NOWHERE:
            continue
        known = durable.get((send.topic, send.topic_id, send.partition))
        if known is not None and (send.end_us or 0) < known.get(send.offset, _NEVER):
            yield Violation("precommitted ack", f"{send.name} was acked and was not durable")


def _first_rows(log: Log, ends: np.ndarray) -> np.ndarray:
    """Of each Batch, the row that was read first."""
    order = np.lexsort((ends[log.poll], log.offset, log.key))
    key, offset = log.key[order], log.offset[order]
    new = np.ones(len(order), bool)
    new[1:] = (key[1:] != key[:-1]) | (offset[1:] != offset[:-1])
    return order[new]
