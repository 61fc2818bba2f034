"""Schemas of typed topics as people give them: in a short text, or in a file.

The short text names each column with its type, and `?` where values may be missing:

    id:int64,at:timestamp[us, tz=UTC],name:string?,tags:list<string>?

Types have Arrow's names, and what is inside of one is written as Arrow writes it: `list<string>`,
`struct<a: int64, b: string not null>`, `map<string, double>`; there, values may be missing unless
`not null` follows. A name with other than letters, digits, `_`, `-`, `.` and spaces is written as a
JSON string. `schema_text` gives the text of any schema that a topic can have, and `parse_schema`
gives the schema back.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from memq.cli.json_rows import BYTE_ORDER_MARK
from memq.core.decoding import UNDECODABLE
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.schema import MAX_NESTING, serialize_schema
from memq.errors import ConfigError

if TYPE_CHECKING:
    from typing import IO

EXAMPLE = "id:int64,at:timestamp[us, tz=UTC],name:string?"
KNOWN_TYPES = (
    "bool, int8 to int64, uint8 to uint64, halffloat, float, double, float16 to float64, "
    "decimal128(10, 2), string, large_string, binary, large_binary, fixed_size_binary[16], "
    "date32, date64, time32[s], time64[us], timestamp[us], timestamp[us, tz=UTC], duration[ms], "
    "null, list<…>, large_list<…>, fixed_size_list<…>[3], struct<name: …, …> and map<…, …>"
)

_MAX_FILE_BYTES = 16 << 20  # of JSON; far more than the largest schema
_MAGIC_BYTES = 6
_SHOWN = 40  # characters of a schema in an error

_NAME = re.compile(r"[\w.-]+(?: +[\w.-]+)*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TYPE = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\]|\([^)]*\))?")  # up to what is inside of it
_SIZE = re.compile(r"\[ *([0-9]{1,9}) *\]")
_NESTED = ("list", "large_list", "fixed_size_list", "struct", "map")

# Types whose texts have numbers or zones; pyarrow reads all others.
_DECIMAL = re.compile(r"decimal(32|64|128)?\(([0-9]{1,9})(?:,(-?[0-9]{1,9}))?\)")
_FIXED_SIZE_BINARY = re.compile(r"fixed_size_binary\[([0-9]{1,9})\]")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns),(?:tz=)?([A-Za-z0-9_+:/-]+)\]")


class _Column(msgspec.Struct):
    """A column as `memq topic describe -o json` prints it."""

    name: str
    type: str
    nullable: bool = True


class _Described(msgspec.Struct):
    """All that it prints."""

    schema: list[_Column]


# -- from what was given --------------------------------------------------------------------


def read_schema(given: str) -> bytes:
    """Return the serialized schema in a file, or, where there is no such file, in a short text.

    The file is Parquet, an Arrow IPC file or stream, or JSON as `memq topic describe -o json`
    prints it.

    Raises:
        ConfigError: it is neither, or the file has no schema.
        SchemaMismatchError: no topic can have the schema.
    """
    path = Path(given)
    if not _is_file(path):
        if ":" not in given:
            raise ConfigError(
                f"{given!r} is no file, and no schema; write one like {EXAMPLE!r}, or name a "
                "Parquet, Arrow or JSON file"
            )
        return serialize_schema(parse_schema(given))
    try:
        with path.open("rb") as file:
            schema = _schema_in(file)
    except (*ARROW_ERRORS, *UNDECODABLE, ConfigError) as exc:
        raise ConfigError(
            f"{path} gives no schema; a Parquet, Arrow IPC or JSON file is expected: {exc}"
        ) from exc
    return serialize_schema(schema)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() or path.is_fifo()
    except (OSError, ValueError):  # too long for a name
        return False


def _schema_in(file: IO[bytes]) -> pa.Schema:
    magic = file.read(_MAGIC_BYTES)
    file.seek(0)
    if magic.startswith(b"PAR1"):
        return parquet.read_schema(file)
    if magic.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"[", b"{"):
        return _from_json(file.read(_MAX_FILE_BYTES).removeprefix(BYTE_ORDER_MARK))
    reader = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
    return reader(file).schema


def _from_json(text: bytes) -> pa.Schema:
    found = msgspec.json.decode(text, type=list[_Column] | _Described)
    columns = found.schema if isinstance(found, _Described) else found
    return parse_schema(",".join(_column_text(*msgspec.structs.astuple(each)) for each in columns))


def parse_schema(text: str) -> pa.Schema:
    """Return the schema that a short text means.

    Raises:
        ConfigError: it is none; names the column, and the types that there are.
    """
    return pa.schema(_Parser(text).fields("", depth=0))


class _Parser:
    """Goes through a text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._column: str | None = None

    def fields(self, end: str, *, depth: int) -> list[pa.Field]:
        """Read columns, or the fields of a struct, up to the end."""
        found = [self._field(depth)]
        while self._found(","):
            found.append(self._field(depth))
        self._expect(end)
        return found

    def _field(self, depth: int, default_name: str | None = None) -> pa.Field:
        """Read a name, a type, and whether values may be missing: inside of types they may be."""
        start = self._at
        if depth == 0:
            self._column = None
        name = self._name()
        if name is None or not self._found(":"):
            if default_name is None:
                raise self._error("expected a column such as name:string?")
            self._at, name = start, default_name
        if depth == 0:
            self._column = name
        kind = self._type(depth)
        nullable = not self._found("not null") and (self._found("?") or depth > 0)
        if not nullable and pat.is_null(kind):
            raise self._error("values of type null are missing, so that a ? must follow")
        return pa.field(name, kind, nullable=nullable)

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_NESTING:
            raise self._error(f"types are nested deeper than {MAX_NESTING} levels")
        self._space()
        start = self._at
        text = self._match(_TYPE) or ""
        if text in _NESTED and self._found("<"):
            return self._nested(text, depth + 1)
        try:
            return _plain_type("".join(text.split()))
        except (*ARROW_ERRORS, ValueError, OverflowError) as exc:
            self._at = start
            raise self._error(f"expected a type ({exc})") from exc

    def _nested(self, word: str, depth: int) -> pa.DataType:
        if word == "struct":
            return pa.struct([] if self._found(">") else self.fields(">", depth=depth))
        if word == "map":
            key = self._field(depth, "key")
            self._expect(",")
            value = self._field(depth, "value")
            is_sorted = self._found(",")
            self._expect("keys_sorted>" if is_sorted else ">")
            return pa.map_(key.with_nullable(False), value, keys_sorted=is_sorted)
        item = self._field(depth, "item")
        self._expect(">")
        if word == "fixed_size_list":
            size = _SIZE.fullmatch(self._match(_SIZE) or "")
            if size is None:
                raise self._error("expected a size such as [3]")
            return pa.list_(item, int(size[1]))
        return pa.list_(item) if word == "list" else pa.large_list(item)

    def _name(self) -> str | None:
        quoted = self._match(_QUOTED)
        if quoted is None:
            return self._match(_NAME)
        try:
            return msgspec.json.decode(quoted, type=str)
        except UNDECODABLE as exc:
            raise self._error(f"{quoted} is no name: {exc}") from exc

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._space()
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _found(self, token: str) -> bool:
        """Return whether this comes next; it is skipped."""
        return self._match(re.compile(re.escape(token))) is not None

    def _expect(self, token: str) -> None:
        """Refuse all but this; an empty one is the end."""
        if not self._found(token) or (not token and self._at < len(self._text)):
            raise self._error(f"expected {token!r}" if token else "expected a comma, or the end")

    def _space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _error(self, reason: str) -> ConfigError:
        rest = self._text[self._at :]
        shown = rest if len(rest) <= _SHOWN else f"{rest[:_SHOWN]}…"
        there = f"at {shown!r}" if rest else "at the end"
        if self._column is None:
            return ConfigError(f"{reason} {there} of the schema")
        return ConfigError(
            f"column {self._column!r}: {reason} {there} of the schema; the types are {KNOWN_TYPES}"
        )


def _plain_type(text: str) -> pa.DataType:
    """Return the type of a text without spaces.

    Raises:
        ValueError, OverflowError: there is none.
    """
    if match := _DECIMAL.fullmatch(text):
        make = getattr(pa, f"decimal{match[1] or 128}")
        return make(int(match[2]), int(match[3] or 0))
    if match := _FIXED_SIZE_BINARY.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(*match.groups())
    return pa.type_for_alias(text)


# -- to text --------------------------------------------------------------------------------


def schema_text(schema: pa.Schema) -> str:
    """Return the short text of a schema."""
    return ",".join(
        _column_text(field.name, type_text(field.type), field.nullable) for field in schema
    )


def _column_text(name: str, kind: str, nullable: bool) -> str:
    return f"{_name_text(name)}:{kind}{'?' if nullable else ''}"


def type_text(kind: pa.DataType) -> str:
    """Return the text of a type, inside of which names and nulls are as exact as in a schema."""
    if pat.is_struct(kind):
        return f"struct<{', '.join(map(_field_text, kind))}>"
    if pat.is_map(kind):
        key = kind.key_field.with_nullable(nullable=True)  # it never is, which needs no word
        sorted_text = ", keys_sorted" if kind.keys_sorted else ""
        return f"map<{_item_text(key, 'key')}, {_item_text(kind.item_field, 'value')}{sorted_text}>"
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        word = str(kind).partition("<")[0]
        size = f"[{kind.list_size}]" if pat.is_fixed_size_list(kind) else ""
        return f"{word}<{_item_text(kind.value_field, 'item')}>{size}"
    return str(kind)


def _item_text(field: pa.Field, default_name: str) -> str:
    text = _field_text(field)
    return text.partition(": ")[2] if field.name == default_name else text


def _field_text(field: pa.Field) -> str:
    null = "" if field.nullable else " not null"
    return f"{_name_text(field.name)}: {type_text(field.type)}{null}"


def _name_text(name: str) -> str:
    return name if _NAME.fullmatch(name) else msgspec.json.encode(name).decode()
