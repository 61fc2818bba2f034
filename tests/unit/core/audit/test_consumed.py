"""What was consumed of what is stored: every history against a plain model of the rules."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit import consumed
from memq.core.audit.consumed import ConsumedReconciliation
from memq.core.audit.reports import CRC_MODULUS, ConsumedReport, ReaderName, StoredReport
from memq.core.audit.result import Verdict
from memq.core.format.batch import ProducerRun
from memq.core.notification import PublishedBatch
from memq.core.ranges import OffsetRange
from tests.unit.reading.batches import Sent, notify, seal
from tests.unit.reading.batches import records as rows

END = 30  # of the offsets in the histories
DUE_MS = 50
PUBLISHED_MS = 30  # the Batch at offset 0, and each other one a millisecond after the one before
BASE = notify(seal(Sent("p", 0, rows(b"v"))))
FINDINGS = ("consumed", "mismatched", "missed", "unreported", "behind")


def notification(offset):
    """The Batch at an offset: producer `a` in each, `b` in every third; figures of its own."""
    runs = [ProducerRun("a", 0, 2 * offset, 2 * offset + 1, 10 + offset, 2**63 + offset)]
    if offset % 3 == 0:
        runs.append(ProducerRun("b", 1, offset, offset, 1, offset))
    return msgspec.structs.replace(
        BASE,
        write_partition=offset % 2,
        batch_id=f"batch-{offset}",
        messages=sum(run.messages for run in runs),
        records=sum(run.records for run in runs),
        producers=runs,
    )


def published(offset):
    return PublishedBatch(0, offset, PUBLISHED_MS + offset, notification(offset))


def told(start, end, *, stored_ms=0, offsets=range(END), consumer="c", **fields):
    """A report that is right about the Batches at some offsets."""
    there = [notification(offset) for offset in offsets if start <= offset < end]
    values = {
        "topic": "t",
        "consumer": consumer,
        "partition": 0,
        "start": start,
        "end": end,
        "batches": len(there),
        "messages": sum(each.messages for each in there),
        "records": sum(each.records for each in there),
        "crc_sum": sum(run.crc_sum for each in there for run in each.producers) % CRC_MODULUS,
        "window_start_ms": 0,
        "window_end_ms": 0,
    }
    return StoredReport(ConsumedReport(**(values | fields)), stored_ms)


class Audit:
    """Goes through the Notifications as the client does."""

    def __init__(
        self,
        reports,
        *,
        offsets=range(END),
        window=(0, END),
        retained=(0, END),
        named=(),
        committed=0,
        unreadable=(),
    ):
        retained = OffsetRange(0, *retained)
        self.offsets = [offset for offset in offsets if retained.start <= offset < retained.end]
        self.window = OffsetRange(0, *window)
        check = ConsumedReconciliation(
            "t",
            reports,
            named=named,
            retained=[retained],
            window=[self.window],
            committed={ReaderName("c", 0): committed},
            due_ms=DUE_MS,
        )
        self.compared = self._at(check.to_compare())
        for offset in self.compared:
            if offset in unreadable:
                check.cannot_compare(0, offset)
            else:
                check.compare(published(offset))
        for offset in self._at(check.to_judge()):
            if self.within(offset) and offset not in unreadable:
                check.judge(published(offset))
        self.result = check.result()

    def _at(self, ranges):
        return [
            offset for each in ranges for offset in self.offsets if each.start <= offset < each.end
        ]

    def within(self, offset):
        return self.window.start <= offset < self.window.end

    def found(self, consumer="c"):
        """LogMessages of every finding that there is."""
        (audit,) = [each for each in self.result if each.consumer == consumer]
        totals = {finding: audit.total(finding).records for finding in ("stored", *FINDINGS)}
        return {finding: count for finding, count in totals.items() if count}


def records(*offsets):
    """LogMessages at some offsets."""
    return sum(notification(offset).records for offset in offsets)


# -- the rules, one by one ------------------------------------------------------------------


BEGUN = told(10, 10, began=True, final=False, stored_ms=1)
KILLED = told(0, 3, final=False)
PUT = told(3, 3, final=False, began=True)
REST = told(5, END)
RULES = {
    "sent again, the shorter one last": ([told(0, 20), told(0, 7), told(20, END)], "c30"),
    "ranges in any order": ([told(20, END), told(0, 7), told(7, 20)], "c30"),
    "a job begins in the middle": ([told(25, 28)], ".25 c3 b2"),
    "a member was killed before it told": ([KILLED, REST], "c3 u2 c25"),
    "a group begins in the middle": ([BEGUN], ".10 b20"),
    "the lowest report is not the first": ([told(10, END, final=False)], "u10 c20"),
    "it is young": ([told(10, END, final=False, stored_ms=DUE_MS + 1)], "b10 c20"),
    "a group seeks before it reads": ([PUT, told(5, END, began=True)], ".3 u2 c25"),
    "it goes back": ([BEGUN, told(3, 6, final=False, began=True)], ".3 c3 u4 b20"),
    "a jump is missed": ([KILLED, told(7, END, skipped=2)], "c3 u2 m2 c23"),
    "others read what is jumped over": ([told(0, 10), told(10, END, skipped=5)], "c30"),
    "a gap that is due": ([told(0, 3), told(5, END, stored_ms=DUE_MS)], "c3 m2 c25"),
    "a gap that is not": ([told(0, 3), told(5, END, stored_ms=DUE_MS + 1)], "c3 b2 c25"),
}


@pytest.mark.parametrize(("reports", "picture"), RULES.values(), ids=RULES)
def test_rules_one_by_one(reports, picture):
    """Each rule of the module's theory: what so many offsets after the others come to."""
    expected, offset = Counter(), 0
    for each in picture.split():
        for _ in range(int(each[1:])):
            expected[each[0]] += records(offset)
            offset += 1
    assert offset == END
    del expected["."]
    found = Audit(reports).found()
    assert found.pop("stored") == sum(found.values())
    assert {finding[0]: count for finding, count in found.items()} == expected


def test_what_is_only_stepped_over_makes_no_consumer():
    """A group that reports nothing itself is not judged by what an administrator says of it."""
    skip = told(5, 5, skipped=3, final=False, moved=True, window_start_ms=1)
    put = told(9, 9, began=True, final=False, moved=True)
    assert Audit([skip, put], committed=20).result == []
    (named,) = Audit([skip], named=["c"]).result
    assert (named.reports, named.verdict) == (0, Verdict.PARTLY)
    read = [told(0, 2, final=False), told(5, END)]
    assert Audit([*read, skip]).found()["missed"] == records(2, 3, 4)


def test_report_that_differs_is_named_until_a_right_one_covers_it():
    """What only a wrong report covers is mismatched, and a sentence says how it differs."""
    reports = [told(0, 5), told(5, 9, records=1), told(9, END)]
    audit = Audit(reports)
    assert audit.compared == list(range(END))
    assert audit.found()["mismatched"] == records(5, 6, 7, 8)
    (line,) = audit.result[0].mismatches
    assert "t/0 offsets 5 to 8: 1 LogMessages where" in line
    (settled,) = Audit([*reports, told(5, 9, window_start_ms=9)]).result
    assert (settled.mismatches, settled.verdict) == ([], Verdict.CLEAN)


@pytest.mark.parametrize("unreadable", [2, 3, 9])
def test_a_notification_that_cannot_be_read_vouches_for_no_other_report(unreadable):
    """A wrong report over other offsets of the same partition is found."""
    audit = Audit([told(0, 3), told(3, 9, records=1), told(9, END)], unreadable=[unreadable])
    wrong = 0 if unreadable == 3 else records(*range(3, 9))
    assert audit.found().get("mismatched", 0) == wrong


def test_named_parts_are_bounded(monkeypatch):
    """Past the bound findings are counted, not named."""
    monkeypatch.setattr(consumed, "MAX_PARTS", 3)
    audit = Audit([told(0, 1), told(END - 1, END)]).result[0]
    assert sum(len(each.missed.parts) for each in audit.producers) == 3
    assert audit.unnamed_parts > 0
    assert audit.total("missed").records == records(*range(1, END - 1))


# -- any history ----------------------------------------------------------------------------


@st.composite
def reports(draw, offsets):
    """A report of any range, mostly right."""
    start = draw(st.integers(0, END))
    end = draw(st.integers(start, min(END + 1, start + 12)))
    wrong = draw(st.sampled_from([{}, {}, {}, {"records": 7}, {"crc_sum": 3}]))
    return told(
        start,
        end,
        offsets=offsets,
        stored_ms=draw(st.integers(0, 70)),
        skipped=draw(st.one_of(st.just(0), st.integers(0, start))),
        final=draw(st.booleans()),
        began=draw(st.booleans()),
        moved=draw(st.sampled_from([False, False, False, True])),
        window_start_ms=draw(st.integers(0, 2)),
        **wrong,
    )


def model(history, offset, offsets, *, window, retained, committed):
    """The finding at an offset; None where the consumer has no part."""
    finding = reported(history, offset, offsets, window, retained)
    late_ms = max(PUBLISHED_MS + offset, *(stored_ms for _, stored_ms in history))
    if finding == "behind" and offset < committed and late_ms <= DUE_MS:
        return "unreported"
    return finding


def reported(history, offset, offsets, window, retained):
    """The finding at an offset, straight from the rules; None where the consumer has no part."""
    known = in_force(history)
    covering = [each for each, _ in known if each.start <= offset < each.end]
    if covering:
        sound = any(is_sound(each, offsets, window, retained) for each in covering)
        return "consumed" if sound else "mismatched"
    behind = [stored for stored in known if stored.report.start > offset]
    reach = min(each.start - each.skipped for each, _ in known)
    first = [each for each, _ in known if each.start - each.skipped == reach]
    if offset < reach and any(each.began or each.final for each in first):
        return None
    if not behind or min(stored_ms for _, stored_ms in behind) > DUE_MS:
        return "behind"
    return "unreported" if offset < reach else passed(known, offset)


def in_force(history):
    """Each report once."""
    longest = {}
    for stored in history:
        key = (stored.report.start, stored.report.window_start_ms, stored.report.moved)
        if key not in longest or longest[key].report.end < stored.report.end:
            longest[key] = stored
    return list(longest.values())


def passed(known, offset):
    """The finding at an offset between what was reported."""
    if any(each.start - each.skipped <= offset < each.start for each, _ in known):
        return "missed"
    edge = max((each.end for each, _ in known if each.end <= offset), default=None)
    goes_on = any(each.end == edge and not each.final for each, _ in known)
    return "unreported" if goes_on else "missed"


def is_sound(report, offsets, window, retained):
    """Whether a report says what is stored, or cannot be compared."""
    reaches_in = report.start < window[1] and window[0] < report.end
    if not reaches_in or report.start < retained[0]:
        return True
    there = [offset for offset in offsets if retained[0] <= offset < retained[1]]
    right = told(report.start, report.end, offsets=there).report
    same = (right.batches, right.messages, right.records, right.crc_sum) == (
        report.batches,
        report.messages,
        report.records,
        report.crc_sum,
    )
    return same and report.end <= retained[1]


@st.composite
def histories(draw):
    """Which offsets have Batches, what is retained, what the window is, and some reports."""
    offsets = sorted(draw(st.sets(st.integers(0, END - 1), min_size=1)))
    low = draw(st.integers(0, 10))
    begin = draw(st.integers(low, 20))
    window = (begin, draw(st.integers(begin, END)))
    told_reports = draw(st.lists(reports(offsets), min_size=1, max_size=8))
    return offsets, (low, END), window, told_reports, draw(st.integers(0, END))


@given(histories())
def test_findings_are_those_of_the_rules(history):
    """Every Batch of the window has the finding that the rules give it, in full and by name."""
    offsets, retained, window, told_reports, committed = history
    audit = Audit(
        told_reports, offsets=offsets, window=window, retained=retained, committed=committed
    )
    expected = Counter()
    named = Counter()
    for offset in audit.offsets:
        finding = model(
            told_reports, offset, offsets, window=window, retained=retained, committed=committed
        )
        if audit.within(offset) and finding:
            expected[finding] += records(offset)
            if finding in ("missed", "mismatched", "unreported"):
                named[finding] += notification(offset).messages
    if all(each.moved for each, _ in told_reports):
        assert audit.result == []
        return
    (found,) = audit.result
    assert {
        finding: found.total(finding).records
        for finding in FINDINGS
        if found.total(finding).records
    } == expected
    assert found.total("stored").records == sum(expected.values())
    for finding in ("missed", "mismatched", "unreported"):
        parts = [part for each in found.producers for part in getattr(each, finding).parts]
        assert sum(part.last - part.first + 1 for part in parts) == named[finding]
    assert bool(found.mismatches) >= bool(expected["mismatched"])
    assert (found.verdict is Verdict.UNCLEAN) == bool(expected["missed"] or found.mismatches)
    assert found.clean <= (not expected["unreported"])


def test_partitions_and_consumers_are_judged_each_by_itself():
    """What one has left out another may have read, and so may it elsewhere."""
    reports = [
        StoredReport(msgspec.structs.replace(report, partition=partition), 0)
        for partition, (report, _) in [
            (0, told(0, 3)),
            (0, told(4, END)),
            (1, told(0, END)),
            (0, told(0, END, records=1, consumer="d")),
            (1, told(0, END, consumer="d")),
        ]
    ]
    ranges = [OffsetRange(partition, 0, END) for partition in (0, 1)]
    check = ConsumedReconciliation("t", reports, retained=ranges, window=ranges, due_ms=DUE_MS)
    for step, take in ((check.to_compare, check.compare), (check.to_judge, check.judge)):
        for partition, start, end, _ in step():
            for offset in range(start, end):
                take(published(offset)._replace(partition=partition))
    first, second = check.result()
    everything = records(*range(END))
    assert first.total("missed").records == records(3)
    assert first.total("consumed").records == 2 * everything - records(3)
    assert second.total("mismatched").records == second.total("consumed").records == everything
