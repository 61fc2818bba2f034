"""Reports of what was produced and consumed: their JSON, and what is refused."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.audit.reports import (
    REPORT_VERSION,
    ConsumedReport,
    ProducedReport,
    check_consumed,
    consumed_key,
    decode_reports,
    encode_report,
    encode_reports,
    report_key,
    runs_of,
)
from memq.core.topic import check_topic_name
from memq.errors import CorruptDataError, InvalidRequestError

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


def test_reports_of_one_window_are_one_value() -> None:
    """What a producer says of several write partitions takes one value, and far fewer bytes."""
    several = [msgspec.structs.replace(REPORT, write_partition=number) for number in range(8)]
    later = msgspec.structs.replace(REPORT, window_end_ms=11)
    other = msgspec.structs.replace(REPORT, producer_id="q")
    found = list(encode_reports([*several, later, other, CONSUMED]))
    keys, values = zip(*found, strict=True)
    assert keys == (b"t", b"t", b"t", consumed_key("t"))
    assert [decode_reports(value) for value in values] == [several, [later], [other], [CONSUMED]]
    assert values[1:] == tuple(map(encode_report, (later, other, CONSUMED)))
    assert len(values[0]) < sum(len(encode_report(each)) for each in several) / 2


@pytest.mark.parametrize("fields", [{"last": -1}, {"records": -1}])
def test_reports_of_one_window_are_checked_one_by_one(fields) -> None:
    """One that makes no sense is refused with all that stand beside it; so are later versions."""
    wrong = [msgspec.structs.replace(REPORT, write_partition=at, **fields) for at in range(2)]
    ((_, value),) = encode_reports(wrong)
    with pytest.raises(CorruptDataError, match="audit report"):
        decode_reports(value)
    with pytest.raises(CorruptDataError, match=r"version 9.*upgrade memq"):
        decode_reports(encode_report(msgspec.structs.replace(REPORT, version=9)))


@pytest.mark.parametrize(
    "fields",
    [
        {"records": -1},
        {"window_end_ms": 2**70},
        {"duplicates": 2**63},
        {"last": -1, "failed": []},
        {"last": 2**60},
        {"failed": [(2, 1)]},
        {"failed": [(3, 5), (5, 6)]},
        {"failed": [(-1, 0)]},
        {"failed": [(9, 10)]},
    ],
)
def test_report_with_impossible_ranges_is_refused(fields) -> None:
    """A report that lies about its ranges cannot make the audit fail or run out of memory."""
    with pytest.raises(CorruptDataError, match="audit report"):
        decode_reports(encode_report(msgspec.structs.replace(REPORT, **fields)))


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b"\xff", b'{"version": 1}'])
def test_what_is_no_report_is_refused(value) -> None:
    """By name; but a report of a later kind is left out, whatever its fields are."""
    with pytest.raises(CorruptDataError, match="not an audit report"):
        decode_reports(value)
    assert decode_reports(b'{"kind": "forgotten", "version": "x"}') == []


@given(sequences=st.sets(st.integers(0, 50)))
def test_runs_are_sequences_without_gaps(sequences) -> None:
    """Sequences become the fewest runs that hold them and nothing else."""
    result = runs_of(sequences)
    assert {s for first, last in result for s in range(first, last + 1)} == sequences
    pairs = itertools.pairwise(result)
    assert all(before.last + 1 < after.first for before, after in pairs)
    assert sum(run.messages for run in result) == len(sequences)


# -- what was consumed ----------------------------------------------------------------------

CONSUMED = ConsumedReport(
    topic="t",
    consumer="g",
    partition=3,
    start=5,
    end=9,
    batches=4,
    messages=40,
    records=400,
    crc_sum=2**64 - 1,
    window_start_ms=1,
    window_end_ms=2,
)


def test_kinds_have_keys_of_their_own() -> None:
    """A reader that knows only producers' reports never sees the others: no topic has that key."""
    assert report_key(REPORT) == b"t"
    assert report_key(CONSUMED) == consumed_key("t") == b"consumed:t"
    with pytest.raises(InvalidRequestError):
        check_topic_name(consumed_key("t").decode())


@pytest.mark.parametrize(
    "fields",
    [{"start": 10}, {"end": 2**62 + 1}, {"crc_sum": -1}, {"skipped": 6}, {"consumer": ""}],
)
def test_consumed_report_with_numbers_that_make_no_sense_is_refused(fields) -> None:
    """Such a report is neither sent nor read."""
    wrong = msgspec.structs.replace(CONSUMED, **fields)
    with pytest.raises(CorruptDataError, match="audit report"):
        decode_reports(encode_report(wrong))
    with pytest.raises(InvalidRequestError, match="name its consumer, numbers must be 0 or more"):
        check_consumed(wrong)
    check_consumed(CONSUMED)
