"""Reports that wait to be delivered: nothing said twice, nothing forgotten, memory bounded."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.audit import reporter
from memq.client.audit.counters import ProducedCounters
from memq.client.audit.reporter import ReportBacklog
from memq.client.producer.accumulator import SealedMessage
from memq.client.producer.delivery import Delivery, StoredAt
from memq.client.producer.state_machine import NamedMessage, StateMachineOptions, WritePartition
from memq.core.audit import reports as audit
from memq.core.audit.reports import (
    REPORT_VERSION,
    ProducedReport,
    SequenceRun,
    decode_reports,
    encode_report,
    encode_reports,
)
from memq.errors import DeliveryTimeoutError

OPTIONS = StateMachineOptions(
    topic="t",
    incarnation="0" * 16,
    producer_id="p",
    epoch=0,
    acks=-1,
    ordered=False,
    fixed_partitions=False,
    max_in_flight=1,
    delivery_timeout_s=1,
    answer_timeout_s=1,
)
ROOM = 1 << 20


def report(first, last, *, failed=(), write_partition=0, **fields):
    values = {
        "version": REPORT_VERSION,
        "topic": "t",
        "write_partition": write_partition,
        "producer_id": "p",
        "epoch": 0,
        "first": first,
        "last": last,
        "records": 1,
        "size_bytes": 1,
        "crc_sum": 1,
        "failed": [SequenceRun(*run) for run in failed],
        "window_start_ms": first,
        "window_end_ms": last,
    }
    return ProducedReport(**(values | fields))


class Producer:
    """Submits and settles Messages in any order, and remembers what became of them."""

    def __init__(self, write_partitions):
        self.counters = ProducedCounters(OPTIONS, "", now_ms=lambda: 1)
        self.partitions = [WritePartition(number, "") for number in range(write_partitions)]
        self.open = []
        self.sealed = defaultdict(dict)  # write partition -> sequence -> message
        self.failed = set()

    def seal(self, number):
        partition = self.partitions[number]
        sequence = partition.next_sequence
        partition.next_sequence += 1
        crc = (number * 1_000 + sequence) * 2_654_435_761 % 2**32
        body = pa.py_buffer(bytes(sequence + 1))
        message = SealedMessage(body, crc, "s", sequence + 1, 0, 0, 0.0, Delivery())
        entry = NamedMessage(message, partition, sequence, 0.0)
        self.sealed[number][sequence] = message
        self.counters.submitted(entry)
        self.open.append(entry)

    def settle(self, place, delivered):
        entry = self.open.pop(place % len(self.open))
        if not delivered:
            self.failed.add((entry.partition.number, entry.sequence))
        stored = StoredAt("t", 0, 0, "b", entry.partition.number, entry.sequence, duplicate=False)
        self.counters.settled(entry, stored if delivered else DeliveryTimeoutError("late"))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("seal"), st.integers(0, 2)),
        st.tuples(st.just("settle"), st.tuples(st.integers(0, 99), st.booleans())),
        st.tuples(st.just("report"), st.sampled_from(["delivered", "failed"])),
    ),
    max_size=120,
)


@given(steps=steps, room=st.sampled_from([300, 600, ROOM]))
def test_delivered_reports_cover_each_sequence_once(steps, room):
    """However Messages are settled and reports fail, each sequence ends up in just one report,
    whose sums are those of its Messages.
    """
    producer, backlog, delivered = Producer(3), ReportBacklog(), []

    def send(outcome):
        backlog.add(producer.counters.take_reports())
        while taken := backlog.take(room):
            if outcome == "failed":
                backlog.put_back(taken)
                return
            delivered.extend(
                report for _, value in encode_reports(taken) for report in decode_reports(value)
            )

    for step, argument in steps:
        if step == "seal":
            producer.seal(argument)
        elif step == "settle" and producer.open:
            producer.settle(*argument)
        elif step == "report":
            send(argument)
            assert len(backlog._waiting) <= 3
            assert all(len(queue) <= 1 for queue in backlog._waiting.values())
    while producer.open:
        producer.settle(0, delivered=True)
    send("delivered")

    assert backlog.messages == backlog.dropped_messages == 0
    assert backlog._weight == 0
    ends = defaultdict(int)
    for each in delivered:
        number = each.write_partition
        assert each.first == ends[number]
        ends[number] = each.last + 1
        failed = {s for first, last in each.failed for s in range(first, last + 1)}
        assert failed == {
            s for s in range(each.first, each.last + 1) if (number, s) in producer.failed
        }
        messages = [
            producer.sealed[number][s] for s in range(each.first, each.last + 1) if s not in failed
        ]
        assert each.records == sum(message.records for message in messages)
        assert each.size_bytes == sum(message.size_bytes for message in messages)
        assert each.crc_sum == sum(message.crc32c for message in messages) % 2**64
    assert ends == {number: len(sealed) for number, sealed in producer.sealed.items()}


def test_waiting_reports_are_joined():
    """Reports that follow each other become one; failed runs that touch become one as well."""
    backlog = ReportBacklog()
    backlog.add([report(0, 4, failed=[(1, 1), (4, 4)]), report(5, 9, failed=[(5, 6)])])
    (joined,) = backlog.take(ROOM)
    assert joined == report(
        0,
        9,
        failed=[(1, 1), (4, 6)],
        records=2,
        size_bytes=2,
        crc_sum=2,
        window_start_ms=0,
        window_end_ms=9,
    )
    assert backlog.take(ROOM) == []


def test_crc_sums_wrap_around():
    """The sum of a joined report stays within 64 bits."""
    backlog = ReportBacklog()
    backlog.add([report(0, 0, crc_sum=2**64 - 1), report(1, 1, crc_sum=3)])
    assert backlog.take(ROOM)[0].crc_sum == 2


def test_returned_reports_come_before_newer_ones():
    """What was not delivered is sent first, joined to what came meanwhile."""
    backlog = ReportBacklog()
    backlog.add([report(0, 4), report(0, 0, write_partition=1)])
    taken = backlog.take(ROOM)
    backlog.add([report(5, 9)])
    backlog.put_back(taken)
    found = [(each.write_partition, each.first, each.last) for each in backlog.take(ROOM)]
    assert sorted(found) == [(0, 0, 9), (1, 0, 0)]
    assert backlog._weight == 0


def test_reports_with_a_gap_between_them_stay_apart():
    """A report that was dropped leaves a gap, which no other report may cover."""
    backlog = ReportBacklog()
    backlog.add([report(0, 4), report(6, 9)])
    assert [(each.first, each.last) for each in backlog.take(ROOM)] == [(0, 4), (6, 9)]


@pytest.mark.parametrize(
    ("limit", "value", "second"),
    [
        ("MAX_REPORT_MESSAGES", 9, report(5, 9)),
        ("MAX_FAILED_RUNS", 1, report(5, 9, failed=[(6, 6)])),
    ],
)
def test_reports_are_not_joined_beyond_what_a_reader_takes(monkeypatch, limit, value, second):
    """A joined report keeps to the limits of a report."""
    monkeypatch.setattr(audit, limit, value)
    backlog = ReportBacklog()
    backlog.add([report(0, 4, failed=[(1, 1)]), second])
    assert [each.first for each in backlog.take(ROOM)] == [0, 5]


def test_oldest_report_is_dropped_when_too_much_waits(monkeypatch):
    """At the bound the oldest report goes, and its Messages are counted."""
    monkeypatch.setattr(audit, "MAX_FAILED_RUNS", 1)
    monkeypatch.setattr(reporter, "MAX_WEIGHT", 5)
    backlog = ReportBacklog()
    backlog.add([report(at, at + 4, failed=[(at, at)]) for at in (0, 5, 10)])
    assert backlog.dropped_messages == 5
    assert [each.first for each in backlog.take(ROOM)] == [5, 10]
    assert backlog._weight == 0


def test_messages_of_reports_keep_to_their_size():
    """Reports are handed out in Messages of the size asked for, the rest comes later."""
    backlog = ReportBacklog()
    backlog.add([report(0, 0, write_partition=number) for number in range(5)])
    size = len(encode_report(backlog.take(ROOM)[0]))
    backlog.add([report(0, 0, write_partition=number) for number in range(5)])
    assert [len(backlog.take(2 * size + 1)) for _ in range(4)] == [2, 2, 1, 0]


def test_report_that_fits_no_message_is_dropped():
    """A report too large for any Message does not keep the others back."""
    backlog = ReportBacklog()
    backlog.add([report(0, 6, client="x" * 1_000), report(0, 0, write_partition=1)])
    assert [each.write_partition for each in backlog.take(900)] == [1]
    assert backlog.dropped_messages == 7


def test_state_shows():
    """A backlog says how much it holds."""
    backlog = ReportBacklog()
    backlog.add([report(0, 4), report(0, 0, write_partition=1)])
    assert repr(backlog) == "<ReportBacklog [2 reports over 6 Messages]>"
