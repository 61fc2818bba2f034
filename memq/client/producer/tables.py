"""Tables become RecordBatches of a topic's schema, cut to the size of Messages.

Rows are never touched one by one, and columns that have the topic's type already are not copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.core.format.schema import decode_dictionaries
from memq.core.units import counted
from memq.errors import InvalidRequestError, MessageTooLargeError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_BYTES = 1 << 30  # half of what a column with 32-bit offsets can hold, when one is cast to it
MAX_RECORDS = 1_000_000  # per Message; columns of nulls or booleans would fit many more
_FILL = 0.95  # slices of uneven rows differ in size; most then fit at the first cut


def to_batches(
    rows: Any,
    schema: pa.Schema,
    topic: str,
    *,
    now_us: int,
    message_bytes: int,
    max_message_bytes: int,
    spread: Callable[[pa.Table], list[pa.Table]] | None = None,
) -> list[pa.RecordBatch]:
    """RecordBatches of the rows, in order, each fit for a Message of the topic.

    Args:
        rows: what `to_arrow` takes.
        schema: of the topic.
        topic: named in errors.
        now_us: time of rows that have none, in microseconds since 1970 UTC.
        message_bytes: size to cut to.
        max_message_bytes: size that a single row may have at most.
        spread: puts rows together that go to one place; None where all do.

    Raises:
        InvalidRequestError: the rows are no table.
        SchemaMismatchError: a column does not fit the schema.
        MessageTooLargeError: a row alone is too large.
    """
    table = to_arrow(rows)
    step = max(1, table.num_rows * PIECE_BYTES // max(1, table.nbytes))
    batches: list[pa.RecordBatch] = []
    for start in range(0, table.num_rows, step):
        piece = conform(table.slice(start, step), schema, topic, now_us)
        for part in [piece] if spread is None else spread(piece):
            batches += cut(part, message_bytes, max_message_bytes)
    return batches


def to_arrow(rows: Any) -> pa.Table:
    """An Arrow table of a `pyarrow` Table or RecordBatch, a pandas or polars DataFrame, or anything
    else that speaks the Arrow PyCapsule interface. An index of pandas is left out.

    Raises:
        InvalidRequestError: it is none of these.
        SchemaMismatchError: Arrow has no type for one of the columns.
    """
    try:
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            return pa.table(rows)
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(f"{type(rows).__name__} does not become Arrow: {exc}") from exc
    raise InvalidRequestError(
        f"a table must be a pyarrow Table or RecordBatch, or a pandas or polars DataFrame, "
        f"not {type(rows).__name__}"
    )


def conform(table: pa.Table, schema: pa.Schema, topic: str, now_us: int) -> pa.Table:
    """The table with the columns of the topic's schema, in its order and types.

    Columns are cast where that loses nothing. A missing nullable column becomes nulls; a missing
    `timestamp` becomes `now_us` (microseconds since 1970 UTC).

    Raises:
        SchemaMismatchError: naming the column, what the topic expects and what was given.
    """
    extra = sorted(set(table.column_names) - set(schema.names))
    if extra:
        raise SchemaMismatchError(
            f"column {extra[0]!r} is not in the schema of topic {topic!r}, which has "
            f"{', '.join(schema.names)}"
        )
    table = decode_dictionaries(_without_views_in_dictionaries(table))
    columns = [_column(table, field, topic, now_us) for field in schema]
    return pa.table(columns, schema=schema)


def cut(table: pa.Table, message_bytes: int, max_message_bytes: int) -> list[pa.RecordBatch]:
    """RecordBatches of the table's rows, in order, each fit for a Message. No row is copied, unless
    the table is in many small pieces.

    Args:
        table: of a topic's schema.
        message_bytes: size to cut to.
        max_message_bytes: size that a single row may have at most.

    Raises:
        MessageTooLargeError: a row alone is larger.
    """
    batches = table.to_batches()
    if len(batches) > 1 and table.nbytes < len(batches) * message_bytes / 2:
        batches = table.combine_chunks().to_batches()
    return [part for batch in batches for part in _parts(batch, message_bytes, max_message_bytes)]


def _without_views_in_dictionaries(table: pa.Table) -> pa.Table:
    """Categoricals of polars are dictionaries of string views, which Arrow cannot decode."""
    for position, field in enumerate(table.schema):
        if pat.is_dictionary(field.type) and pat.is_string_view(field.type.value_type):
            chunks = [
                pa.DictionaryArray.from_arrays(
                    chunk.indices, chunk.dictionary.cast(pa.large_utf8())
                )
                for chunk in table.column(position).chunks
            ]
            kind = pa.dictionary(field.type.index_type, pa.large_utf8())
            table = table.set_column(position, field.name, pa.chunked_array(chunks, kind))
    return table


def _column(table: pa.Table, field: pa.Field, topic: str, now_us: int) -> Any:
    rows = table.num_rows
    expected = f"topic {topic!r} expects column {field.name!r} as {field.type}"
    position = table.schema.get_field_index(field.name)
    if position < 0:
        if field.name == TIMESTAMP_COLUMN and pat.is_timestamp(field.type):
            now = pa.scalar(now_us, pa.timestamp("us", "UTC")).cast(field.type, safe=False)
            return pa.repeat(now, rows)
        if not field.nullable:
            raise SchemaMismatchError(f"{expected}, not null, but the table has no such column")
        # Not `pa.nulls`: below lists and maps it makes children that no slice gets rid of.
        return pa.array([], field.type).take(pa.nulls(rows, pa.int32()))
    column = table.column(position)
    if not field.nullable and column.null_count:
        nulls = counted(column.null_count, "row is", "rows are")
        raise SchemaMismatchError(f"{expected}, not null, but {nulls} null")
    try:
        if column.type.equals(field.type):
            if pat.is_decimal(field.type):
                column.validate(full=True)  # Arrow makes decimals with more digits than their type
            return column
        return column.cast(field.type)
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(f"{expected}, but got {column.type}: {exc}") from exc


def _parts(batch: pa.RecordBatch, target: int, limit: int) -> Iterator[pa.RecordBatch]:
    rows, size = batch.num_rows, pa.ipc.get_record_batch_size(batch)
    if rows == 0:
        return
    if size <= target and rows <= MAX_RECORDS:
        yield batch
        return
    if rows == 1:
        if size > limit:
            raise MessageTooLargeError(
                f"a row of {size} bytes does not fit into a Message of {limit} bytes, the lesser "
                "of the topic's message_bytes and the producer's buffer_bytes"
            )
        yield batch
        return
    step = min(MAX_RECORDS, rows // 2, max(1, int(rows * _FILL * target / size)))
    for start in range(0, rows, step):
        yield from _parts(batch.slice(start, step), target, limit)
