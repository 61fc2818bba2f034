"""JSON lines become rows of a topic's schema, a block of them at a time.

Every line is one JSON object, in one of two shapes:

- what `memq consume --format json` prints: `value`, and, where they are given, `key`, `headers` and
  `timestamp`. What else it prints says where the LogMessage was, and is not taken over. Bytes are
  text, or `{"base64": "…"}` where they are none.
- for a typed topic, the row itself. The first line tells which shape all lines of the input have:
  it is what consume prints when it has exactly the fields of that.

`msgspec` decodes a line straight into the types that the schema asks for, so that a line which does
not fit is refused with the place in it; and columns become Arrow as a whole. What comes before a
line that is refused is still given out.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from memq.core.decoding import UNDECODABLE
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TIMESTAMP_COLUMN, encode_records
from memq.core.format.schema import DEFAULT_SCHEMA, ORIGIN_COLUMNS
from memq.errors import InvalidRequestError, MessageTooLargeError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

E = TypeVar("E", bound=Exception)
T = TypeVar("T", bound=Any)  # what can be counted and cut

ORIGIN_FIELDS = tuple(name for name in ORIGIN_COLUMNS if name != "batch")
"""Of what consume prints, where a LogMessage was."""

_CONSUMED_FIELDS = {"key", "value", "headers", TIMESTAMP_COLUMN, *ORIGIN_FIELDS}
_BEYOND_CALENDAR = " microseconds since 1970"  # as `iso_us` ends where no calendar reaches
# What a value that does not fit raises.
_REFUSED = (
    *ARROW_ERRORS,
    ValueError,
    OverflowError,
    SchemaMismatchError,
    MessageTooLargeError,
)
_SHOWN = 80  # characters of a line in an error
_EXPORTED_FIELD = "batch"  # what memq export --metadata has besides, of its Batch
_HINTS = {
    "key": 'a key is text, null or {"base64": "…"}',
    "value": 'a value is text, null or {"base64": "…"}; to send each line as it is, use --format '
    "lines",
    TIMESTAMP_COLUMN: 'a time is text, such as "2025-06-30T12:00:00Z"',
    "headers": 'headers are pairs, such as [["source", "web-1"]], or an object',
}


BYTE_ORDER_MARK = "\ufeff".encode()
EXACT_WHOLES = 2_048
"""Up to here each floating point type has all whole numbers."""

_KEYS = re.compile(rb'"([^"]*)"\s*+(:?)')  # texts of JSON without escapes, and which are keys
_PAIRS = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..")  # of surrogates, and no escapes
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]..")


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
    """Rows of the lines, a table for each block.

    Args:
        blocks: lines without their newline, in order; blank ones are skipped.
        schema: of the topic.
        now_us: time of LogMessages and rows that say none, in microseconds since 1970 UTC.

    Raises:
        InvalidRequestError: a line does not fit; those before it were given out.
    """
    shape: _Shape | None = None
    number = 0
    for block in blocks:
        lines = block if number else [block[0].removeprefix(BYTE_ORDER_MARK), *block[1:]]
        numbered = [(at, line) for at, line in enumerate(lines, number + 1) if line.strip()]
        number += len(block)
        if not numbered:
            continue
        shape = shape or _shape_of(schema, numbered[0][1])
        yield from _rows_of(numbered, shape, now_us)


def _rows_of(
    numbered: list[tuple[int, bytes]], shape: _Shape, now_us: Callable[[], int]
) -> Iterator[Rows]:
    decoded: list[Any] = []
    failure = None
    for number, line in numbered:
        try:
            decoded.append(shape.decode(line))
        except UNDECODABLE as exc:
            failure = _refusal(number, line, f"{_why(exc, line)}{shape.hint(str(exc))}")
            break
    now = now_us()
    try:
        table = shape.table(decoded, now)
    except _REFUSED:
        good, why = first_refused(decoded, lambda part: shape.table(part, now), _REFUSED)
        if why is None:
            raise
        failure = _refusal(*numbered[good], str(why))
        decoded = decoded[:good]
        table = shape.table(decoded, now)
    if decoded:
        yield Rows(table, [number for number, _ in numbered[: len(decoded)]])
    if failure is not None:
        raise failure


def _why(exc: Exception, line: bytes) -> str:
    """What is wrong with a line that is no JSON."""
    lone = _SURROGATE.search(_PAIRS.sub(b"", line))
    if lone is None or not isinstance(exc, msgspec.DecodeError):
        return str(exc)
    return f"{lone[0].decode(errors='replace')} is half of a character, which no text can hold"


def first_refused(
    items: T, attempt: Callable[[T], object], errors: tuple[type[E], ...]
) -> tuple[int, E | None]:
    """The position of the first item that an attempt refuses, and why; None for what all do.

    The attempt with the first so many items raises one of the errors from some number on.
    """
    good, bad = 0, len(items)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            attempt(items[:middle])
        except errors:
            bad = middle
        else:
            good = middle
    try:
        attempt(items[good : good + 1])
    except errors as exc:
        return good, exc
    return good, None


def _refusal(number: int, line: bytes, reason: str) -> InvalidRequestError:
    shown = line[:_SHOWN].decode(errors="backslashreplace") + "…" * (len(line) > _SHOWN)
    shown = shown.replace("\ufeff", r"\ufeff")  # a byte order mark shows nothing
    return InvalidRequestError(f"line {number}: {reason}: {shown}")


def without_advice(reason: str) -> str:
    """What Arrow says, without what to do about it in Python."""
    return reason.partition(". If these timestamps")[0]


# -- the shape of a line --------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    """How a line is decoded, and what becomes of those of a block.

    Attributes:
        decode: one line.
        table: the rows of decoded lines, and a time for those that say none.
        hint: what to add to the error of a line that does not fit.
    """

    decode: Callable[[bytes], Any]
    table: Callable[[list[Any], int], pa.Table]
    hint: Callable[[str], str] = lambda _: ""


def _shape_of(schema: pa.Schema, first: bytes) -> _Shape:
    if schema.equals(DEFAULT_SCHEMA):
        return _Shape(_decoder(_consumed(_Bytes | None)), _log_messages, _hint)
    row = _struct("Row", list(schema), top=True)
    if (
        _fields_of(first) - {_EXPORTED_FIELD} != _CONSUMED_FIELDS
        or set(schema.names) >= _CONSUMED_FIELDS
    ):
        return _Shape(_decoder(row), lambda rows, now: _table(rows, schema, now))
    return _Shape(
        _decoder(_consumed(row)),
        lambda rows, now: _table([each.value for each in rows], schema, now),
    )


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """What decodes JSON of a type, and refuses an object that names a field twice.

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


def _hint(reason: str) -> str:
    """How the part that an error is about is written."""
    field = reason.partition("`$.")[2].partition("`")[0].partition("[")[0].partition(".")[0]
    return f"; {_HINTS.get(field, 'to send each line as it is, use --format lines')}"


def _fields_of(line: bytes) -> set[str]:
    try:
        return set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except UNDECODABLE:
        return set()  # the decoder of rows says what is wrong


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: str


_Bytes = str | _Base64


def _consumed(value: Any) -> type:
    """What consume prints, with a value of this type."""
    header = tuple[str, _Bytes | None]
    return msgspec.defstruct(
        "Consumed",
        [
            ("value", value),
            ("key", _Bytes | None, None),
            ("headers", list[header] | dict[str, _Bytes | None] | None, None),
            (TIMESTAMP_COLUMN, str | None, None),
            *((name, msgspec.Raw, msgspec.Raw()) for name in (*ORIGIN_FIELDS, _EXPORTED_FIELD)),
        ],
        forbid_unknown_fields=True,
    )


def _log_messages(lines: list[Any], now_us: int) -> pa.Table:
    """Rows of an untyped topic."""
    headers = [_headers(line.headers) for line in lines]
    batch = encode_records(
        [_bytes(line.key) for line in lines],
        [_bytes(line.value) for line in lines],
        headers if any(each is not None for each in headers) else None,
        _timestamps_us([line.timestamp for line in lines], now_us),
    )
    return pa.Table.from_batches([batch])


def _headers(given: Any) -> list[tuple[str, bytes | None]] | None:
    if given is None:
        return None
    pairs = given.items() if isinstance(given, dict) else given
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(given: str | _Base64 | None) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode()
    try:
        return base64.b64decode(given.base64, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"{given.base64[:_SHOWN]!r} is not base64: {exc}") from exc


def _timestamps_us(texts: list[str | None], now_us: int) -> list[int]:
    return [now_us if text is None else _timestamp_us(text) for text in texts]


def _timestamp_us(text: str) -> int:
    ticks, beyond, rest = text.partition(_BEYOND_CALENDAR)
    if beyond and not rest:
        return int(ticks)
    moment = dt.datetime.fromisoformat(text)
    if _FINER.search(text):
        raise ValueError(f"{text!r} is finer than a microsecond")
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it like {text}Z or {text}+02:00")
    return (moment - _EPOCH) // _MICROSECOND


_FINER = re.compile(r"[.,]\d{6}\d*[1-9]")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


# -- rows of a schema -----------------------------------------------------------------------


def _struct(name: str, fields: list[pa.Field], *, top: bool = False) -> type:
    """The type of an object with these fields, which need not be names in Python."""
    members: list[Any] = []
    for position, field in enumerate(fields):
        kind = _json_type(field.type)
        missing: dict[str, Any] = {}
        if field.nullable:
            kind, missing = _or_null(kind), {"default": None}
        if top and is_time(field):
            kind, missing = kind | msgspec.UnsetType, {"default": msgspec.UNSET}
        members.append((f"f{position}", kind, msgspec.field(name=field.name, **missing)))
    try:
        return msgspec.defstruct(name, members, forbid_unknown_fields=True, kw_only=True)
    except ValueError as exc:
        raise InvalidRequestError(
            f"--format json cannot take fields of such names; write such rows in Python: {exc}"
        ) from exc


def is_time(field: pa.Field) -> bool:
    """Whether this column is the time of its row, which is now where a line says none."""
    return bool(field.name == TIMESTAMP_COLUMN and pat.is_timestamp(field.type))


def _json_type(kind: pa.DataType) -> Any:
    """What a value of an Arrow type is decoded as; dates and times as text."""
    if pat.is_struct(kind):
        return _struct("Struct", list(kind))
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
    """Whether values are texts."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
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


def json_cells(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    """Values of a type, each from its JSON.

    Raises:
        ValueError: one does not fit, or is no JSON.
    """
    decode = _decoder(_json_type(kind))
    try:
        return _array([None if text is None else decode(text.encode()) for text in texts], kind)
    except (*UNDECODABLE, *_REFUSED) as exc:
        raise ValueError(_why(exc, "\n".join(filter(None, texts)).encode())) from exc


def bytes_of_text(text: bytes | None) -> bytes | None:
    """Bytes that stand for themselves, or for what their base64 says.

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


def _table(rows: list[Any], schema: pa.Schema, now_us: int) -> pa.Table:
    columns = []
    for position, field in enumerate(schema):
        values = [getattr(row, f"f{position}") for row in rows]
        try:
            columns.append(_column(values, field, now_us))
        except _REFUSED as exc:
            raise ValueError(f"column {field.name!r}: {without_advice(str(exc))}") from exc
    return pa.table(columns, schema=schema)


def _column(values: list[Any], field: pa.Field, now_us: int) -> pa.Array:
    missing = pa.array([value is msgspec.UNSET for value in values], pa.bool_())
    if not is_time(field) or not missing.true_count:
        return _array(values, field.type)
    given = _array([None if value is msgspec.UNSET else value for value in values], field.type)
    now = pa.scalar(now_us, pa.timestamp("us", "UTC")).cast(field.type, safe=False)
    return pc.if_else(missing, now, given)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Decoded values as an array."""
    if pat.is_nested(kind):
        return _nested_array(values, kind)
    if pat.is_floating(kind):
        floats = [None if value is None else float(value) for value in values]
        found = narrowed(pa.array(floats, pa.float64()), kind)
        if any(type(value) is int and abs(value) > EXACT_WHOLES for value in values):
            for value, is_now in zip(values, found.cast(pa.float64()).to_pylist(), strict=True):
                if type(value) is int and is_another(value, is_now):
                    raise ValueError(f"{value} does not fit into {kind}; it would be {is_now:.0f}")
        return found
    if is_binary(kind):
        return pa.array(map(_bytes, values), kind)
    if pat.is_duration(kind):
        return pa.array(map(_duration, values), pa.duration("us")).cast(kind)
    if pat.is_temporal(kind):
        return _times(values, kind)
    return pa.array(values, kind)


def is_another(whole: int, is_now: float) -> bool:
    """Whether a whole number has become another one as a number of floating point.

    The shortest digits that stand for a float are that float, as other programs write them.
    """
    return is_now != whole and Decimal(repr(is_now)) != whole


def _duration(text: str | None) -> dt.timedelta | None:
    if text is not None and _FINER.search(text):
        raise ValueError(f"{text!r} is finer than a microsecond")
    return msgspec.convert(text, dt.timedelta | None)


def narrowed(floats: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers as a type of floating point.

    Raises:
        ValueError: one is too large for it.
    """
    values = floats.cast(kind, safe=False)
    if kind != floats.type:
        lost = pc.and_(pc.is_inf(values.cast(pa.float64())), pc.is_finite(floats))
        if pc.any(lost).as_py():
            raise ValueError(f"{floats.filter(lost)[0]} is too large for {kind}")
    return values


def _times(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Dates and times from their texts; one that the type is too coarse for is refused."""
    if pat.is_date(kind):
        return pa.array(values, pa.utf8()).cast(pa.date32()).cast(kind)
    unit = "ns" if kind.unit == "ns" else "us"
    if pat.is_timestamp(kind):
        if any(value is not None and value.endswith(_BEYOND_CALENDAR) for value in values):
            return pa.array([value and _ticks(value, kind) for value in values], kind)
        return pa.array(values, pa.utf8()).cast(pa.timestamp(unit, kind.tz)).cast(kind)
    of_day = [None if value is None else f"1970-01-01T{value}" for value in values]
    return pa.array(of_day, pa.utf8()).cast(pa.timestamp(unit)).cast(pa.time64(unit)).cast(kind)


def _ticks(text: str, kind: pa.DataType) -> int:
    """Ticks since 1970 of a text, which may be beyond the calendar."""
    us, beyond, rest = text.partition(_BEYOND_CALENDAR)
    if not beyond or rest:
        return int(_times([text], kind)[0].value)
    return int(pa.array([int(us)], pa.timestamp("us")).cast(pa.timestamp(kind.unit))[0].value)


def _nested_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    nulls = pa.array([value is None for value in values], pa.bool_())
    if pat.is_struct(kind):
        children = [
            _array([None if value is None else getattr(value, f"f{at}") for value in values], each)
            for at, each in enumerate(field.type for field in kind)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pat.is_fixed_size_list(kind):
        size = kind.list_size
        for value in values:
            if value is not None and len(value) != size:
                raise ValueError(f"a list of {len(value)} is given where {size} are expected")
        flat = list(chain.from_iterable([None] * size if v is None else v for v in values))
        return pa.FixedSizeListArray.from_arrays(
            _array(flat, kind.value_type), type=kind, mask=nulls
        )
    if pat.is_map(kind):
        values = [list(each.items()) if isinstance(each, dict) else each for each in values]
    flat = list(chain.from_iterable(value or () for value in values))
    offsets = _offsets(values)
    if pat.is_map(kind):
        keys = _array([key for key, _ in flat], kind.key_type)
        items = _array([item for _, item in flat], kind.item_type)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind)
    if pat.is_large_list(kind):
        items = _array(flat, kind.value_type)
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, type=kind)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), _array(flat, kind.value_type), type=kind
    )


def _offsets(values: list[Any]) -> list[int | None]:
    """Where each list begins among all items, None for one that is null, and the end."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return [*offsets, end]
