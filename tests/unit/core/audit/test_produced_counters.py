"""What a producer reports for the audit."""

from __future__ import annotations

import pytest

from memq.client.audit.counters import ProducedCounters
from memq.client.producer.accumulator import SealedMessage
from memq.client.producer.delivery import Delivery, StoredAt
from memq.client.producer.state_machine import NamedMessage, StateMachineOptions, WritePartition
from memq.core.audit.reports import REPORT_VERSION, ProducedReport
from memq.errors import DeliveryTimeoutError

ERROR = DeliveryTimeoutError("late")


class Counters(ProducedCounters):
    """Counts by a clock that the test sets."""

    def __init__(self, options):
        self.clock_ms = 1_000
        super().__init__(options, "client", now_ms=lambda: self.clock_ms)

    def take_reports_at(self, now_ms):
        self.clock_ms = now_ms
        return self.take_reports()


@pytest.fixture
def counters():
    options = StateMachineOptions(
        topic="events",
        incarnation="0" * 16,
        producer_id="p",
        epoch=2,
        acks=-1,
        ordered=False,
        fixed_partitions=False,
        max_in_flight=1,
        delivery_timeout_s=1.0,
        answer_timeout_s=1.0,
    )
    return Counters(options)


def stored(entry, *, duplicate=False):
    return StoredAt("events", 0, 0, "b", entry.partition.number, entry.sequence, duplicate)


def entry(sequence, *, records=10, crc=3, number=0, size=100):
    message = SealedMessage(b"x" * size, crc, "schema", records, 0, 0, 0.0, Delivery())
    return NamedMessage(message, WritePartition(number, "a:1"), sequence, 0.0)


def test_report_counts_what_was_settled(counters):
    """A report has the range, the counts and the CRC sum of the acked, and names the failed."""
    entries = [entry(sequence, crc=2**32 - 1) for sequence in range(5)]
    for one in entries:
        counters.submitted(one)
    for one in entries:
        counters.settled(one, ERROR if one.sequence in (1, 2, 4) else stored(one))
    assert counters.take_reports_at(2_000) == [
        ProducedReport(
            version=REPORT_VERSION,
            topic="events",
            write_partition=0,
            producer_id="p",
            epoch=2,
            first=0,
            last=4,
            records=20,
            size_bytes=200,
            crc_sum=2 * (2**32 - 1),
            failed=[(1, 2), (4, 4)],
            window_start_ms=1_000,
            window_end_ms=2_000,
            incarnation="0" * 16,
            client="client",
        )
    ]
    assert counters.take_reports_at(3_000) == []


def test_report_counts_what_had_been_published_before(counters):
    """Whoever audits must know that a Message may be older than the window."""
    for one in (entry(0), entry(1), entry(2)):
        counters.submitted(one)
        counters.settled(one, stored(one, duplicate=one.sequence > 0))
    (report,) = counters.take_reports_at(2_000)
    assert (report.duplicates, report.failed) == (2, [])


def test_window_is_reported_once_it_is_settled(counters):
    """A window with a Message on its way waits, and so do those after it; then all come."""
    first, second, third = entry(0), entry(1), entry(2)
    counters.submitted(first)
    counters.submitted(second)
    counters.settled(second, stored(second))
    assert counters.take_reports_at(2_000) == []
    counters.submitted(third)
    counters.settled(third, stored(third))
    assert counters.take_reports_at(3_000) == []
    assert repr(counters) == "<ProducedCounters p [2 windows not reported]>"
    counters.settled(first, ERROR)
    reports = counters.take_reports_at(4_000)
    ranges = [(report.first, report.last, report.failed) for report in reports]
    assert ranges == [(0, 1, [(0, 0)]), (2, 2, [])]
    assert [(r.window_start_ms, r.window_end_ms) for r in reports] == [
        (1_000, 2_000),
        (2_000, 3_000),
    ]


def test_write_partitions_are_reported_apart(counters):
    """Each write partition has its own sequences and its own report."""
    for number in (0, 1):
        one = entry(0, number=number)
        counters.submitted(one)
        counters.settled(one, stored(one))
    assert [report.write_partition for report in counters.take_reports_at(2_000)] == [0, 1]
