"""Which producers an audit need not look at closely."""

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from memq.core.audit.produced import ProducedReconciliation
from memq.core.audit.reports import ProducedReport, ProducerName
from memq.core.audit.sieve import MAX_GAPS, ProducerSieve
from tests.unit.core.audit.test_produced import crc, records, report, run_of

NAME = ProducerName(0, "p", 0)


class Batch(msgspec.Struct):
    """Messages of producer `p` that were published at once."""

    sequences: list[int]
    in_window: bool = True
    state: str = "sound"


History = tuple[list[tuple[ProducedReport, bool]], list[Batch]]


@st.composite
def histories(draw) -> History:
    """What a producer reports and what is stored of it: all of it, and just once."""
    produced = draw(st.integers(4, 30))
    edges = sorted({0, produced, *draw(st.lists(st.integers(1, produced - 1), max_size=5))})
    start = draw(st.sampled_from(edges[:-1]))
    end = draw(st.sampled_from([edge for edge in edges if edge > start]))
    reports = [
        (report(first, after - 1), start <= first < end)
        for first, after in itertools.pairwise(edges)
    ]
    cuts = sorted({*range(0, produced, 3), *draw(st.sets(st.integers(0, produced))), produced})
    batches = [
        Batch(list(range(first, after)), in_window=start <= first < end)
        for first, after in itertools.pairwise(cuts)
    ]
    return reports, batches


def judged_at(history: History, data: st.DataObject) -> int:
    """One of the judged reports."""
    at = [number for number, (_, judged) in enumerate(history[0]) if judged]
    return data.draw(st.sampled_from(at))


def spoil(fault: str, history: History, data: st.DataObject) -> None:
    """Make one thing wrong with a sound history."""
    reports, batches = history
    at = judged_at(history, data)
    told = reports[at][0]
    batch = data.draw(
        st.sampled_from([batch for batch in batches if told.first in batch.sequences])
    )
    place = batches.index(batch)
    match fault:
        case "records" | "crc_sum":
            other = msgspec.structs.replace(told, **{fault: getattr(told, fault) + 1})
            reports[at] = (other, True)
        case "given up":
            reports[at] = (report(told.first, told.last, failed={told.last}), True)
        case "gone" | "damaged":
            batch.state = fault
        case "missing":
            batches.remove(batch)
        case "twice":
            batches.append(msgspec.structs.replace(batch))
        case "twice and early":
            batches.insert(0, batches.pop(place))
            batches.insert(0, msgspec.structs.replace(batch))
        case "report twice":
            reports.append(reports[at])
        case "report missing":
            del reports[at]
        case "gap between judged reports":
            reports[at] = (told, False)


def tell(check, batches: list[Batch]) -> None:
    """Tell a reconciliation of the Batches that it needs, as an audit does."""
    for batch in batches:
        run = run_of(batch.sequences[0], batch.sequences[-1])
        if not check.needs(0, run, in_window=batch.in_window):
            continue
        if batch.state in ("gone", "damaged"):
            gone = batch.state == "gone"
            check.unreadable(0, run, gone=gone, in_window=batch.in_window)
            continue
        for sequence in batch.sequences:
            check.stored(
                NAME, sequence, records(sequence), crc(sequence), in_window=batch.in_window
            )


def compared(history: History):
    """What the sieve finds, and what the full comparison does."""
    reports, batches = history
    exact = ProducedReconciliation(
        "t",
        [each for each, judged in reports if judged],
        others=[each for each, judged in reports if not judged],
    )
    tell(exact, batches)
    sieve = ProducerSieve()
    for each, judged in reports:
        sieve.report(each, judged=judged)
    tell(sieve, batches)
    return list(sieve.producers()), sieve, exact.producers()


@given(histories(), st.integers(0, 30), st.data())
def test_sound_history_has_no_suspect(history, unreported, data) -> None:
    """Counts of the sieve equal those of the full comparison, in whatever order Batches come."""
    reports, batches = history
    last = reports[-1][0].last
    batches.append(Batch(list(range(last + 1, last + 2 + unreported))))
    found, sieve, exact = compared((reports, data.draw(st.permutations(batches))))
    assert (found, sieve.suspects) == (exact, set())


FAULTS = (
    "records", "crc_sum", "given up", "gone", "damaged", "missing", "twice", "twice and early",
    "report twice", "report missing", "gap between judged reports",
)  # fmt: skip


@settings(max_examples=200)
@given(history=histories(), fault=st.sampled_from(FAULTS), data=st.data())
def test_whoever_is_no_suspect_is_what_the_comparison_says(history, fault, data) -> None:
    """Whatever is wrong with a producer, it is a suspect, or nothing is hidden."""
    spoil(fault, history, data)
    found, sieve, exact = compared(history)
    if sieve.suspects:
        assert (found, sieve.suspects) == ([], {NAME})
    else:
        assert found == exact


def test_too_many_gaps_make_a_suspect() -> None:
    """What is kept after gaps is bounded."""
    sieve = ProducerSieve()
    sieve.report(report(0, 4 * MAX_GAPS, crc_sum=0), judged=True)
    for sequence in range(1, 4 * MAX_GAPS, 2):
        sieve.stored(NAME, sequence, 1, 0, in_window=True)
    assert sieve.suspects == {NAME}


def test_what_is_outside_the_window_is_not_looked_at_and_not_counted() -> None:
    """Of a producer that has reported or not, beyond what it has reported."""
    sieve = ProducerSieve()
    sieve.report(report(0, 3), judged=True)
    other = msgspec.structs.replace(run_of(0, 3), producer_id="q")
    for run in (run_of(4, 9), other):
        assert sieve.needs(0, run, in_window=True)
        assert not sieve.needs(0, run, in_window=False)
    sieve.report(report(4, 6), judged=False)  # named, so it is not unreported either
    assert not sieve.needs(0, run_of(4, 6), in_window=True)
    assert sieve.needs(0, run_of(6, 7), in_window=True)
    for sequence in range(6):
        sieve.stored(NAME, sequence, records(sequence), crc(sequence), in_window=False)
    (audit,) = sieve.producers()
    assert (audit.stored_messages, audit.unreported_messages) == (4, 0)
