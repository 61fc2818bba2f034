"""Result manifests: readable, exact, and checked against the plan."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.manifest import Manifest, check_manifest, decode_manifest, encode_manifest
from memq.errors import CorruptDataError, DataLossError

MANIFEST = Manifest(
    job="range_to_parquet",
    topic="clicks",
    partition=3,
    start=5,
    end=9,
    batches=4,
    messages=40,
    records=4_000,
    bytes=123_456,
    repeats=1,
    crc_sum=2**64 - 1,
    output="out/topic=clicks",
    files=["part-0.parquet"],
    started_ms=1,
    finished_ms=2,
)

NUMBERS = st.integers(0, 2**62)


def changed(**changes):
    return json.dumps({**json.loads(encode_manifest(MANIFEST)), **changes}).encode()


@given(
    records=NUMBERS,
    crc_sum=st.integers(0, 2**64 - 1),
    output=st.text(max_size=20),
    files=st.lists(st.text(max_size=10), max_size=3),
)
def test_what_is_encoded_is_decoded(records, crc_sum, output, files):
    """A manifest comes back from its JSON as it was."""
    manifest = msgspec.structs.replace(
        MANIFEST, records=records, crc_sum=crc_sum, output=output, files=files
    )
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_it_is_readable():
    """The JSON has a line for each field, and ends with a line end."""
    text = encode_manifest(MANIFEST).decode()
    assert '\n  "records": 4000,\n' in text
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        encode_manifest(MANIFEST)[:-3],
        changed(records="many"),
        changed(unheard_of=1),
    ],
)
def test_what_is_no_manifest_is_refused(payload):
    """Whatever is not a whole manifest is a CorruptDataError."""
    with pytest.raises(CorruptDataError, match="not a manifest"):
        decode_manifest(payload)


@pytest.mark.parametrize(
    "changes",
    [{"records": -1}, {"start": 10}, {"crc_sum": 2**64}, {"repeats": -1}],
)
def test_numbers_that_make_no_sense_are_refused(changes):
    """Negative counts, a range that ends before it starts, and too large sums are refused."""
    with pytest.raises(CorruptDataError):
        decode_manifest(changed(**changes))


def test_a_later_version_is_refused():
    """A manifest of a version that is not known says which one is."""
    with pytest.raises(CorruptDataError, match="version 2; this reader knows 1"):
        decode_manifest(changed(version=2))


def test_the_planned_range_passes():
    """A manifest of exactly the range planned passes."""
    check_manifest(MANIFEST, topic="clicks", partition=3, start=5, end=9)


def test_each_difference_is_named():
    """A manifest of another range is refused with every difference, and no more."""
    with pytest.raises(DataLossError) as caught:
        check_manifest(MANIFEST, topic="views", partition=3, start=5, end=10)
    assert "topic is 'clicks', planned was 'views'" in str(caught.value)
    assert "end is 9, planned was 10" in str(caught.value)
    assert "partition" not in str(caught.value)
