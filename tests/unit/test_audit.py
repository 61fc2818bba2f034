"""Reports of what was produced: their JSON, and what is refused."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit import (
    REPORT_VERSION,
    AuditResult,
    ProducedReport,
    ProducerAudit,
    ProducerName,
    Run,
    decode_report,
    encode_report,
    joined_runs,
    runs,
)
from memq.errors import CorruptDataError

REPORT = ProducedReport(
    version=REPORT_VERSION,
    topic="t",
    write_partition=0,
    producer_id="p",
    epoch=0,
    first=0,
    last=9,
    records=50,
    size_bytes=500,
    crc_sum=2**63,
    failed=[(1, 1), (3, 4), (5, 5)],
    window_start_ms=0,
    window_end_ms=10,
)


def test_report_survives_its_json() -> None:
    """A report is read back as it was written."""
    assert decode_report(encode_report(REPORT)) == REPORT


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b"\xff", b'{"version": 1}'])
def test_what_is_no_report_is_refused(value) -> None:
    """Anything that is not a report is refused by name."""
    with pytest.raises(CorruptDataError, match="not an audit report"):
        decode_report(value)


def test_report_of_another_version_is_refused() -> None:
    """A version that this reader does not know is refused with the way out."""
    with pytest.raises(CorruptDataError, match=r"version 9.*upgrade memq"):
        decode_report(encode_report(msgspec.structs.replace(REPORT, version=9)))


@pytest.mark.parametrize(
    "fields",
    [
        {"first": -1},
        {"last": -1, "failed": []},
        {"last": 2**60},
        {"records": -1},
        {"window_start_ms": 2**63},
        {"window_end_ms": 2**70},
        {"window_start_ms": -1},
        {"epoch": -1},
        {"write_partition": -1},
        {"first": 2**63, "last": 2**63 + 1, "failed": []},
        {"failed": [(0, 10)]},
        {"failed": [(2, 1)]},
        {"failed": [(3, 4), (1, 2)]},
        {"failed": [(3, 5), (5, 6)]},
        {"failed": [(-1, 0)]},
        {"failed": [(9, 10)]},
        {"failed": [(11, 12)]},
    ],
)
def test_report_with_impossible_ranges_is_refused(fields) -> None:
    """A report that lies about its ranges cannot make the audit fail or run out of memory."""
    with pytest.raises(CorruptDataError, match="audit report"):
        decode_report(encode_report(msgspec.structs.replace(REPORT, **fields)))


@given(sequences=st.sets(st.integers(0, 50)))
def test_runs_are_sequences_without_gaps(sequences) -> None:
    """Sequences become the fewest runs that hold them and nothing else."""
    result = runs(sequences)
    assert {s for first, last in result for s in range(first, last + 1)} == sequences
    pairs = itertools.pairwise(result)
    assert all(before.last + 1 < after.first for before, after in pairs)
    assert sum(run.messages for run in result) == len(sequences)


def test_runs_that_touch_or_overlap_are_joined() -> None:
    """Joined runs stand apart from each other."""
    parts = [Run(0, 3), Run(1, 2), Run(4, 5), Run(7, 9), Run(8, 12)]
    assert joined_runs(parts) == [Run(0, 5), Run(7, 12)]


@pytest.mark.parametrize("finding", ["lost", "damaged", "doubled", "changed"])
def test_result_with_a_finding_is_not_clean(finding) -> None:
    """What breaks a promise makes the whole result unclean."""
    producer = ProducerAudit(ProducerName(0, "p", 0))
    assert AuditResult("t", [producer]).clean
    getattr(producer, finding).append(Run(3, 3))
    assert not AuditResult("t", [producer]).clean


def test_result_with_damage_is_not_clean_and_one_with_recovered_messages_is() -> None:
    """Objects that cannot be read are no clean end; a late ack and a silent producer are."""
    fine = ProducerAudit(ProducerName(0, "p", 0), recovered=[Run(1, 1)], unreported_messages=4)
    assert AuditResult("t", [fine], open_reports=1, expired_reports=1).clean
    assert not AuditResult("t", [fine], damage=["object gone"]).clean
