"""Tables become RecordBatches of a topic's schema, cut to the size of Messages.

Rows are never touched one by one, and columns that have the topic's type already are not copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from memq.client.producer.fitting import Misfit, fit_struct, shown
from memq.client.producer.rows import first_changed
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TIMESTAMP_COLUMN
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
    first_row: int | None = 0,
    spread: Callable[[pa.Table], list[pa.Table]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield RecordBatches of the rows, in order, each fit for a Message of the topic.

    Nothing is yielded before all rows are checked. A table of more than `PIECE_BYTES` is so in a
    first pass, and what is cast of it is never in memory as a whole.

    Args:
        rows: what `to_arrow` takes.
        schema: of the topic.
        topic: named in errors.
        now_us: time of rows that have none, in microseconds since 1970 UTC.
        message_bytes: size to cut to.
        max_message_bytes: size that a single row may have at most.
        first_row: number of the first row in errors; None where the caller says which it is.
        spread: puts rows together that go to one place; None where all do.

    Raises:
        InvalidRequestError: the rows are no table.
        SchemaMismatchError: a column does not fit the schema.
        MessageTooLargeError: a row alone is too large.
    """
    table = to_arrow(rows)
    step = max(1, table.num_rows * PIECE_BYTES // max(1, table.nbytes))

    def fitted(start: int) -> list[pa.RecordBatch]:
        row = None if first_row is None else first_row + start
        piece = conform(table.slice(start, step), schema, topic, now_us, row)
        parts = [piece] if spread is None else spread(piece)
        return [each for part in parts for each in cut(part, message_bytes, max_message_bytes)]

    if step < table.num_rows:
        for start in range(0, table.num_rows, step):
            fitted(start)
    for start in range(0, table.num_rows, step):
        yield from fitted(start)


def to_arrow(rows: Any) -> pa.Table:
    """Convert a `pyarrow` Table or RecordBatch, a pandas or polars DataFrame, or any object with
    the Arrow PyCapsule interface to an Arrow table. An index of pandas is a column if it has a
    name.

    Raises:
        InvalidRequestError: it is none of these.
        SchemaMismatchError: Arrow has no type for one of the columns, or would change a value.
    """
    try:
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            return _of_pandas(rows)
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            return pa.table(rows)
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(f"{type(rows).__name__} does not become Arrow: {exc}") from exc
    raise InvalidRequestError(
        f"a table must be a pyarrow Table or RecordBatch, or a pandas or polars DataFrame, "
        f"not {type(rows).__name__}; for a list of mappings use write_rows"
    )


def _of_pandas(frame: Any) -> pa.Table:
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    for position, column in enumerate(table.columns):
        # Arrow takes objects for what the first one is, and so makes a time a day.
        if str(frame.dtypes.iloc[position]) == "object" and not pat.is_string(column.type):
            objects = frame.iloc[:, position]
            objects = objects.where(objects.notna(), None).tolist()
            if (at := first_changed(objects, column.type)) is not None:
                raise SchemaMismatchError(
                    f"column {table.column_names[position]!r} has objects of several kinds, which "
                    f"become {column.type}; row {at} has {shown(objects[at])}"
                )
    return table


def conform(
    table: pa.Table, schema: pa.Schema, topic: str, now_us: int, first_row: int | None = 0
) -> pa.Table:
    """Cast the table to the columns of the topic's schema, in its order and types.

    Columns are cast where that loses nothing (`memq.client.producer.fitting`). A missing nullable
    column becomes nulls; a missing `timestamp` becomes `now_us` (microseconds since 1970 UTC).

    Raises:
        SchemaMismatchError: naming column, row and value, and what the topic expects.
    """
    if lacks_timestamp(table.column_names, schema):
        now = pa.scalar(now_us, pa.timestamp("us", "UTC"))
        now = now.cast(schema.field(TIMESTAMP_COLUMN).type, safe=False)
        table = table.append_column(TIMESTAMP_COLUMN, pa.repeat(now, table.num_rows))
    empty = [pa.nulls(0, kind) for kind in table.schema.types]
    batches, row = [], first_row
    try:
        for batch in table.to_batches() or [pa.RecordBatch.from_arrays(empty, schema=table.schema)]:
            batch.validate()  # what the rest relies on: buffers are as long as they must be
            rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
            fitted = fit_struct(rows, pa.struct(schema)).flatten()
            batches.append(pa.RecordBatch.from_arrays(fitted, schema=schema))
            row = None if row is None else row + len(rows)
    except Misfit as wrong:
        raise SchemaMismatchError(wrong.text(topic, row)) from wrong
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(
            f"the rows do not become those of topic {topic!r}: {exc}"
        ) from exc
    return pa.Table.from_batches(batches, schema)


def lacks_timestamp(names: list[str], schema: pa.Schema) -> bool:
    """Return whether a topic's rows have a time that rows with these columns do not have."""
    at = schema.get_field_index(TIMESTAMP_COLUMN)
    return at >= 0 and pat.is_timestamp(schema.types[at]) and TIMESTAMP_COLUMN not in names


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
