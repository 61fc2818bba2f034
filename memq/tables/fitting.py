"""What Spark and Iceberg take of a topic's columns, and how values become that.

Both have fewer types than a topic may have, times in microseconds, and names that are compared
without regard to case. What is checked of a column is checked of all its parts.

`cast` is the way back, to a topic's types. What is below a null is no value, but Arrow's cast
counts it as one. So values are cast to a type whose fields may all be null, and checked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from memq.core.format.envelope import ARROW_ERRORS
from memq.core.units import counted
from memq.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

NAMING_COLUMNS = ("topic", "memq_topic_id", "partition", "offset")
"""Columns that say which offset of which topic a row of a table is of."""

_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
"""Types that Spark does not have, and the smallest ones with room for their values."""


def folded(name: str) -> str:
    """Return the name as it is compared by those who take `Offset` and `offset` for one."""
    return name.upper().lower()


def check_columns(schema: pa.Schema, topic: str, reserved: Collection[str], *, table: bool) -> None:
    """Refuse a topic whose columns do not fit files, before there are any.

    Args:
        schema: of the topic.
        topic: the topic.
        reserved: names of columns that the output has besides those of the topic.
        table: whether the files are of a table in Iceberg.

    Raises:
        SchemaMismatchError: naming the column.
    """
    if clash := [name for name in schema.names if folded(name) in reserved]:
        raise SchemaMismatchError(
            f"topic {topic!r} has a column {clash[0]!r}, which is also the name of a folder or "
            "column that the output has besides the topic's: readers would take one for the "
            'other. Read the topic with spark.read.format("memq"), and write it with that column '
            "renamed"
        )
    check_names(schema, topic)
    for path, kind in _parts(schema):
        empty = pat.is_struct(kind) and not kind.num_fields
        if empty or (table and (pat.is_null(kind) or pat.is_duration(kind))):
            raise SchemaMismatchError(
                f"column {'.'.join(path)!r} of topic {topic!r} is "
                f"{'a struct without fields' if empty else kind}, which "
                f"{'Iceberg' if table else 'Parquet'} cannot hold: write the others, which "
                "spark.read.format(\"memq\") and memq.scan read when 'columns' names them"
            )


def check_names(fields: Iterable[pa.Field], topic: str) -> None:
    """Refuse columns, or fields in them, that Spark cannot tell apart.

    Raises:
        SchemaMismatchError: naming them.
    """
    known: dict[tuple[str, ...], list[str]] = {}
    for path, _ in _parts(fields):
        known.setdefault(tuple(map(folded, path)), []).append(repr(".".join(path)))
    if names := next((each for each in known.values() if len(each) > 1), None):
        raise SchemaMismatchError(
            f"topic {topic!r} cannot be read with the columns {' and '.join(names)}: Spark, which "
            "does not regard case, takes them for one, and each row has columns such as topic, "
            "partition and offset besides the topic's. Choose columns by option 'columns' or by "
            ".schema() so that at most one of them is read"
        )


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values of a column of a Batch as a type that was made of the topic's by `widened`.

    Raises:
        SchemaMismatchError: one does not become such.
    """
    if column.type.equals(field.type):
        return column
    try:
        # Times finer than a microsecond are cut, and nothing else: all else must stay the same.
        return column.cast(rebuilt(column.type, _cut), safe=False).cast(field.type)
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(
            f"column {field.name!r} is {column.type} in this Batch, which does not become "
            f"{field.type}: {exc}"
        ) from exc


def has_equal_keys(column: pa.Array) -> bool:
    """Tell whether a map, at any depth, has a key twice."""
    if not pat.is_nested(column.type):
        return False
    if not pat.is_map(column.type):
        inner = column.flatten()
        return any(map(has_equal_keys, inner if pat.is_struct(column.type) else [inner]))
    lists = column.cast(_pairs(column.type))
    keys, values = lists.flatten().flatten()
    told = pa.array(map(repr, keys.to_pylist())) if pat.is_nested(keys.type) else keys
    places = pa.table({"row": pc.list_parent_indices(lists), "key": told})
    fewer = places.group_by(["row", "key"]).aggregate([]).num_rows < len(keys)
    return fewer or has_equal_keys(keys) or has_equal_keys(values)


def _parts(
    fields: Iterable[pa.Field], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """Give the path and the type of each column, and of all that it has in it."""
    for each in fields:
        yield (path := (*above, each.name)), each.type
        yield from _parts((each.type.field(n) for n in range(each.type.num_fields)), path)


def _widened(kind: pa.DataType) -> pa.DataType:
    if pat.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pat.is_fixed_size_binary(kind):
        return pa.binary()
    if pat.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pat.is_duration(kind):
        return pa.duration("us")
    return pa.time64("us") if pat.is_time(kind) else _WIDENED.get(kind, kind)


def _cut(kind: pa.DataType) -> pa.DataType:
    finer = pat.is_temporal(kind) and not pat.is_date(kind) and kind.unit == "ns"
    return _widened(kind) if finer else kind


def _pairs(kind: pa.DataType) -> pa.DataType:
    if not pat.is_map(kind):
        return kind
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


# -- the way back ---------------------------------------------------------------------------


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast the values of a column to another type.

    Raises:
        pa.ArrowException: one does not become such, or is null and may not be.
    """
    loose = column.cast(rebuilt(kind))
    _check_required(loose, kind)
    rows = pa.record_batch([loose], names=[""]).serialize()  # which has no types in it
    return pa.ipc.read_record_batch(rows, pa.schema([("", kind)])).column(0)


def _check_required(column: pa.Array, kind: pa.DataType) -> None:
    """Refuse nulls in fields that may not be null, but for those below a null."""
    if pat.is_map(kind):
        column, kind = column.view(_entries(column.type)), _entries(kind)
    if pat.is_struct(kind):
        fields, parts, least = list(kind), column.flatten(), column.null_count
    elif pat.is_nested(kind):
        fields, parts, least = [kind.value_field], [column.flatten()], 0
    else:
        return
    for field, part in zip(fields, parts, strict=True):
        if not field.nullable and part.null_count > least:
            nulls = counted(part.null_count - least, "value")
            raise pa.ArrowInvalid(f"field {field.name!r} is null in {nulls}")
        _check_required(part, field.type)


def _entries(kind: pa.DataType) -> pa.DataType:
    """Return a map as the list that it is in memory."""
    entry = pa.struct([kind.key_field, kind.item_field])
    return pa.list_(pa.field("entries", entry, nullable=False))


def rebuilt(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType] = lambda kind: kind
) -> pa.DataType:
    """Return the type after a change of all its parts, from the innermost on; all may be null, but
    for the keys of maps.
    """

    def part(field: pa.Field) -> pa.Field:
        return pa.field(field.name, rebuilt(field.type, change))

    if pat.is_struct(kind):
        kind = pa.struct([part(each) for each in kind])
    elif pat.is_map(kind):
        key = kind.key_field.with_type(rebuilt(kind.key_type, change))
        kind = pa.map_(key, part(kind.item_field), kind.keys_sorted)
    elif pat.is_fixed_size_list(kind):
        kind = pa.list_(part(kind.value_field), kind.list_size)
    elif pat.is_nested(kind):
        kind = (pa.list_ if pat.is_list(kind) else pa.large_list)(part(kind.value_field))
    return change(kind)


widened = partial(rebuilt, change=_widened)
"""Returns the type that Spark and Iceberg have with room for all values of a type, but for times
finer than a microsecond; all of its parts may be null."""
with_pairs = partial(rebuilt, change=_pairs)
"""Returns the type with lists of `key` and `value` in place of maps."""
