"""Reconciliation of what was produced with what is stored."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit import produced
from memq.core.audit.produced import ProducedReconciliation
from memq.core.audit.reports import (
    REPORT_VERSION,
    ProducedReport,
    ProducerName,
    SequenceRun,
    runs_of,
)
from memq.core.audit.result import AuditResult, Verdict
from memq.core.format.batch import ProducerRun
from memq.errors import InvalidRequestError

NAME = ProducerName(0, "p", 0)
ALL = range(60)


def crc(sequence: int) -> int:
    return (sequence * 2_654_435_761) % 2**32


def records(sequence: int) -> int:
    return sequence + 1


def report(first: int, last: int, *, failed: set[int] = frozenset(), **fields) -> ProducedReport:
    delivered = [s for s in range(first, last + 1) if s not in failed]
    values = {
        "version": REPORT_VERSION,
        "topic": "t",
        "write_partition": 0,
        "producer_id": "p",
        "epoch": 0,
        "first": first,
        "last": last,
        "records": sum(map(records, delivered)),
        "size_bytes": 8 * len(delivered),
        "crc_sum": sum(map(crc, delivered)),
        "failed": runs_of(failed),
        "window_start_ms": 0,
        "window_end_ms": 10,
    }
    return ProducedReport(**(values | fields))


def run_of(first: int, last: int) -> ProducerRun:
    sequences = range(first, last + 1)
    return ProducerRun("p", 0, first, last, sum(map(records, sequences)), sum(map(crc, sequences)))


def finish(check: ProducedReconciliation):
    return AuditResult("t", check.producers(), expired_reports=check.expired_reports())


def store(check: ProducedReconciliation, stored: Iterable[int], **where) -> None:
    for sequence in stored:
        check.stored(NAME, sequence, records(sequence), crc(sequence), **where)


def reconcile(reports, stored):
    check = ProducedReconciliation("t", reports)
    store(check, stored)
    return finish(check)


def inside(values: set[int], first: int, last: int) -> set[int]:
    return {value for value in values if first <= value <= last}


def pieces(cuts: set[int], end: int) -> list[tuple[int, int]]:
    """First and last of each piece of the sequences before an end."""
    edges = [0, *sorted(inside(cuts, 1, end - 1)), end]
    return [(first, after - 1) for first, after in itertools.pairwise(edges)]


sets = st.sets(st.sampled_from(ALL))


@given(
    spans=st.lists(st.tuples(st.sampled_from(ALL), st.sampled_from(ALL)), min_size=1, max_size=8),
    gone=sets,
    failed=sets,
)
def test_reports_that_overlap_say_each_thing_once(spans, gone, failed) -> None:
    """Reports that were sent again, joined to others, change neither what is named nor how much."""
    spans = [(min(span), max(span)) for span in spans]
    reports = [report(a, b, failed=inside(failed, a, b)) for a, b in spans]
    produced = {s for a, b in spans for s in range(a, b + 1)}
    stored = produced - gone

    audit = reconcile(reports, stored).producers[0]

    lost = (produced & gone) - failed
    assert audit.lost == runs_of(lost)
    assert sum(map(records, lost)) <= audit.lost_records
    assert audit.duplicated == audit.changed == []
    assert audit.produced_messages == len(produced - failed)
    assert audit.stored_records == sum(map(records, stored - failed))
    if not lost:
        assert audit.lost_records == 0
        assert audit.produced_records == sum(map(records, produced - failed))


STATES = st.sampled_from(("sound", "sound", "twice", "damaged", "gone", "nowhere"))


@given(produced=st.integers(1, 60), cuts=sets, failed=sets, old=sets, data=st.data())
def test_each_message_has_one_finding(produced, cuts, failed, old, data) -> None:
    """However reports are cut: what is damaged, what has lost its object, and what left no trace,
    which retention may have removed where the report is old; and what was given up, yet is there.
    """
    states = data.draw(st.lists(STATES, min_size=produced, max_size=produced))
    at = {name: {s for s, state in enumerate(states) if state == name} for name in states}
    damaged, gone, nowhere = (at.get(name, set()) for name in ("damaged", "gone", "nowhere"))
    there = set(range(produced)) - damaged - gone - nowhere
    failed = failed & (there | nowhere)
    reports = [report(a, b, failed=inside(failed, a, b)) for a, b in pieces(cuts, produced)]
    old_reports = [each for each in reports if each.first in old]
    check = ProducedReconciliation("t", reports)
    for sequence in sorted(damaged | gone):
        run = run_of(sequence, sequence)
        check.unreadable(0, run, gone=sequence in gone, in_window=False)
    store(check, [*there, *at.get("twice", ())])
    check.expire(old_reports)
    result = finish(check)

    may = {s for each in old_reports for s in range(each.first, each.last + 1)}
    expired, lost = (nowhere & may) - failed, gone | (nowhere - may - failed)
    (audit,) = result.producers
    assert (audit.damaged, audit.lost) == (runs_of(damaged), runs_of(lost))
    assert (audit.expired, audit.recovered) == (runs_of(expired), runs_of(failed & there))
    assert audit.duplicated == runs_of(at.get("twice", ()))
    assert audit.damaged_records == sum(map(records, damaged))
    assert audit.lost_records == sum(map(records, lost))
    assert audit.expired_records == sum(map(records, expired))
    assert audit.produced_messages == produced - len(failed)
    assert audit.produced_records == sum(map(records, set(range(produced)) - failed))
    assert audit.stored_messages == len(there - failed)
    assert audit.stored_records == sum(map(records, there - failed))
    assert result.expired_reports == sum(
        bool(inside(expired, each.first, each.last)) for each in old_reports
    )
    assert audit.clean == (not (damaged or lost or expired or audit.duplicated))


@pytest.mark.parametrize("fields", [{"crc_sum": 1}, {"records": 11}, {"records": 9}])
def test_other_content_is_reported_as_changed(fields) -> None:
    """All sequences there but another sum: the report is named as changed."""
    result = reconcile([report(0, 3, **fields)], range(4))
    assert result.producers[0].changed == [SequenceRun(0, 3)]
    assert result.producers[0].lost_records == 0
    assert not result.clean


@pytest.mark.parametrize("in_window", [True, False])
def test_what_no_report_names_is_counted_not_blamed(in_window) -> None:
    """In the window alone; what a report that is not judged names belongs elsewhere."""
    check = ProducedReconciliation("t", [report(0, 3)], others=[report(4, 6)])
    store(check, range(9), in_window=in_window)
    result = finish(check)
    counts = (result.total("unreported_messages"), result.total("unreported_records"))
    assert counts == ((2, 8 + 9) if in_window else (0, 0))
    assert result.producers[0].produced_messages == 4
    assert result.verdict is (Verdict.PARTLY if in_window else Verdict.CLEAN)


@given(
    judged=st.lists(st.tuples(st.sampled_from(ALL), st.sampled_from(ALL)), max_size=3),
    others=st.lists(st.tuples(st.sampled_from(ALL), st.sampled_from(ALL)), max_size=3),
    cuts=sets,
    in_window=st.booleans(),
)
def test_what_is_not_looked_at_changes_nothing(judged, others, cuts, in_window) -> None:
    """Reading only the Batches that are needed gives the result of reading all of them."""
    judged = [report(min(span), max(span)) for span in judged]
    others = [report(min(span), max(span)) for span in others]
    batches = [run_of(*piece) for piece in pieces(cuts, 60)]
    lazy = ProducedReconciliation("t", judged, others=others)
    thorough = ProducedReconciliation("t", judged, others=others)

    for run in batches:
        needed = lazy.needs(0, run, in_window=in_window)
        for check in [thorough, lazy] if needed else [thorough]:
            store(check, range(run.first, run.last + 1), in_window=in_window)

    assert finish(lazy) == finish(thorough)


def test_a_loss_is_not_claimed_before_everything_was_looked_at() -> None:
    """Whoever reads can tell that a Message was named nowhere yet, and look further."""
    check = ProducedReconciliation("t", [report(0, 2)])
    assert check.any_unseen()
    check.stored(NAME, 0, 1, crc(0))
    check.unreadable(0, run_of(1, 1), gone=True)
    assert check.any_unseen()
    check.unreadable(0, run_of(2, 2), gone=False)
    assert not check.any_unseen()


@pytest.mark.parametrize("gone", [False, True])
def test_what_nobody_reported_is_lost_all_the_same_when_its_object_is(gone) -> None:
    """A notification of the window says what was stored; no report is needed to miss it."""
    check = ProducedReconciliation("t", [report(0, 3)])
    check.unreadable(0, run_of(2, 6), gone=gone)
    check.unreadable(0, run_of(8, 9), gone=gone)
    check.unreadable(0, run_of(20, 29), gone=gone, in_window=False)
    store(check, range(2))
    (audit,) = finish(check).producers
    named = (audit.lost, audit.lost_records) if gone else (audit.damaged, audit.damaged_records)
    assert named[0] == [SequenceRun(2, 6), SequenceRun(8, 9)]
    assert named[1] == sum(map(records, [2, 3, 8, 9]))  # of the run at the edge, what is reported
    assert audit.verdict is Verdict.UNCLEAN


@given(cuts=sets, edges=sets, old=sets, data=st.data(), honest=st.booleans())
def test_what_a_report_is_short_of_is_counted_once(cuts, edges, old, data, honest) -> None:
    """As lost, damaged or expired, and all of it; also where a report has counted otherwise."""
    reports = []
    for piece in pieces(edges, 60):
        more = 0 if honest else data.draw(st.integers(-60, 60))
        reports.append(report(*piece, records=max(0, report(*piece).records + more)))
    check = ProducedReconciliation("t", reports)
    found, gone, damaged = set(), set(), set()
    for first, last in pieces(cuts, 60):
        state = data.draw(st.sampled_from((found, found, gone, damaged, set())))
        state |= set(range(first, last + 1))
        if state is found:
            store(check, range(first, last + 1))
        elif state is gone or state is damaged:
            check.unreadable(0, run_of(first, last), gone=state is gone)
    check.expire(each for each in reports if each.first in old)
    (audit,) = finish(check).producers
    counts = (audit.lost_records, audit.damaged_records, audit.expired_records)
    short = 0
    for each in reports:
        mine = set(range(each.first, each.last + 1))
        if mine - found:
            short += max(0, each.records - sum(map(records, mine & found)))
    assert min(counts) >= 0
    assert sum(counts) == short
    if honest and not old:
        assert audit.lost_records >= sum(map(records, set(ALL) - found - damaged))


def test_a_producer_that_nobody_asks_about_is_left_out() -> None:
    """Its Batches need not be read, and what cannot be read of them is no finding."""
    check = ProducedReconciliation("t", [], only=[])
    assert not check.needs(0, run_of(0, 1), in_window=True)
    check.unreadable(0, run_of(0, 1), gone=True)
    assert check.producers() == []


def test_findings_with_too_many_gaps_are_refused(monkeypatch) -> None:
    """The memory of an audit is bounded, and the error says what to do."""
    monkeypatch.setattr(produced, "MAX_GAPS", 2)
    check = ProducedReconciliation("t", [report(0, 9)])
    for sequence in (0, 1, 5):
        check.stored(NAME, sequence, 1, 0)
    with pytest.raises(InvalidRequestError, match=r"more than 2 gaps.*shorter window"):
        check.stored(NAME, 7, 1, 0)
