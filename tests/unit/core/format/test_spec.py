"""`docs/format.md` says what the code does: its example is regenerated, and read by its words."""

import re
import struct
from pathlib import Path

import pyarrow as pa

from memq.core.checksum import crc32c
from memq.core.format import envelope, index, schema
from memq.core.format.batch import BatchBuilder, SealedBatch
from memq.core.format.message import MAX_DECODED_BYTES, encode_message
from memq.core.format.reader import BatchReader
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.format.verify import verify
from tests.unit.core.format.builders import add

SPEC = Path(__file__).resolve().parents[4] / "docs" / "format.md"
DUMP = re.compile(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)  ", re.MULTILINE)


def example() -> SealedBatch:
    """The Batch of the worked example: one column, two Messages of two producers."""
    kind = pa.schema([("value", pa.binary())])
    builder = BatchBuilder(
        serialize_schema(kind), batch_id="example", topic="demo", write_partition=0
    )
    for producer_id, sequence, values in (("p", 7, [b"hello", None]), ("q", 0, [b"MemQ"])):
        body = encode_message(pa.record_batch([pa.array(values)], schema=kind))
        add(
            builder,
            body,
            producer_id=producer_id,
            epoch=1,
            sequence=sequence,
            records=len(values),
            min_timestamp_us=0,
            max_timestamp_us=0,
        )
    return builder.seal()


def dump(data: bytes) -> str:
    """Sixteen bytes a line: position, hex, text."""
    lines = []
    for position in range(0, len(data), 16):
        piece = data[position : position + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{position:04x}  {piece.hex(' ', -4):35}  {text}")
    return "\n".join(lines)


def undump(text: str) -> bytes:
    """The bytes of the dump in a text."""
    return b"".join(bytes.fromhex(match[2]) for match in DUMP.finditer(text))


def read_by_the_words(data: bytes) -> list[list[bytes | None]]:
    """A reader written from the document alone; Arrow is used for Arrow streams only."""
    length, crc, magic, version = struct.unpack("<II7sB", data[-16:])
    assert (magic, version) == (b"MemQBat", 1)
    raw_index = data[-16 - length : -16]
    assert crc32c(raw_index + data[-16:-12]) == crc
    table = pa.ipc.open_stream(raw_index).read_all()
    rows = table.to_pylist()
    schema_message = data[: rows[0]["offset"]]
    assert f"{crc32c(schema_message):08x}".encode() == table.schema.metadata[b"memq.schema_crc32c"]
    position, values = len(schema_message), []
    for row in rows:
        assert row["offset"] == position
        message = data[position : position + row["length"]]
        assert crc32c(message) == row["crc32c"]
        piece = pa.ipc.open_stream(schema_message + message).read_all()
        assert piece.num_rows == row["records"]
        values.append(piece["value"].to_pylist())
        position += row["length"]
    assert data[position : position + 8] == b"\xff\xff\xff\xff\0\0\0\0"
    assert position + 8 == len(data) - 16 - length
    return values


def test_the_example_is_what_the_code_writes() -> None:
    """Byte for byte; when this fails, the dump below belongs into the document."""
    data = b"".join(map(bytes, example().buffers))
    assert undump(SPEC.read_text()) == data, dump(data)


def test_the_example_is_read_as_the_document_says() -> None:
    """By a reader written from its words, and by ours."""
    data = undump(SPEC.read_text())
    expected = [[b"hello", None], [b"MemQ"]]
    assert read_by_the_words(data) == expected
    reader = BatchReader(data)
    assert [reader.read(n)["value"].to_pylist() for n in range(2)] == expected
    assert verify(data).ok


def test_the_limits_in_the_document_are_those_of_the_code() -> None:
    """Each as a number."""
    text = SPEC.read_text()
    for limit in (
        f"| Messages in a Batch | {index.MAX_MESSAGES:,} |",
        f"| bytes of a producer id | {index.MAX_PRODUCER_ID_BYTES} |",
        f"| bytes of an index | {index.MAX_INDEX_BYTES >> 20} MiB |",
        f"| bytes of a schema message | {schema.MAX_SCHEMA_BYTES >> 20} MiB |",
        f"| bytes of a row of nulls | {schema.MAX_ROW_BYTES >> 20} MiB |",
        f"| levels of nesting in a column | {schema.MAX_NESTING} |",
        f"| decoded bytes of a Message | {MAX_DECODED_BYTES >> 20} MiB |",
        f"| alignment | {envelope.ALIGNMENT} |",
    ):
        assert limit in text


def test_the_default_schema_and_the_index_columns_stand_in_the_document() -> None:
    """Name, type and whether it may be null."""
    text = SPEC.read_text()
    for field in (*DEFAULT_SCHEMA, *index.INDEX_SCHEMA):
        null = "yes" if field.nullable else "no"
        row = rf"^\| `{field.name}` \| `{re.escape(str(field.type))}` \| {null} \|"
        assert re.search(row, text, re.MULTILINE)
