"""JSON lines become rows of a topic's schema, a block of them at a time.

Every line is one JSON object, in one of two shapes:

- the row itself: the columns of a typed topic, or `value`, `key`, `headers` and `timestamp`. Bytes
  are text, or `{"base64": "…"}` where they are none.
- what `memq consume --format json` prints, whose `value` is the row of a typed topic. What else it
  prints says where the LogMessage was, and is not taken over. The first line tells which shape all
  lines of the input have.

`msgspec` decodes a line straight into the types that the schema asks for, so that a line which does
not fit is refused with the place in it; and columns become Arrow as a whole. What comes before a
line that is refused is still given out.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from memq.core.decoding import UNDECODABLE
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.core.format.schema import DEFAULT_SCHEMA, ORIGIN_COLUMNS
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

E = TypeVar("E", bound=Exception)
R = TypeVar("R")
T = TypeVar("T", bound=Any)  # what can be counted and cut

BYTE_ORDER_MARK = "\ufeff".encode()
ORIGIN_FIELDS = tuple(name for name in ORIGIN_COLUMNS if name != "batch")
"""Of what consume prints, where a LogMessage was."""

REFUSED = (*ARROW_ERRORS, *UNDECODABLE, ValueError, OverflowError)
"""What a value that does not fit raises."""

_CONSUMED_FIELDS = {"key", "value", "headers", TIMESTAMP_COLUMN, *ORIGIN_FIELDS}
_OTHER_FIELDS = ("batch", "topic")
"""What memq export --metadata has besides, and memq consume of several topics."""
_SHOWN = 80  # characters of a line in an error
_HINT = (
    '; a line has a value, and may have key, headers and timestamp: texts, or {"base64": "…"}; to '
    "send each line as it is, use --format lines"
)
_KEYS = re.compile(rb'"([^"]*)"\s*+(:?)')  # texts of JSON without escapes, and which are keys


class Rows(NamedTuple):
    """Some rows, and where they come from.

    Attributes:
        table: of the topic's schema, or of fewer columns.
        numbers: of the line, or of the row of a file, that each of them is.
    """

    table: pa.Table
    numbers: Sequence[int]


def json_rows(
    blocks: Iterable[list[bytes]], schema: pa.Schema, now_us: Callable[[], int]
) -> Iterator[Rows]:
    """Make rows of lines, a table for each block.

    Args:
        blocks: lines without their newline, in order; blank ones are skipped.
        schema: of the topic.
        now_us: time of rows that say none, in microseconds since 1970 UTC.

    Raises:
        InvalidRequestError: a line does not fit; those before it were given out.
    """
    check_types(schema)
    shape: _Shape | None = None
    number = 0
    for block in blocks:
        lines = block if number else [block[0].removeprefix(BYTE_ORDER_MARK), *block[1:]]
        numbered = [(at, line) for at, line in enumerate(lines, number + 1) if line.strip()]
        number += len(block)
        if numbered:
            shape = shape or _shape_of(schema, numbered[0][1])
            yield from _rows_of(numbered, shape, now_us())


def _rows_of(numbered: list[tuple[int, bytes]], shape: _Shape, now_us: int) -> Iterator[Rows]:
    def table_of(part: list[tuple[int, bytes]]) -> pa.Table:
        rows = [shape.decode(line) for _, line in part]
        return _table([each.value for each in rows] if shape.wrapped else rows, shape, now_us)

    table, good, why = take_fitting(numbered, table_of, REFUSED)
    if table is not None:
        yield Rows(table, [number for number, _ in numbered[:good]])
    if why is not None:
        number, line = numbered[good]
        shown = line[:_SHOWN].decode(errors="backslashreplace") + "…" * (len(line) > _SHOWN)
        shown = shown.replace("\ufeff", r"\ufeff")  # a byte order mark shows nothing
        reason = f"{without_advice(why)}{shape.hint}"
        raise InvalidRequestError(f"line {number}: {reason}: {shown}") from why


def take_fitting(
    items: T, attempt: Callable[[T], R], errors: tuple[type[E], ...]
) -> tuple[R | None, int, E | None]:
    """Attempt as many of the first items as are not refused.

    The attempt with the first so many items raises one of the errors from some number on.

    Returns:
        What came of them, how many they are, and why the next one is refused: None for what there
        is not.
    """
    found, why = None, None
    good, bad, middle = 0, len(items) + 1, len(items)
    while good + 1 < bad:
        try:
            found = attempt(items[:middle])
        except errors as exc:
            bad, why = middle, exc
        else:
            good = middle
        middle = (good + bad) // 2
    return found, good, why


def without_advice(reason: Exception) -> str:
    """Return what Arrow says, without what to do about it in Python."""
    return str(reason).partition(". If these timestamps")[0]


def check_types(schema: pa.Schema) -> None:
    """Refuse a schema with values that no text stands for.

    Raises:
        InvalidRequestError: naming the column.
    """
    for field in schema:
        if _has_duration(field.type):
            raise InvalidRequestError(
                f"column {field.name!r} of type {field.type}: JSON and CSV hold no durations; "
                "write such rows in Python with write_table"
            )


def _has_duration(kind: pa.DataType) -> bool:
    inner = (kind.field(position).type for position in range(kind.num_fields))
    return bool(pat.is_duration(kind)) or any(map(_has_duration, inner))


def needed_names(schema: pa.Schema) -> set[str]:
    """Return the columns that each row names."""
    if schema.equals(DEFAULT_SCHEMA):
        return {"value"}
    return {field.name for field in schema if not (field.nullable or is_time(field))}


def is_time(field: pa.Field) -> bool:
    """Return whether this column is the time of its row, which is now where a line says none."""
    return bool(field.name == TIMESTAMP_COLUMN and pat.is_timestamp(field.type))


def now_in(field: pa.Field, now_us: int) -> pa.Scalar:
    """Return this time as a value of a column."""
    return pa.scalar(now_us, pa.timestamp("us", "UTC")).cast(field.type, safe=False)


# -- a line is decoded ----------------------------------------------------------------------


class _Shape(NamedTuple):
    """How lines are decoded.

    Attributes:
        schema: of the rows.
        decode: one line.
        wrapped: rows are the values of what is decoded.
        hint: what to add to the error of a line that does not fit.
    """

    schema: pa.Schema
    decode: Callable[[bytes], Any]
    wrapped: bool = False
    hint: str = ""


def _shape_of(schema: pa.Schema, first: bytes) -> _Shape:
    needed = needed_names(schema)
    if schema.equals(DEFAULT_SCHEMA):
        row = _struct(schema, needed=needed, ignored=(*ORIGIN_FIELDS, *_OTHER_FIELDS))
        return _Shape(schema, _decoder(row), hint=_HINT)
    row = _struct(schema, needed=needed)
    names = _names_in(first) - {*_OTHER_FIELDS}
    if names != _CONSUMED_FIELDS or set(schema.names) >= _CONSUMED_FIELDS:
        return _Shape(schema, _decoder(row))
    others = sorted((_CONSUMED_FIELDS | {*_OTHER_FIELDS}) - {"value"})
    ignored = [(name, msgspec.Raw, msgspec.Raw()) for name in others]
    consumed = msgspec.defstruct("Consumed", [("value", row), *ignored], forbid_unknown_fields=True)
    return _Shape(schema, _decoder(consumed), wrapped=True)


def _names_in(line: bytes) -> set[str]:
    try:
        return set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except UNDECODABLE:
        return set()  # the decoder of rows says what is wrong


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return what decodes JSON of a type, and refuses an object that names a field twice.

    The decoder would take the last one without a word.
    """
    decode = msgspec.json.Decoder(kind).decode

    def decode_once(line: bytes) -> Any:
        found = decode(line)
        keys = [key for key, colon in _KEYS.findall(line) if colon]
        if b"\\" in line or len(set(keys)) < len(keys):
            json.loads(line, object_pairs_hook=_check_keys, parse_int=str, parse_float=str)
        return found

    return decode_once


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise msgspec.ValidationError(f"Object contains field `{key}` {count} times")


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: str


_Bytes = str | _Base64


def _struct(
    fields: Iterable[pa.Field],
    *,
    needed: Collection[str] | None = None,
    ignored: Iterable[str] = (),
) -> type:
    """Make the type of an object with these fields, which need not be names in Python.

    Args:
        fields: their position names them in Python.
        needed: which must be there, of a row; None inside of a type.
        ignored: names of others that may be there.
    """
    members: list[Any] = [(name, msgspec.Raw, msgspec.Raw()) for name in ignored]
    for position, field in enumerate(fields):
        kind = _item_type(field)
        options: dict[str, Any] = {"default": None} if field.nullable else {}
        if needed is not None and is_time(field):
            kind, options = _or_null(kind) | msgspec.UnsetType, {"default": msgspec.UNSET}
        if needed is not None and field.name in needed:
            options = {}
        members.append((f"f{position}", kind, msgspec.field(name=field.name, **options)))
    try:
        return msgspec.defstruct("Row", members, forbid_unknown_fields=True, kw_only=True)
    except ValueError as exc:
        raise InvalidRequestError(
            "--format json cannot take fields of such names; write such rows in Python with "
            f"write_table: {exc}"
        ) from exc


def _json_type(kind: pa.DataType) -> Any:
    """Return what a value of an Arrow type is decoded as; dates and times as text."""
    if pat.is_struct(kind):
        return _struct(kind)
    if pat.is_map(kind):
        key, item = _item_type(kind.key_field), _item_type(kind.item_field)
        pairs = list[tuple[key, item]]  # type: ignore[valid-type]
        return pairs | dict[str, item] if is_text(kind.key_type) else pairs  # type: ignore[valid-type]
    if pat.is_nested(kind):
        return list[_item_type(kind.value_field)]  # type: ignore[misc]
    return next((of for is_one, of in _JSON_TYPES if is_one(kind)), str)


def _item_type(field: pa.Field) -> Any:
    kind = _json_type(field.type)
    return _or_null(kind) if field.nullable else kind


def _or_null(kind: Any) -> Any:
    return None if kind is None else kind | None  # what has no type but null is null as it is


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are texts."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values are bytes."""
    return bool(pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind))


_NotFinite = Annotated[str, msgspec.Meta(pattern="^(NaN|-?Infinity)$")]
"""Numbers that JSON has not."""

_JSON_TYPES: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pat.is_null, None),
    (pat.is_boolean, bool),
    (pat.is_integer, int),
    (pat.is_floating, int | float | _NotFinite),
    (pat.is_decimal, Decimal),
    (is_binary, _Bytes),
)


# -- decoded values become columns ----------------------------------------------------------


def _table(rows: list[Any], shape: _Shape, now_us: int) -> pa.Table:
    columns = []
    for position, field in enumerate(shape.schema):
        values = [getattr(row, f"f{position}") for row in rows]
        try:
            columns.append(_column(values, field, now_us))
        except REFUSED as exc:
            raise ValueError(f"column {field.name!r}: {exc}") from exc
    return pa.table(columns, schema=shape.schema)


def _column(values: list[Any], field: pa.Field, now_us: int) -> pa.Array:
    if not is_time(field):
        return _array(values, field.type)
    unset = msgspec.UNSET if field.nullable else None
    missing = pa.array([value in (msgspec.UNSET, unset) for value in values], pa.bool_())
    given = [None if value is msgspec.UNSET else value for value in values]
    return pc.if_else(missing, now_in(field, now_us), _array(given, field.type))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pat.is_temporal(kind):
        return times_of(pa.array(values, pa.utf8()), kind)
    return pa.array(_plain(values, kind), kind)


def _plain(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Return what Arrow takes for decoded values."""
    if pat.is_nested(kind):
        inner = _plain_struct if pat.is_struct(kind) else _plain_list
        return [None if value is None else inner(value, kind) for value in values]
    if is_binary(kind):
        return list(map(_bytes, values))
    if pat.is_floating(kind):
        return [None if value is None else exact_float(value, kind) for value in values]
    return list(_array(values, kind)) if pat.is_temporal(kind) else values


def _plain_struct(value: Any, kind: pa.StructType) -> dict[str, Any]:
    return {
        field.name: _plain([getattr(value, f"f{position}")], field.type)[0]
        for position, field in enumerate(kind)
    }


def _plain_list(value: Any, kind: pa.DataType) -> Sequence[Any]:
    if not pat.is_map(kind):
        return _plain(value, kind.value_type)
    pairs = value.items() if isinstance(value, dict) else value
    keys = _plain([key for key, _ in pairs], kind.key_type)
    return list(zip(keys, _plain([item for _, item in pairs], kind.item_type), strict=True))


def times_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Make dates and times of their texts; one that the type is too coarse for is refused."""
    if pat.is_date(kind):
        return texts.cast(pa.date32()).cast(kind)
    unit = "ns" if kind.unit == "ns" else "us"
    if pat.is_timestamp(kind):
        return texts.cast(pa.timestamp(unit, kind.tz)).cast(kind)
    of_day = pc.binary_join_element_wise("1970-01-01T", texts, "")
    return of_day.cast(pa.timestamp(unit)).cast(pa.time64(unit)).cast(kind)


def exact_float(given: float | str, kind: pa.DataType) -> float:
    """Return a number as a type of floating point holds it.

    Other programs write a float as the shortest digits that stand for it; these count as exact.

    Raises:
        ValueError: it is too large, or a whole number that would become another one.
    """
    code = _CODES[kind.byte_width]
    try:
        (value,) = struct.unpack(code, struct.pack(code, float(given)))
    except OverflowError:
        value = math.inf
    if math.isinf(value) and "n" not in str(given).lower():
        raise ValueError(f"{given} is too large for {kind}")
    if isinstance(given, int) and value != given and Decimal(repr(value)) != given:
        raise ValueError(f"{given} does not fit into {kind}; it would be {value:.0f}")
    return float(value)


_CODES = {2: "e", 4: "f", 8: "d"}


def _bytes(given: str | _Base64 | None) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode()
    try:
        return base64.b64decode(given.base64, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"{given.base64[:_SHOWN]!r} is not base64: {exc}") from exc


# -- cells of CSV that hold JSON ------------------------------------------------------------


def json_cells(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    """Make values of a type, each from its JSON.

    Raises:
        ValueError: one does not fit, or is no JSON.
    """
    decode = _decoder(_json_type(kind))
    return _array([None if text is None else decode(text.encode()) for text in texts], kind)


def bytes_of_text(text: bytes | None) -> bytes | None:
    """Return bytes that stand for themselves, or for what their base64 says.

    Raises:
        ValueError: it is no base64.
    """
    if text is None or not text.startswith(BASE64_BEGINS):
        return text
    try:
        return _bytes(_base64_of(text))
    except UNDECODABLE:
        return text


BASE64_BEGINS = b'{"base64":'
_base64_of = _decoder(_Base64)
