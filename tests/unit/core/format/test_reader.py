from __future__ import annotations

import io

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memq.core.format.batch import BatchBuilder
from memq.core.format.index import FOOTER_BYTES, IndexEntry, encode_footer, encode_index
from memq.core.format.reader import (
    BatchReader,
    message_from_range,
    read_index,
    schema_from_range,
)
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.format.verify import verify
from memq.errors import CorruptDataError
from tests.unit.core.format.builders import START_US, add, joined, record_batches, records, seal

MESSAGES = [records(1), records(30), records(7)]


class Ranges:
    """An object in storage that remembers which ranges were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def get(self, start: int, length: int) -> bytes:
        self.reads.append((start, length))
        return self.data[start : start + length]


def reindexed(data: bytes, entries: list[IndexEntry], **metadata) -> bytes:
    """The object with another index, whose checksum is right."""
    index = BatchReader(data).index
    fields = {name: getattr(index.metadata, name) for name in index.metadata.__struct_fields__}
    raw = encode_index(entries, type(index.metadata)(**(fields | metadata)))
    return data[: index.offset] + raw + encode_footer(raw)


# -- whole objects --------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_what_was_put_in_comes_out(compression) -> None:
    """Rows Message by Message and all at once; entries and metadata."""
    reader = BatchReader(joined(seal(MESSAGES, compression)))
    assert len(reader) == 3
    assert [reader.read(i).equals(rows) for i, rows in enumerate(MESSAGES)] == [True] * 3
    assert reader.read_all().equals(pa.Table.from_batches(MESSAGES))
    assert reader.schema == DEFAULT_SCHEMA
    assert (reader.metadata.topic, reader.metadata.write_partition) == ("clicks", 3)
    assert [e.sequence for e in reader.entries] == [0, 1, 2]
    assert reader.entries[1].min_timestamp_us == START_US
    assert reader.entries[1].max_timestamp_us == START_US + 29
    assert repr(reader).startswith("<BatchReader batch-1 [3 messages, ")


@given(record_batches(), st.sampled_from([None, "zstd"]), st.integers(1, 3))
@settings(max_examples=30)
def test_any_rows_survive_a_batch(rows, compression, count) -> None:
    """Random schemas, nested ones among them; and the object verifies."""
    data = joined(seal([rows] * count, compression))
    assert BatchReader(data).read_all().equals(pa.Table.from_batches([rows] * count))
    assert verify(data).ok


def test_a_batch_is_an_arrow_stream_that_pyarrow_and_polars_read() -> None:
    """Without MemQ code; both stop at the marker and do not see the index."""
    data = joined(seal(MESSAGES))
    expected = pa.Table.from_batches(MESSAGES)
    with pa.ipc.open_stream(data) as stream:
        assert stream.read_all().equals(expected)
    frame = pl.read_ipc_stream(io.BytesIO(data))
    assert frame.drop("headers").to_dicts() == expected.drop_columns(["headers"]).to_pylist()
    assert frame["headers"].to_list() == [
        None if pairs is None else dict(pairs) for pairs in expected["headers"].to_pylist()
    ]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_an_object_may_come_as_any_kind_of_bytes(kind) -> None:
    """As storage, a socket or Arrow hand it over; whole, or by ranges."""
    data = kind(joined(seal(MESSAGES)))
    reader = BatchReader(data)
    assert reader.read_all().num_rows == 38
    assert verify(data).ok
    view = memoryview(data)
    index = read_index(lambda start, length: kind(bytes(view[start : start + length])), len(view))
    schema = schema_from_range(kind(bytes(view[: index.schema_length])), index)
    entry = index.entries[0]
    piece = kind(bytes(view[entry.offset : entry.offset + entry.length]))
    assert message_from_range(piece, entry, schema).equals(MESSAGES[0])
    rebuilt = BatchBuilder(serialize_schema(schema), batch_id="b", topic="t", write_partition=0)
    add(
        rebuilt,
        piece,
        records=1,
        min_timestamp_us=START_US,
        max_timestamp_us=START_US,
        crc32c=entry.crc32c,
    )
    assert verify(joined(rebuilt.seal())).ok


def test_rows_refer_to_the_object_and_keep_it_alive() -> None:
    """Reading copies nothing."""
    data = pa.py_buffer(joined(seal(MESSAGES)))
    values = BatchReader(data).read(1)["value"].buffers()[2]
    assert data.address <= values.address < data.address + data.size


# -- damage ---------------------------------------------------------------------------------


def test_a_damaged_message_is_named_and_the_others_are_read() -> None:
    """The error says where."""
    data = bytearray(joined(seal(MESSAGES)))
    entry = BatchReader(data).entries[1]
    data[entry.offset + 500] ^= 4
    reader = BatchReader(data)
    assert reader.read(0).equals(MESSAGES[0])
    assert reader.read(2).equals(MESSAGES[2])
    for read in (lambda: reader.read(1), reader.read_all):
        with pytest.raises(
            CorruptDataError, match=f"Message at byte {entry.offset}: it has CRC32C"
        ):
            read()


def test_an_index_with_another_count_of_records_is_refused() -> None:
    """Even if all checksums hold."""
    data = joined(seal(MESSAGES))
    first, *others = BatchReader(data).entries
    lying = IndexEntry(**{f: getattr(first, f) for f in first.__struct_fields__} | {"records": 2})
    with pytest.raises(CorruptDataError, match="it has 1 record; the index says 2"):
        BatchReader(reindexed(data, [lying, *others])).read(0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"offset": 0}, "begin at byte 0"),
        ({"offset": -8}, "begin at byte -8"),
        ({"offset": 2**40}, f"begin at byte {2**40}"),
        ({"offset": 432}, "schema message"),
        ({"length": 8}, "Message 1 is said"),
        ({"length": -8}, "Message 0 is said"),
        ({"length": 0}, "Message 0 is said"),
    ],
)
def test_messages_must_fill_the_object_without_a_gap(changes, match) -> None:
    """An index that leaves bytes out, or counts some twice, is refused whole."""
    data = joined(seal(MESSAGES))
    first, *others = BatchReader(data).entries
    moved = IndexEntry(**{f: getattr(first, f) for f in first.__struct_fields__} | changes)
    with pytest.raises(CorruptDataError, match=match):
        BatchReader(reindexed(data, [moved, *others]))


def test_the_marker_must_stand_where_the_messages_end() -> None:
    """An index that leaves out the last Message is noticed."""
    data = joined(seal(MESSAGES))
    with pytest.raises(CorruptDataError, match="not the end-of-stream marker"):
        BatchReader(reindexed(data, BatchReader(data).entries[:2]))


def test_a_schema_message_that_the_index_does_not_know_is_refused() -> None:
    """Both checksums are named."""
    data = joined(seal(MESSAGES))
    with pytest.raises(CorruptDataError, match=r"schema message .* the index says 00000005"):
        BatchReader(reindexed(data, BatchReader(data).entries, schema_crc32c=5))


# -- ranges ---------------------------------------------------------------------------------


def test_messages_are_read_by_range() -> None:
    """Schema and any one Message need no more than their own bytes."""
    data = joined(seal(MESSAGES))
    storage = Ranges(data)
    index = read_index(storage.get, len(data))
    schema = schema_from_range(storage.get(0, index.schema_length), index)
    for entry, rows in zip(index.entries, MESSAGES, strict=True):
        piece = storage.get(entry.offset, entry.length)
        assert message_from_range(piece, entry, schema).equals(rows)
        with pytest.raises(CorruptDataError, match=f"{entry.length} bytes; {entry.length - 8} are"):
            message_from_range(piece[8:], entry, schema)
        with pytest.raises(CorruptDataError, match="CRC32C"):
            message_from_range(piece[:-1] + b"!", entry, schema)
    with pytest.raises(CorruptDataError, match="schema message"):
        schema_from_range(b"\0" * index.schema_length, index)


def test_an_object_of_another_size_than_told_is_noticed() -> None:
    """Storage returned less than it should."""
    data = joined(seal(MESSAGES))
    with pytest.raises(CorruptDataError, match="were read as"):
        read_index(Ranges(data).get, len(data) + FOOTER_BYTES)
