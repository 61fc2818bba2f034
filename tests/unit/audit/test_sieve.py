"""Which producers an audit need not look at closely."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit.produced import ProducedReconciliation
from memq.core.audit.reports import ProducedReport, ProducerName
from memq.core.audit.result import ProducerAudit
from memq.core.audit.sieve import MAX_GAPS, ProducerSieve
from tests.unit.audit.test_produced import crc, records, report, run_of

NAME = ProducerName(0, "p", 0)


class Batch(msgspec.Struct):
    """Messages of producer `p` that were published at once."""

    sequences: list[int]
    in_window: bool = True
    state: str = "sound"


@st.composite
def histories(draw) -> tuple[list[tuple[ProducedReport, bool]], list[Batch]]:
    """What a producer reports and what is stored: mostly sound, with a fault here and there."""
    produced = draw(st.integers(1, 30))
    edges = sorted({0, produced, *draw(st.lists(st.integers(0, produced), max_size=5))})
    cuts = [edge for edge in edges if draw(st.integers(0, 15))]
    window = sorted(draw(st.tuples(st.integers(0, 30), st.integers(0, 40))))
    reports = []
    for first, end in itertools.pairwise(cuts):
        fields = {}
        if not draw(st.integers(0, 20)):
            fields = draw(st.sampled_from([{"records": 3}, {"crc_sum": 5}]))
        failed = {first} if not draw(st.integers(0, 20)) else set()
        each = report(first, end - 1, failed=failed, **fields)
        reports.append((each, window[0] <= first < window[1]))
        if not draw(st.integers(0, 15)):
            reports.append(reports[draw(st.integers(0, len(reports) - 1))])
    batches = []
    for first, end in itertools.pairwise(sorted({*edges, *range(0, produced, 4), produced + 2})):
        state = draw(st.sampled_from(["sound"] * 30 + ["gone", "damaged", "nowhere", "twice"]))
        inside = window[0] <= first < window[1]
        batches.append(Batch(list(range(first, end)), in_window=inside, state=state))
        if state == "twice":
            batches.append(Batch(list(range(first, end)), in_window=inside))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(batches) - 1))
        batches.insert(draw(st.integers(0, len(batches) - 1)), batches.pop(at))
    return reports, [batch for batch in batches if batch.state != "nowhere"]


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


@given(histories())
def test_whoever_is_no_suspect_is_what_the_comparison_says(history) -> None:
    """Counts of the sieve equal those of the full comparison, and nothing is hidden."""
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

    found = list(sieve.producers())

    if not sieve.suspects:
        assert found == exact.producers()
    else:
        assert (found, sieve.suspects) == ([], {NAME})


def test_a_sound_producer_is_no_suspect() -> None:
    """Sound histories pass, also where Batches come out of order; so the sieve is worth it."""
    sieve = ProducerSieve()
    for first in range(0, 100, 10):
        sieve.report(report(first, first + 9), judged=20 <= first < 80)
    for sequence in (*range(30), 31, 33, 32, 30, *range(34, 120)):
        in_window = sequence >= 20
        sieve.stored(NAME, sequence, records(sequence), crc(sequence), in_window=in_window)
    (audit,) = sieve.producers()
    judged = sum(map(records, range(20, 80)))
    unreported = sum(map(records, range(100, 120)))
    assert audit == ProducerAudit(
        NAME,
        produced_messages=60,
        produced_records=judged,
        stored_messages=60,
        stored_records=judged,
        unreported_messages=20,
        unreported_records=unreported,
    )
    assert repr(sieve) == "<ProducerSieve [1 producers, 0 suspects]>"


def test_too_many_gaps_make_a_suspect() -> None:
    """What is kept after gaps is bounded."""
    sieve = ProducerSieve()
    sieve.report(report(0, 4 * MAX_GAPS, crc_sum=0), judged=True)
    for sequence in range(1, 4 * MAX_GAPS, 2):
        sieve.stored(NAME, sequence, 1, 0, in_window=True)
    assert sieve.suspects == {NAME}
