"""What a stream tells the audit, whatever dies or does not answer: each offset, and none sooner."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit.reports import CRC_MODULUS
from memq.core.manifest import Totals
from memq.errors import UnavailableError
from memq.spark import stream_reports
from memq.spark.checkpoint import StreamPosition
from memq.spark.plan import Found
from memq.spark.stream_reports import REPORT_INTERVAL_S, StreamReports

BEGAN = {0: 3, 1: 0}


def totals(start, end):
    """What the Batches of some offsets hold: each another number of everything."""
    offsets = range(start, end)
    return Totals(
        batches=len(offsets),
        messages=sum(2 + each % 3 for each in offsets),
        records=sum(5 + each % 7 for each in offsets),
        crc_sum=sum(each * (CRC_MODULUS // 5) for each in offsets) % CRC_MODULUS,
    )


def counted(report):
    names = ("batches", "messages", "records", "crc_sum")
    return Totals(**{name: getattr(report, name) for name in names})


class Driver:
    """A query of one topic and its checkpoint, without the rows.

    Attributes:
        reports: that got through, and how far was committed when they did.
        tried_s: when the audit was told, or was tried to be.
    """

    def __init__(self, told=True, consumer="job"):
        self.now_s = 0.0
        self.consumer = consumer
        self.fails = False
        self.reports, self.tried_s = [], []
        start = {p: StreamPosition(at, at, at if told else None) for p, at in BEGAN.items()}
        self.start = self.end = start
        self.committed = {p: each.next for p, each in start.items()}
        self.begin()

    def begin(self):
        """A new process of the driver, which knows what the checkpoint has."""
        options = SimpleNamespace(
            consumer=self.consumer, bootstrap="b:1", token="t", subject="topic 't'"
        )
        clocks = SimpleNamespace(
            mono_s=lambda: self.now_s, wall_ms=lambda: round(self.now_s * 1000)
        )
        self.stream = StreamReports(options, clocks)
        self.plan()

    def plan(self):
        """Spark plans the micro-batch of the checkpoint, perhaps again."""
        self.find(self.start, self.end)

    def find(self, start, end):
        held = {
            p: found
            for p, each in end.items()
            if (found := totals(start[p].next if p in start else each.began, each.next)).batches
        }
        self.stream.plan("t", "a" * 16, start, end, Found([], held))

    def commit(self):
        """Spark asks for what comes after it: it is committed."""
        self.committed = {p: each.next for p, each in self.end.items()}
        again = self.stream.commit("t", self.end)
        if again is not None:
            self.find(self.end | again, self.end)
            assert self.stream.commit("t", self.end) is None

    def go_on(self, steps):
        """Commit, and plan the next micro-batch, of so many offsets of each read partition."""
        self.commit()
        after = {p: each._replace(next=each.next + steps[p]) for p, each in self.end.items()}
        self.stream.send(now=not any(steps))
        if any(steps):
            self.start, self.end = self.end, self.stream.told("t", after)
        self.plan()

    def report(self, bootstrap, reports, *, token, timeout_s):
        assert (bootstrap, token) == ("b:1", "t")
        assert timeout_s <= 10
        self.tried_s.append(self.now_s)
        if self.fails:
            raise UnavailableError("no audit")
        for each in reports:
            assert each.final
            assert each.end <= self.committed[each.partition], "told before it was committed"
            self.reports.append(each)

    def told(self, partition):
        return [each for each in self.reports if each.partition == partition]


@pytest.fixture
def driver(monkeypatch):
    def made(**options):
        running = Driver(**options)
        monkeypatch.setattr(stream_reports, "report_consumed", running.report)
        return running

    return made


@given(
    st.lists(
        st.tuples(st.sampled_from("gggggpkfnw"), st.integers(0, 2), st.integers(0, 2)), max_size=30
    )
)
def test_each_committed_offset_is_told(events):
    """With its exact counts, without a gap, and twice only where a driver was killed between."""
    driver, killed = Driver(), False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_reports, "report_consumed", driver.report)
        for what, first, second in events:
            if what == "g":
                driver.go_on((first, second))
            elif what == "p":
                driver.plan()
            elif what == "k":
                driver.begin()
                killed = True
            elif what == "w":
                driver.now_s += 6
            else:
                driver.fails = what == "f"
        driver.fails = False
        driver.go_on((0, 0))
    for partition, began in BEGAN.items():
        reached = began
        for each in driver.told(partition):
            assert each.start < each.end
            assert each.start <= reached if killed else each.start == reached
            assert counted(each) == totals(each.start, each.end)
            reached = max(reached, each.end)
        assert reached == driver.end[partition].next


def test_reports_are_joined(driver):
    """Micro-batches are told together, every ten seconds, and at once when there is no more."""
    running = driver()
    for _ in range(20):
        running.go_on((1, 0))
        running.now_s += 3

    assert running.tried_s == [3.0, 15.0, 27.0, 39.0, 51.0]
    assert [each.start for each in running.told(0)] == [3, 4, 8, 12, 16]
    assert running.told(1) == []
    running.go_on((0, 0))
    assert running.tried_s[-1] == 60.0 < 51.0 + REPORT_INTERVAL_S
    assert running.told(0)[-1].end == 23
    windows = [(each.window_start_ms, each.window_end_ms) for each in running.told(0)]
    assert windows[1] == (3_000, 15_000)


def test_an_audit_that_is_away_is_not_asked_all_the_time(driver):
    """What it was not told waits, as one report; it is tried as often as one that answers."""
    running = driver()
    running.fails = True
    for _ in range(20):
        running.go_on((1, 1))
        running.now_s += 3
    assert len(running.tried_s) == 5
    running.fails = False

    running.go_on((0, 0))
    running.go_on((0, 0))

    assert [(each.partition, each.start, each.end) for each in running.reports] == [
        (0, 3, 23),
        (1, 0, 20),
    ]


def test_a_stream_that_begins_to_report(driver):
    """What it had read before it was asked to is not told; a stream that is not asked tells nothing
    and keeps nothing of it in its checkpoint.
    """
    silent = driver(told=False, consumer=None)
    assert not silent.stream.wanted
    assert silent.stream.told("t", silent.start) == silent.start

    running = driver(told=False)
    assert running.stream.wanted
    running.start = running.end = {0: StreamPosition(3, 9)}
    running.begin()
    running.go_on((2, 0))
    running.go_on((0, 0))
    assert [(each.start, each.end) for each in running.reports] == [(9, 11)]
