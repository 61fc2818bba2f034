"""What every part of a broker shares: warnings, scans of the queue, and what it promises."""

from types import SimpleNamespace

import pytest

from memq.broker.context import BrokerContext
from memq.core.queue import QueueEntry


class Queue:
    """A read partition with these offsets, of which so many come at a time."""

    def __init__(self, offsets, end, at_once):
        self.held, self.end, self.at_once = offsets, end, at_once

    async def offsets(self, _topic, _partition):
        return (self.held or [self.end])[0], self.end

    async def fetch(self, _topic, _partition, start, *, max_entries, max_bytes):
        found = [each for each in self.held if each >= start][: self.at_once]
        return [QueueEntry(each, b"%d" % each, each, each) for each in found]


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
    context = SimpleNamespace(queue=Queue(offsets, end, at_once))
    scan = BrokerContext.entries(context, "t", 3, *span)
    assert [each.offset async for each in scan] == expected
