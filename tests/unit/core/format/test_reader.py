import io

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memq.core.format.batch import BatchBuilder
from memq.core.format.index import FOOTER_BYTES
from memq.core.format.reader import BatchReader, message_from_range, read_index, schema_from_range
from memq.core.format.schema import serialize_schema
from memq.core.format.verify import verify
from memq.errors import CorruptDataError
from tests.unit.core.format.builders import (
    START_US,
    add,
    joined,
    record_batches,
    records,
    reindexed,
    seal,
)

MESSAGES = [records(1), records(30), records(7)]


# -- whole objects --------------------------------------------------------------------------


def test_a_batch_says_what_it_is() -> None:
    """Its metadata, and an entry for each Message."""
    reader = BatchReader(joined(seal(MESSAGES)))
    assert (reader.metadata.topic, reader.metadata.write_partition) == ("clicks", 3)
    assert [(e.sequence, e.records) for e in reader.entries] == [(0, 1), (1, 30), (2, 7)]
    times_us = reader.entries[1].min_timestamp_us, reader.entries[1].max_timestamp_us
    assert times_us == (START_US, START_US + 29)
    assert repr(reader).startswith("<BatchReader batch-1 [3 messages, ")


@given(record_batches(), st.sampled_from([None, "zstd"]), st.integers(1, 3))
@settings(max_examples=30)
def test_any_rows_survive_a_batch(rows, compression, count) -> None:
    """Random schemas, nested ones among them; and the object verifies."""
    data = joined(seal([rows] * count, compression))
    assert BatchReader(data).read(count - 1).equals(rows)
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
    """As storage, a socket or Arrow hand it over; whole, or by ranges of just what is needed."""
    view = memoryview(joined(seal(MESSAGES)))
    assert BatchReader(kind(view)).read_all().num_rows == 38
    assert verify(kind(view)).ok

    def get(start: int, length: int):
        return kind(bytes(view[start : start + length]))

    index = read_index(get, len(view))
    schema = schema_from_range(get(0, index.schema_length), index)
    for entry, rows in zip(index.entries, MESSAGES, strict=True):
        piece = get(entry.offset, entry.length)
        assert message_from_range(piece, entry, schema).equals(rows)
        with pytest.raises(CorruptDataError, match=f"{entry.length} bytes; {entry.length - 8} are"):
            message_from_range(get(entry.offset, entry.length - 8), entry, schema)
    with pytest.raises(CorruptDataError, match="schema message"):
        schema_from_range(b"\0" * index.schema_length, index)
    rebuilt = BatchBuilder(serialize_schema(schema), batch_id="b", topic="t", write_partition=0)
    times = {"min_timestamp_us": START_US, "max_timestamp_us": START_US + 6}
    add(rebuilt, piece, records=7, **times)
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
    with pytest.raises(CorruptDataError, match=match):
        BatchReader(reindexed(joined(seal(MESSAGES)), **changes))


def test_the_marker_must_stand_where_the_messages_end() -> None:
    """An index that leaves out the last Message is noticed."""
    data = joined(seal(MESSAGES))
    with pytest.raises(CorruptDataError, match="not the end-of-stream marker"):
        BatchReader(reindexed(data, BatchReader(data).entries[:2]))


def test_an_object_of_another_size_than_told_is_noticed() -> None:
    """Storage returned less than it should."""
    data = joined(seal(MESSAGES))
    with pytest.raises(CorruptDataError, match="were read as"):
        read_index(lambda start, length: data[start : start + length], len(data) + FOOTER_BYTES)
