import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.checksum import crc32c
from memq.core.format.envelope import _fields, read_envelope
from memq.core.format.index import (
    FOOTER_BYTES,
    MAX_INDEX_BYTES,
    MAX_MESSAGES,
    BatchIndex,
    BatchMetadata,
    IndexEntry,
    decode_footer,
    decode_index,
    decode_tail,
    encode_footer,
    encode_index,
)
from memq.core.format.schema import MAX_SCHEMA_BYTES
from memq.errors import CorruptDataError
from tests.unit.core.format.builders import shared

METADATA = BatchMetadata("batch-1", "clicks", 3, 0xDEADBEEF)
ENTRY = IndexEntry("producer-1", 2, 7, 424, 800, 20, 5, 6, 0xFEFFFFFF)
INT64 = st.integers(-(2**63), 2**63 - 1)


def tail_of(index: bytes) -> bytes:
    return index + encode_footer(index)


def stream(batch: pa.RecordBatch, metadata: dict[str, str]) -> bytes:
    """An index made by hand."""
    schema = batch.schema.with_metadata(metadata)
    return bytes(schema.serialize()) + bytes(batch.serialize()) + b"\xff\xff\xff\xff\0\0\0\0"


def sharing(index: bytes) -> bytes:
    """The index, with one pair of key and value in place of all others."""
    envelope = read_envelope(memoryview(index))
    return shared(index, _fields(envelope.metadata, envelope.header, 3)[2])


@given(
    st.lists(
        st.builds(IndexEntry, st.text(max_size=20), *[INT64] * 7, crc32c=st.integers(0, 2**32 - 1)),
        min_size=1,
        max_size=5,
    ),
    st.builds(
        BatchMetadata,
        st.text(),
        st.text(),
        st.integers(0, 2**31),
        st.integers(0, 2**32 - 1),
        st.sampled_from(["timestamp", "at", ""]) | st.text(),
    ),
)
def test_any_index_survives_its_bytes(entries, metadata) -> None:
    """Entries and metadata come back as they were; the length keeps the footer aligned."""
    data = encode_index(entries, metadata)
    assert len(data) % 8 == 0
    assert decode_index(data) == (metadata, entries)
    assert decode_tail(tail_of(data), 10**6) == BatchIndex(
        metadata, entries, 10**6 - len(data) - FOOTER_BYTES
    )


def test_the_footer_is_16_bytes_as_specified() -> None:
    """Length, CRC32C of index and length, magic, version."""
    footer = encode_footer(b"12345678")
    length = struct.pack("<I", 8)
    assert footer == length + struct.pack("<I", crc32c(b"12345678" + length)) + b"MemQBat\x01"
    assert len(footer) == FOOTER_BYTES == 16
    assert decode_footer(b"anything" + footer, 100).tail_length == 24


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        (b"", "0 bytes are too few"),
        (b"x" * 15, "15 bytes are too few"),
        (struct.pack("<II8s", 8, 0, b"PAR1PAR1"), "not with the magic of a Batch"),
        (struct.pack("<II8s", 8, 0, b"MemQBat\x02"), "format version 2; this reader knows 1"),
        (struct.pack("<II8s", 85, 0, b"MemQBat\x01"), "claims an index of 85 bytes"),
        (struct.pack("<II8s", MAX_INDEX_BYTES + 1, 0, b"MemQBat\x01"), "claims an index"),
    ],
)
def test_an_end_that_is_not_a_footer_is_refused(tail, match) -> None:
    """With what stands there and what was expected."""
    with pytest.raises(CorruptDataError, match=match):
        decode_footer(tail, 100)


def test_an_index_with_the_right_checksum_may_still_be_wrong() -> None:
    """No marker, other columns, no rows, missing, odd or endless metadata, something in between."""
    good = encode_index([ENTRY], METADATA)
    batch = pa.ipc.open_stream(good).read_next_batch()
    texts = {k.decode(): v.decode() for k, v in batch.schema.metadata.items()}
    assert decode_index(stream(batch, texts)) == (METADATA, [ENTRY])
    for bad, match in (
        (stream(batch, texts | {"x": "y" * MAX_SCHEMA_BYTES}), "schema of the index"),
        (sharing(stream(batch, {"x": "y" * 5_000} | texts)), "more than once"),
        (good[:-8], "end-of-stream"),
        (good + b"\0" * 8, "end-of-stream"),
        (good[:-8] + b"\0" * 8 + good[-8:], "bytes were given"),
        (stream(batch.drop_columns(["epoch"]), texts), "other columns"),
        (stream(batch.slice(1), texts), "0 records"),
        (stream(batch, {}), "incomplete: KeyError"),
        (stream(batch, texts | {"memq.write_partition": "x"}), "incomplete: ValueError"),
        (stream(batch, texts | {"memq.format_version": "2"}), "disagree: format 1 and 2"),
        (b"nonsense" * 4, "do not begin an Arrow message"),
        (b"", "outside itself"),
    ):
        with pytest.raises(CorruptDataError, match=match):
            decode_tail(tail_of(bad), 10**7)


def test_an_index_of_more_messages_than_a_batch_has_is_refused() -> None:
    """Compressed, a hundred times as many would fit into a small object."""
    rows = [ENTRY] * (MAX_MESSAGES + 1)
    assert len(decode_index(encode_index(rows[1:], METADATA))[1]) == MAX_MESSAGES
    with pytest.raises(CorruptDataError, match="has 100001 Messages; a Batch has up to 100000"):
        decode_index(encode_index(rows, METADATA))
