"""LogMessages as lines of text: raw values in bulk, or one JSON object each."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from memq.core.notification import Notification
from memq.core.units import iso_us
from memq.errors import InvalidRequestError
from memq.reading.batch import Batch, arrange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memq.core.format.reader import BatchReader
    from memq.reading.batch import LogMessage

_encoder = msgspec.json.Encoder()
_PIECE = 4_096  # LogMessages; enough to spread the cost of a write, little beside their Batch


def raw_lines(
    rows: Iterable[pa.RecordBatch], key_separator: bytes | None = None
) -> Iterator[memoryview]:
    """Values, each followed by a newline; a tombstone is an empty line.

    Each RecordBatch becomes one piece, joined by Arrow without a step per LogMessage.

    Args:
        rows: of an untyped topic.
        key_separator: stands between each key, which may be missing, and its value; None for values
            alone.

    Raises:
        InvalidRequestError: the rows are those of a typed topic without a binary `value`.
    """
    for batch in rows:
        position = batch.schema.get_field_index("value")
        if position < 0 or batch.schema.types[position] != pa.binary():
            raise InvalidRequestError(
                "a typed topic has columns and no raw values; print it with --format json or csv"
            )
        parts = [_large(batch.column(position)), _large(b"\n")]
        if key_separator is not None:
            parts = [_large(batch.column("key")), _large(key_separator), *parts]
        joined = pc.binary_join_element_wise(
            *parts, _large(b""), null_handling="replace", null_replacement=b""
        )
        yield bytes_of(joined)


def _large(part: pa.Array | bytes) -> Any:
    """With offsets that take what is joined past 2 GiB."""
    kind = pa.large_binary()
    return pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind)


def json_lines(objects: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """One line for each object, some thousand to a piece."""
    rest = iter(objects)
    while piece := list(islice(rest, _PIECE)):
        yield _encoder.encode_lines(piece)


def json_object(message: LogMessage, value: Any = None) -> dict[str, Any]:
    """A LogMessage as what JSON can hold; bytes that are not UTF-8 become `{"base64": "…"}`.

    Args:
        message: of a topic of whatever kind.
        value: what JSON holds for its value, where that is known.
    """
    return {
        "key": json_value(message.key),
        "value": json_value(message.value) if value is None else value,
        "headers": json_value(message.headers),
        "timestamp": iso_us(message.timestamp_us),
        "partition": message.partition,
        "offset": message.offset,
        "write_partition": message.write_partition,
        "producer_id": message.producer_id,
        "epoch": message.epoch,
        "sequence": message.sequence,
        "position": message.position,
    }


def object_records(reader: BatchReader) -> Iterator[dict[str, Any]]:
    """The LogMessages of an object, which does not know at which offset it was published."""
    metadata, entries = reader.metadata, reader.entries
    # Nothing else that a notification tells is in a LogMessage.
    told: dict[str, Any] = dict.fromkeys(Notification.__struct_fields__)
    told |= {"topic": metadata.topic, "write_partition": metadata.write_partition}
    about = Notification(**told)
    for position, entry in enumerate(entries):
        sections = arrange([(entry, reader.read(position))], reader.schema, "none")
        batch = Batch(about, -1, -1, reader.schema, sections)
        batch.time_column = metadata.time_column
        for message in batch:
            found = json_object(message)
            del found["partition"], found["offset"]
            yield found


def json_value(value: Any) -> Any:
    """A value without bytes at any depth; for times and decimals the encoder has a text itself."""
    match value:
        case float() if not math.isfinite(value):  # JSON has no such numbers
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return _text_or_base64(value)
        case datetime() if value.tzinfo is not None:  # an offset of long ago has seconds
            return value.astimezone(UTC)
        case dict():
            return {name: json_value(item) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case _:
            return value


def _text_or_base64(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def bytes_of(array: pa.LargeBinaryArray) -> memoryview:
    """All values of an array, which lie one after the other."""
    _, offsets, data = array.buffers()
    bounds = memoryview(offsets).cast("B").cast("q")
    first, last = bounds[array.offset], bounds[array.offset + len(array)]
    return memoryview(data)[first:last]
