"""Arrow's cast, also to structs that may be null and have fields that are not.

What is below a null is no value. Arrow's cast counts it as one, and refuses a field that is not
null as soon as a struct around it is. So values are cast first to a type whose fields may all be
null; then each struct is built anew, with something below its nulls, as Arrow's own builders do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from memq.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a column in another type.

    Raises:
        pa.ArrowException: one does not become such, or is null and may not be.
    """
    loose = rebuilt(kind)
    return column.cast(kind) if loose.equals(kind) else _strict(column.cast(loose), kind)


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


def _strict(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of a loose type in the one that it was made from."""
    if column.type.equals(kind):
        return column
    if pat.is_struct(kind):
        return _strict_struct(column, kind)
    if pat.is_map(kind):
        entries = _entries(column.type), _entries(kind)
        return _strict(column.view(entries[0]), entries[1]).view(kind)
    lengths = column.value_lengths()
    ends = pc.cumulative_sum(lengths.fill_null(0))
    offsets = pa.concat_arrays([pa.array([0], lengths.type), ends])
    values = _strict_field(column.flatten(), kind.value_field)
    array: Any = pa.ListArray if pat.is_list(kind) else pa.LargeListArray
    return array.from_arrays(offsets, values, type=kind, mask=column.is_null())


def _strict_struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    there, below_null = column.drop_null(), pa.array([None], kind)
    number = pc.cumulative_sum(column.is_valid().cast(pa.int64()))
    place = pc.if_else(column.is_valid(), pc.subtract(number, 1), len(there))
    fields = [
        pa.concat_arrays([_strict_field(there.field(n), each), below_null.field(n)]).take(place)
        for n, each in enumerate(kind)
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())


def _strict_field(values: pa.Array, field: pa.Field) -> pa.Array:
    if values.null_count and not field.nullable:
        raise pa.ArrowInvalid(
            f"field {field.name!r} is null in {counted(values.null_count, 'value')}"
        )
    return _strict(values, field.type)


def _entries(kind: pa.DataType) -> pa.DataType:
    """A map as the list that it is in memory."""
    entry = pa.struct([kind.key_field, kind.item_field])
    return pa.list_(pa.field("entries", entry, nullable=False))
