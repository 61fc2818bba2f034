"""Result manifests: readable, exact, and checked against the plan."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.manifest import (
    LeftOut,
    Manifest,
    Totals,
    check_manifest,
    check_totals,
    decode_manifest,
    describe_left_out,
    encode_manifest,
)
from memq.core.ranges import OffsetRange
from memq.errors import CorruptDataError, DataLossError, TopicRecreatedError

LIFE = "0123456789abcdef"
DAMAGED = LeftOut(
    reason="damaged",
    offset=6,
    write_partition=0,
    producer_id="p",
    epoch=0,
    first=7,
    last=8,
    records=200,
    crc_sum=5,
)
GONE = LeftOut(
    reason="missing",
    offset=8,
    write_partition=1,
    producer_id="q",
    epoch=2,
    first=0,
    last=0,
    records=100,
    crc_sum=7,
)
MANIFEST = Manifest(
    job="range_to_parquet",
    topic="clicks",
    topic_id=LIFE,
    partition=3,
    start=5,
    end=9,
    batches=4,
    messages=40,
    records=4_000,
    bytes=123_456,
    skipped_messages=3,
    skipped_records=300,
    left_out=[DAMAGED, GONE],
    crc_sum=2**64 - 1,
    left_out_crc_sum=12,
    output="out/topic=clicks",
    files=["part-0.parquet"],
    started_ms=1,
    finished_ms=2,
)
PUBLISHED = Totals(batches=4, messages=43, records=4_300, bytes=123_456, crc_sum=11)

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


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (payload, "not a manifest")
        for payload in (b"", b"{}", b"[]", b"\xff", encode_manifest(MANIFEST)[:-3])
    ]
    + [
        (changed(records="many"), "not a manifest"),
        (changed(unheard_of=1), "not a manifest"),
        (changed(version=3), "version 3; this reader knows 2"),
    ],
)
def test_what_is_no_manifest_is_refused(payload, match):
    """Whatever is not a whole manifest, of a version that is known, is a CorruptDataError."""
    with pytest.raises(CorruptDataError, match=match):
        decode_manifest(payload)


@pytest.mark.parametrize(
    "changes",
    [
        {"records": -1},
        {"start": 10},
        {"crc_sum": 2**64},
        {"left_out_crc_sum": 2**64},
        {"skipped_messages": -1},
        {"skipped_messages": 2},
        {"skipped_messages": 4},
        {"skipped_records": 301},
        {"left_out_crc_sum": 13},
        {"left_out": []},
        {"unnamed_messages": 1},
        {"end": 8},
    ],
)
def test_numbers_that_make_no_sense_are_refused(changes):
    """Negative counts, a range that ends before it starts, too large sums, and counts of what was
    left out that are not those of what is named, are refused.
    """
    with pytest.raises(CorruptDataError):
        decode_manifest(changed(**changes))


def test_a_manifest_of_the_topic_before_is_refused():
    """The same offsets of a topic that was deleted are other data."""
    with pytest.raises(TopicRecreatedError, match=f"topic id {LIFE}, and fedc"):
        check_manifest(MANIFEST, "clicks", OffsetRange(3, 5, 9, "fedcba9876543210"))


def test_each_difference_is_named():
    """A manifest of another range is refused with every difference, and no more."""
    with pytest.raises(DataLossError) as caught:
        check_manifest(MANIFEST, "views", OffsetRange(3, 5, 10, LIFE))
    assert "topic is 'clicks', planned was 'views'" in str(caught.value)
    assert "end is 9, planned was 10" in str(caught.value)
    assert "partition" not in str(caught.value)


@pytest.mark.parametrize("name", Totals._fields)
def test_a_record_that_nothing_accounts_for_is_loss(name):
    """Each total is compared also where something was left out, and named when it differs."""
    more = PUBLISHED._replace(**{name: getattr(PUBLISHED, name) + 1})
    with pytest.raises(DataLossError, match=f"{name}: "):
        check_totals(MANIFEST, more)


def test_more_than_can_be_named_is_counted():
    """A manifest that has no room for all names says how many are unnamed."""
    fewer = {"left_out": [json.loads(msgspec.json.encode(DAMAGED))], "unnamed_messages": 1}
    found = decode_manifest(changed(**fewer))
    check_totals(found, PUBLISHED)
    assert describe_left_out(found).endswith("and 1 Message more")
