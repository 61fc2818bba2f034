"""What a group member and a producer report: all that was done, and nothing else."""

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.audit import counters as audit_counters
from memq.client.audit.counters import ConsumedCounters, ProducedCounters
from memq.client.audit.reporter import ReportBacklog
from memq.client.producer.accumulator import SealedMessage
from memq.client.producer.delivery import Delivery, StoredAt
from memq.client.producer.state_machine import NamedMessage, PartitionState
from memq.core.audit.reports import CRC_MODULUS
from memq.errors import DeliveryTimeoutError
from tests.unit.client.audit.test_reporter import OPTIONS
from tests.unit.core.audit.test_produced import report


class Entry(NamedTuple):
    """As much of an index entry as is counted."""

    crc32c: int


class Member:
    """A member that is handed Batches of two Messages with five LogMessages each."""

    def __init__(self):
        clock = itertools.count(1)
        self.woken = 0
        self.counters = ConsumedCounters(
            "t", "0" * 16, "g", "me", now_ms=lambda: next(clock), on_report=self.wake
        )

    def wake(self):
        self.woken += 1

    def read(self, *offsets, partition=0, start=None):
        for offset in offsets:
            self.counters.handed_out(
                partition,
                offset if start is None else start,
                offset + 1,
                records=5,
                entries=[Entry(offset), Entry(2**32 - 1)],
            )

    def reports(self):
        return self.counters.take_reports()


@pytest.fixture
def member():
    made = Member()
    made.counters.took_up(0, None)
    return made


STEPS = {
    "a first commit says where it began": ("r3 c4", [(3, 4, 0, True)]),
    "a group begins though nothing is read": ("c5 c5 r9 c10", [(5, 5, 0, True), (9, 10, 0, True)]),
    "it goes on where the group was": ("t2 r4 c5", [(2, 2, 0, False), (4, 5, 2, False)]),
    "a jump is told, and back is none": (
        "r3 r7 c8 r5 c6",
        [(3, 4, 0, True), (7, 8, 3, False), (5, 6, 0, False)],
    ),
    "a commit beyond what was read": (
        "r3 c9 c9 r9 c10",
        [(3, 4, 0, True), (9, 10, 5, False)],
    ),
    "what is not committed is nobody's": ("t3 r3 r4 r5 c5 g0 c6", [(3, 5, 0, False)]),
}


@pytest.mark.parametrize(("steps", "ranges"), STEPS.values(), ids=STEPS)
def test_members_report_what_they_commit(member, steps, ranges):
    """Each rule of the class, one by one: take up, read, commit, give up."""
    do = {
        "t": lambda at: member.counters.took_up(0, at),
        "r": member.read,
        "c": lambda at: member.counters.committed({0: at}),
        "g": lambda partition: member.counters.gave_up([partition]),
    }
    for step in steps.split():
        do[step[0]](int(step[1:]))
    reports = member.reports()
    assert [(each.start, each.end, each.skipped, each.began) for each in reports] == ranges
    assert not any(each.final for each in reports)
    assert member.woken >= len(reports)


def test_batches_that_wait_are_bounded(member, monkeypatch):
    """Past the bound the oldest are counted as one; nothing is lost when they are committed."""
    monkeypatch.setattr(audit_counters, "MAX_WAITING", 3)
    member.read(*range(10))
    assert "3 waiting" in repr(member.counters)
    member.counters.committed({0: 5})
    assert member.reports() == []
    member.counters.committed({0: 10})
    (report,) = member.reports()
    assert (report.start, report.end, report.batches, report.records) == (0, 10, 10, 50)


def test_batches_that_cannot_be_counted_as_one_are_given_up(member, monkeypatch):
    """They are in no report, which the audit calls unreported."""
    monkeypatch.setattr(audit_counters, "MAX_WAITING", 1)
    member.read(1, 5)
    member.counters.committed({0: 6})
    (report,) = member.reports()
    assert (report.start, report.end, report.skipped) == (5, 6, 3)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(1, 4)),
            st.tuples(st.just("seek"), st.integers(0, 30)),
            st.tuples(st.just("commit"), st.booleans()),
            st.tuples(st.just("report"), st.booleans()),
            st.tuples(st.just("move"), st.booleans()),
        ),
        max_size=40,
    )
)
def test_reports_are_what_was_committed(steps):
    """Whatever an application does, each Batch is reported as often as it was handed out and
    committed, with the right counts, however reports are joined on their way.
    """
    member, backlog = Member(), ReportBacklog()
    member.counters.took_up(0, 0)
    position, committed = 0, 0
    waiting, expected = [], []
    for action, value in steps:
        if action == "read":
            member.read(*range(position, position + value))
            waiting += range(position, position + value)
            position += value
        elif action == "seek":
            position = value
        elif action == "commit":
            committed = position
            member.counters.committed({0: position})
            while waiting and waiting[0] < position:
                expected.append(waiting.pop(0))
        elif action == "report":
            backlog.add(member.reports())
            if value:
                backlog.put_back(backlog.take(1 << 20))
        else:
            member.counters.gave_up([0])
            waiting, position = [], committed
            member.counters.took_up(0, committed)
    member.counters.gave_up([0])
    backlog.add(member.reports())
    reports = backlog.take(1 << 20)
    told = [offset for report in reports for offset in range(report.start, report.end)]
    assert told == expected
    for each in reports:
        offsets = range(each.start, each.end)
        assert (each.batches, each.records) == (len(offsets), 5 * len(offsets))
        assert each.crc_sum == sum(offset + 2**32 - 1 for offset in offsets) % CRC_MODULUS


# -- what a producer reports for the audit ------------------------------------------------------


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
    return Counters(OPTIONS)


def stored(entry, *, duplicate=False):
    return StoredAt("t", 0, 0, "b", entry.partition.number, entry.sequence, duplicate)


def entry(sequence, *, crc):
    message = SealedMessage(b"x" * 100, crc, "schema", 10, 0, 0, 0.0, Delivery())
    return NamedMessage(message, PartitionState(0, "a:1"), sequence, 0.0)


def test_window_is_reported_once_it_is_settled(counters):
    """With counts and the CRC sum of the acked, and the failed by name; later ones wait for it."""
    entries = [entry(sequence, crc=2**32 - 1) for sequence in range(6)]
    for one in entries[:5]:
        counters.submitted(one)
    for one in entries[1:5]:
        outcome = stored(one, duplicate=one.sequence == 3)
        counters.settled(one, outcome if one.sequence == 3 else ERROR)
    assert counters.take_reports_at(2_000) == []
    counters.submitted(entries[5])
    counters.settled(entries[5], stored(entries[5]))
    assert counters.take_reports_at(3_000) == []
    counters.settled(entries[0], stored(entries[0]))
    always = {"client": "client", "topic_id": OPTIONS.topic_id}
    first = {"records": 20, "size_bytes": 200, "crc_sum": 2 * (2**32 - 1), "duplicates": 1}
    second = {"records": 10, "size_bytes": 100, "crc_sum": 2**32 - 1}
    times = [{"window_start_ms": at, "window_end_ms": at + 1_000} for at in (1_000, 2_000)]
    assert counters.take_reports_at(4_000) == [
        report(0, 4, failed={1, 2, 4}, **first, **times[0], **always),
        report(5, 5, **second, **times[1], **always),
    ]
    assert counters.take_reports_at(5_000) == []
