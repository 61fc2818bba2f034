"""What a group member reports: all that was committed, what it stepped over, and nothing else."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.audit import counters as audit_counters
from memq.client.audit.counters import ConsumedCounters
from memq.client.audit.reporter import ReportBacklog
from memq.core.audit.reports import CRC_MODULUS


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

    def ranges(self):
        return [(each.start, each.end, each.skipped, each.final) for each in self.reports()]


@pytest.fixture
def member():
    made = Member()
    made.counters.took_up(0, None)
    return made


def test_only_what_is_committed_is_reported(member):
    """Batches that wait for a commit are not told, and told once when it comes."""
    member.read(3, 4, 5)
    assert member.ranges() == []
    member.counters.committed({0: 5})
    assert member.ranges() == [(3, 5, 0, False)]
    assert member.ranges() == []
    member.counters.committed({0: 6})
    assert member.ranges() == [(5, 6, 0, False)]


def test_where_a_member_begins_is_told_at_once(member):
    """Before anything is committed after that; what it commits first says that it began there."""
    member.counters.took_up(1, 8)
    (taken,) = member.reports()
    assert (taken.partition, taken.start, taken.end, taken.began) == (1, 8, 8, False)
    member.read(3)
    assert (member.woken, member.reports()) == (1, [])
    member.counters.committed({0: 4})
    (first,) = member.reports()
    assert (first.start, first.end, first.began) == (3, 4, True)
    assert member.woken == 2


def test_where_a_group_begins_is_told_when_it_is_committed(member):
    """Though nothing may come to be read; and again when it begins elsewhere."""
    member.counters.committed({0: 5})
    member.counters.committed({0: 5})
    member.read(9)
    member.counters.committed({0: 10})
    reports = member.reports()
    assert [(each.start, each.end, each.began) for each in reports] == [(5, 5, True), (9, 10, True)]


def test_where_a_group_begins_is_told_once(member):
    """A member that commits without reading, again and again, has nothing new to say."""
    counters = member.counters
    counters.committed({0: 5})
    assert [each.began for each in counters.take_reports()] == [True]
    counters.committed({0: 5})
    assert counters.take_reports() == []
    counters.committed({0: 6})
    assert [each.start for each in counters.take_reports()] == [6]


def test_report_has_the_counts(member):
    """Batches, Messages, LogMessages and CRC sum are those of what was handed out."""
    member.read(3, 4)
    member.counters.committed({0: 5})
    (report,) = member.reports()
    assert (report.topic, report.consumer, report.partition) == ("t", "g", 0)
    assert (report.batches, report.messages, report.records) == (2, 4, 10)
    assert report.crc_sum == 3 + 4 + 2 * (2**32 - 1)
    assert (report.client, report.window_start_ms) == ("me", 1)
    assert report.window_end_ms > 1


def test_gap_in_the_numbering_belongs_to_the_batch_behind_it(member):
    """A queue that numbers with gaps leaves no hole in the report."""
    member.read(3)
    member.read(7, start=4)
    member.counters.committed({0: 8})
    assert member.ranges() == [(3, 8, 0, False)]


def test_jump_is_a_hole_and_is_told(member):
    """After a seek forward the report says how many offsets were stepped over; back is no jump."""
    member.read(3)
    member.read(7)
    member.counters.committed({0: 8})
    member.read(5)
    member.counters.committed({0: 6})
    assert member.ranges() == [(3, 4, 0, False), (7, 8, 3, False), (5, 6, 0, False)]


def test_member_goes_on_where_the_group_was(member):
    """What lies between the group's commit and the first Batch was stepped over."""
    member.counters.took_up(0, 2)
    member.read(4)
    member.counters.committed({0: 5})
    assert member.ranges() == [(2, 2, 0, False), (4, 5, 2, False)]


def test_member_that_gives_up_reports_the_rest(member):
    """What was not committed is nobody's; no report says it is the last, as the group may go on."""
    member.read(3, 4, 5)
    member.counters.committed({0: 5})
    member.counters.took_up(1, 8)
    member.counters.gave_up([0, 1, 2])
    assert member.ranges() == [(3, 5, 0, False), (8, 8, 0, False)]
    member.counters.committed({0: 6})
    assert member.ranges() == []


def test_commit_beyond_what_was_read_is_a_hole_and_is_told(member):
    """Who commits for Batches that it never had has stepped over them; once."""
    member.read(3)
    member.counters.committed({0: 9})
    member.counters.committed({0: 9})
    assert member.ranges() == [(3, 4, 0, False), (9, 9, 5, False)]
    member.read(9)
    member.counters.committed({0: 10})
    assert member.ranges() == [(9, 10, 0, False)]


def test_batches_that_wait_are_bounded(member, monkeypatch):
    """Past the bound the oldest are counted as one; nothing is lost when they are committed."""
    monkeypatch.setattr(audit_counters, "MAX_WAITING", 3)
    member.read(*range(10))
    assert "3 waiting" in repr(member.counters)
    member.counters.committed({0: 5})
    assert member.ranges() == []
    member.counters.committed({0: 10})
    (report,) = member.reports()
    assert (report.start, report.end, report.batches, report.records) == (0, 10, 10, 50)


def test_batches_that_cannot_be_counted_as_one_are_given_up(member, monkeypatch):
    """They are in no report, which the audit calls unreported."""
    monkeypatch.setattr(audit_counters, "MAX_WAITING", 1)
    member.read(1, 5)
    member.counters.committed({0: 6})
    member.counters.gave_up([0])
    assert member.ranges() == [(5, 6, 3, False)]


def test_reports_join_while_they_wait(member):
    """In the backlog one report is left of many, also of a partition that was given up between."""
    backlog = ReportBacklog()
    for offset in range(5):
        member.read(offset)
        member.counters.committed({0: offset + 1})
        backlog.add(member.reports())
    member.counters.gave_up([0])
    backlog.add(member.reports())
    member.counters.took_up(0, 5)
    member.read(5)
    member.counters.committed({0: 6})
    backlog.add(member.reports())
    taken = backlog.take(1 << 20)
    assert [(each.start, each.end, each.final) for each in taken] == [(0, 6, False)]
    assert (taken[0].batches, taken[0].messages, taken[0].records) == (6, 12, 30)


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
    for report in reports:
        offsets = range(report.start, report.end)
        assert (report.batches, report.records) == (len(offsets), 5 * len(offsets))
        assert report.crc_sum == sum(offset + 2**32 - 1 for offset in offsets) % CRC_MODULUS
