"""Rows and columns of Python objects become Arrow; what that would change is refused.

Arrow takes 1.5 for the integer 1, a number for a time, and a wall clock's time for an instant. So
what it made is turned back into objects, and each is compared with the one that was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from memq.client.producer.fitting import shown
from memq.core.format.envelope import ARROW_ERRORS
from memq.errors import InvalidRequestError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable


def to_table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, topic: str) -> pa.Table:
    """Return rows as a table of those columns of a topic's schema that some row has.

    Raises:
        InvalidRequestError: a row is no mapping.
        SchemaMismatchError: naming column, row and value.
    """
    if isinstance(rows, (Mapping, str, bytes)):
        raise InvalidRequestError(f"rows must be a list of mappings, not {type(rows).__name__}")
    rows, known = list(rows), frozenset(schema.names)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequestError(
                f"row {number} must be a mapping of columns to values, not {type(row).__name__}"
            )
        for name in row.keys() - known:
            raise SchemaMismatchError(
                f"column {name!r} is not in the schema of topic {topic!r}, which has "
                f"{', '.join(schema.names)}; row {number} has {shown(row[name])}"
            )
    given = frozenset().union(*rows)
    fields = [field for field in schema if field.name in given]
    columns = [_column([row.get(field.name) for row in rows], field, topic) for field in fields]
    return pa.table(columns, schema=pa.schema(fields))


def first_changed(values: list[object], kind: pa.DataType) -> int | None:
    """Return the position of the first object that Arrow does not keep as one of this type."""
    if _are_kept(values, kind):
        return None
    return next((at for at, value in enumerate(values) if not _are_kept([value], kind)), 0)


def _are_kept(values: list[object], kind: pa.DataType) -> bool:
    try:
        return all(map(_is_same, values, pa.array(values, kind).to_pylist()))
    except ARROW_ERRORS:
        return False


def _column(values: list[object], field: pa.Field, topic: str) -> Any:
    if (at := first_changed(values, field.type)) is None:
        return pa.array(values, field.type)
    raise SchemaMismatchError(
        f"topic {topic!r} expects column {field.name!r} as {field.type}, but row {at} has "
        f"{shown(values[at])}, which that cannot hold unchanged"
    )


def _is_same(given: Any, back: Any) -> bool:
    """Return whether Arrow gave back an object as it was; the fields that it lacked are null."""
    if back is None:
        return given is None or given != given  # noqa: PLR0124 - NaN
    if isinstance(back, dict):
        return (
            isinstance(given, Mapping)
            and given.keys() <= back.keys()
            and all(_is_same(given[name], back[name]) for name in given)
        )
    if isinstance(back, list | tuple):
        parts = given.items() if isinstance(given, Mapping) else given
        return not isinstance(given, str | bytes) and all(map(_is_same, parts, back))
    if isinstance(given, str) and isinstance(back, bytes):
        return given.encode() == back
    if isinstance(given, bytes) and isinstance(back, str):
        return given == back.encode()
    same = given == back or (given != given and back != back)  # noqa: PLR0124 - NaN
    return bool(same) and isinstance(given, bool) <= isinstance(back, bool)
