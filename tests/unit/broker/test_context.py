"""What every part of a broker shares: warnings, scans of the queue, and what it promises."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from memq.broker import context as module
from memq.broker.context import BrokerContext, RateLimitedLog
from memq.core.clock import CLOCKS_DIFFER_MS
from memq.core.queue import QueueEntry
from memq.errors import ClosedError, CorruptDataError, UnavailableError


def test_a_warning_of_each_kind_is_told_once_a_second(caplog):
    """The next one says how many were left out since, and only of its own kind."""
    at = [50.0]
    warn = RateLimitedLog(logging.getLogger("memq.test"), lambda: at[0])
    for text in ("a1", "a2", "a3"):
        warn("a", text)
    warn("b", "b1")
    at[0] = 50.999
    warn("a", "a4")
    at[0] = 51.0
    warn("a", "a5")
    warn("a", "a6")
    warn("b", "b2")
    at[0] = 52.0
    warn("a", "a7")
    at[0] = 53.0
    warn("a", "a8")
    assert [each.getMessage() for each in caplog.records] == [
        "a1",
        "b1",
        "a5 (3 more like it)",
        "b2",
        "a7 (1 more like it)",
        "a8",
    ]


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


async def test_a_scan_ends_where_the_queue_ended_when_it_began():
    """What is published meanwhile is not part of it; each page is asked for from the last entry."""
    queue = Queue([2, 3, 4], 5)
    scan = scanning(queue).entries("t", 3, 2, at_once_bytes=77)
    first = await anext(scan)
    queue.held, queue.end = [2, 3, 4, 5, 6], 7
    assert [first.offset, *[each.offset async for each in scan]] == [2, 3, 4]
    assert queue.fetched == [(2, 77), (4, 77)]


def test_what_a_broker_of_a_cluster_allows_for():
    """Clocks that differ, and other brokers that serve what was forgotten a moment longer."""
    alone, beside = scanning(None, shared=False), scanning(None, shared=True)
    assert (alone.clocks_differ_ms, alone.forgotten_after_s) == (0, 0.0)
    assert beside.clocks_differ_ms == CLOCKS_DIFFER_MS
    assert beside.forgotten_after_s == 2 * module.START_S


def test_what_is_promised_needs_the_lease():
    """Who may have been taken over from promises nothing; who stops goes on with nothing long."""
    config = SimpleNamespace(broker_id="b", advertised="")
    held = scanning(None, config=config, leased=lambda: True, stopping=False)
    held.check_lease()
    held.check_not_stopping()
    held.leased, held.stopping = (lambda: False), True
    with pytest.raises(UnavailableError, match="broker b has not heard of the coordination"):
        held.check_lease()
    with pytest.raises(ClosedError):
        held.check_not_stopping()
