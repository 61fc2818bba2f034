"""What every part of a broker shares: warnings, scans of the queue, and what it promises."""

from __future__ import annotations

import pytest

from memq.broker import context as module
from memq.broker.context import BrokerContext
from memq.core.queue import QueueEntry
from memq.errors import CorruptDataError


class Queue:
    """A read partition with these offsets, of which so many come at a time."""

    def __init__(self, offsets, end, at_once=2):
        self.held, self.end, self.at_once = offsets, end, at_once
        self.fetched = []

    async def offsets(self, _topic, _partition):
        return (self.held or [self.end])[0], self.end

    async def offset_since(self, _topic, _partition, running_ms):
        return running_ms

    async def fetch(self, topic, partition, start, *, max_entries, max_bytes):
        assert (topic, partition, max_entries) == ("t", 3, module.SCAN_ENTRIES)
        self.fetched.append((start, max_bytes))
        if start == 666:
            raise CorruptDataError("damaged")
        found = [each for each in self.held if each >= start][: self.at_once]
        return [QueueEntry(each, b"%d" % each, each, each) for each in found]


def scanning(queue, **fields):
    """A context as far as a scan needs it."""
    made = object.__new__(BrokerContext)
    made.queue = queue
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def scanned(queue, *span):
    """The offsets that a scan gives."""
    return [each.offset async for each in scanning(queue).entries("t", 3, *span)]


@pytest.mark.parametrize("at_once", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("offsets", "end", "span", "expected"),
    [
        ([2, 3, 4, 5], 6, (2,), [2, 3, 4, 5]),
        ([2, 3, 4, 5], 6, (3,), [3, 4, 5]),
        ([2, 3, 4, 5], 6, (2, 5), [2, 3, 4]),
        ([2, 3, 4, 5], 6, (2, 2), []),
        ([2, 3, 4, 5], 6, (6,), []),
        ([2, 4, 7, 11], 12, (2,), [2, 4, 7, 11]),  # Kafka's offsets have gaps
        ([2, 4, 7, 11], 15, (2,), [2, 4, 7, 11]),  # at the end as well
        ([2, 4, 7, 11], 12, (2, 8), [2, 4, 7]),
        ([2, 4, 7, 11], 12, (2, 7), [2, 4]),
        ([2, 4, 7, 11], 12, (5, 7), []),
        ([], 9, (0,), []),
    ],
)
async def test_a_scan_gives_each_entry_of_its_span(offsets, end, span, expected, at_once):
    """However many come at a time, and wherever offsets have none."""
    assert await scanned(Queue(offsets, end, at_once), *span) == expected
