"""Reconciliation of what was produced with what is stored."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit import (
    REPORT_VERSION,
    ProducedReport,
    ProducerName,
    Reconciliation,
    Run,
    decode_report,
    encode_report,
    runs,
)
from memq.errors import CorruptDataError

NAME = ProducerName(0, "p", 0)


def crc(sequence: int) -> int:
    return (sequence * 2_654_435_761) % 2**32


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
        "records": sum(s + 1 for s in delivered),
        "size_bytes": 8 * len(delivered),
        "crc_sum": sum(crc(s) for s in delivered),
        "failed": [tuple(run) for run in runs(failed)],
        "window_start_ms": 0,
        "window_end_ms": 10,
    }
    return ProducedReport(**(values | fields))


def reconcile(reports, stored):
    check = Reconciliation("t", reports)
    for sequence in stored:
        check.stored(NAME, sequence, sequence + 1, crc(sequence))
    return check.result(damage=[], open_reports=0)


@given(
    produced=st.integers(1, 60),
    cuts=st.sets(st.integers(1, 59)),
    gone=st.sets(st.integers(0, 59)),
    failed=st.sets(st.integers(0, 59)),
)
def test_audit_names_exactly_what_is_gone(produced, cuts, gone, failed) -> None:
    """Whatever is removed, and however reports are cut, exactly that is named as lost."""
    failed = {s for s in failed if s < produced}
    edges = [0, *sorted(c for c in cuts if c < produced), produced]
    reports = [
        report(a, b - 1, failed={s for s in failed if a <= s < b})
        for a, b in itertools.pairwise(edges)
    ]
    stored = set(range(produced)) - gone
    result = reconcile(reports, stored)
    lost = {s for s in range(produced) if s in gone and s not in failed}
    found = {s for run in result.producers[0].lost for s in range(run.first, run.last + 1)}
    assert found == lost
    assert result.lost_records == sum(s + 1 for s in lost)
    assert result.clean == (not lost)
    recovered = {s for run in result.producers[0].recovered for s in range(run.first, run.last + 1)}
    assert recovered == failed - gone


def test_message_stored_twice_is_named() -> None:
    """A repeat in the Batches is reported as doubled."""
    result = reconcile([report(0, 3)], [0, 1, 2, 2, 3])
    assert result.producers[0].doubled == [Run(2, 2)]
    assert not result.clean


def test_other_content_is_reported_as_changed() -> None:
    """All sequences there but another CRC sum: the report is named as changed."""
    result = reconcile([report(0, 3, crc_sum=1)], range(4))
    assert result.producers[0].changed == [Run(0, 3)]
    assert not result.clean


def test_stored_messages_without_a_report_are_counted_not_blamed() -> None:
    """A producer that died before its report leaves unreported Messages, which are no loss."""
    result = reconcile([report(0, 3)], range(6))
    assert (result.unreported_messages, result.unreported_records) == (2, 5 + 6)
    assert result.clean


def test_report_that_was_delivered_twice_counts_once() -> None:
    """The same report stored twice changes nothing."""
    result = reconcile([report(0, 3), report(0, 3)], range(4))
    assert result.producers[0].produced_messages == 4
    assert result.clean


def test_write_partitions_and_epochs_are_apart() -> None:
    """Sequences of another epoch do not stand in for lost ones."""
    check = Reconciliation("t", [report(0, 1)])
    check.stored(ProducerName(0, "p", 1), 0, 1, crc(0))
    check.stored(ProducerName(1, "p", 0), 1, 1, crc(1))
    result = check.result(damage=[], open_reports=0)
    assert result.producers[0].lost == [Run(0, 1)]


def test_report_survives_its_json() -> None:
    """A report is read back as it was written; anything else is refused by name."""
    assert decode_report(encode_report(report(0, 3, failed={1}))) == report(0, 3, failed={1})
    for bad in (b"", b"{}", b"[1]", b"\xff", encode_report(report(0, 3, version=9))):
        with pytest.raises(CorruptDataError, match="audit report"):
            decode_report(bad)


@pytest.mark.parametrize(
    "fields", [{"last": -1}, {"last": 2**60}, {"failed": [(0, 9)]}, {"failed": [(2, 1)]}]
)
def test_report_with_impossible_ranges_is_refused(fields) -> None:
    """A report that lies about its ranges cannot make the audit fail or run out of memory."""
    with pytest.raises(CorruptDataError, match="audit report"):
        decode_report(encode_report(msgspec.structs.replace(report(0, 3), **fields)))
