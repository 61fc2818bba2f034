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
    from collections.abc import Callable
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
_WORD = re.compile(r"[A-Za-z_]\w*")
_ZONE = re.compile(r"(?:tz *= *)?([A-Za-z0-9_+:/-]+)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_UNIT = re.compile(r"(?:s|ms|us|ns)(?!\w)")
_UNITS = "s, ms, us or ns"
_SIGNED = re.compile(r"-?[0-9]{1,9}")

_PLAIN = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary()),
    )
} | {
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "utf8": pa.utf8(),
    "large_utf8": pa.large_utf8(),
}
_DATES = {"date32": (pa.date32(), "day"), "date64": (pa.date64(), "ms")}
_WITH_UNIT: dict[str, Callable[[str], pa.DataType]] = {
    "time32": pa.time32,
    "time64": pa.time64,
    "duration": pa.duration,
}
_DECIMALS: dict[str, Callable[[int, int], pa.DataType]] = {
    "decimal": pa.decimal128,
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
}


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
    """The serialized schema in a file, or, where there is no such file, in a short text.

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
    fields = []
    for column in columns:
        parser = _Parser(column.type, column.name)
        fields.append(parser.whole(column.name, nullable=column.nullable))
    return pa.schema(fields)


def parse_schema(text: str) -> pa.Schema:
    """The schema that a short text means.

    Raises:
        ConfigError: it is none; names the column, and the types that there are.
    """
    parser = _Parser(text)
    fields = [parser.column()]
    while parser.found(","):
        fields.append(parser.column())
    parser.end()
    return pa.schema(fields)


class _Parser:
    """Goes through a text once."""

    def __init__(self, text: str, column: str | None = None) -> None:
        self._text = text
        self._at = 0
        self._column = column

    def column(self) -> pa.Field:
        """A name, its type, and whether values may be missing."""
        self._column = None
        name = self._name()
        if name is None:
            raise self._error("expected a column such as name:string?")
        self._column = name
        self._expect(":")
        kind = self.type(0)
        return self._field(name, kind, nullable=self.found("?"))

    def whole(self, name: str, *, nullable: bool) -> pa.Field:
        """The column of this name, of whose type this is the text."""
        field = self._field(name, self.type(0), nullable=nullable)
        self.end()
        return field

    def end(self) -> None:
        """There must be nothing more."""
        self._space()
        if self._at < len(self._text):
            raise self._error("expected a comma, or the end")

    def found(self, token: str) -> bool:
        """Whether this comes next; it is skipped."""
        self._space()
        there = self._text.startswith(token, self._at)
        self._at += len(token) * there
        return there

    def type(self, depth: int) -> pa.DataType:
        """A type."""
        if depth > MAX_NESTING:
            raise self._error(f"types are nested deeper than {MAX_NESTING} levels")
        start = self._at
        word = self._match(_WORD)
        try:
            kind = self._type(word or "", depth)
        except (*ARROW_ERRORS, OverflowError) as exc:  # a unit or a size that the type has not
            self._at = start
            raise self._error(str(exc)) from exc
        if kind is None:
            self._at = start
            raise self._error("expected a type", known=True)
        return kind

    def _type(self, word: str, depth: int) -> pa.DataType | None:
        """The type that begins with a word; None when none does."""
        if word in _PLAIN:
            kind = _PLAIN[word]
        elif word in _DATES:
            kind, unit = _DATES[word]
            if self.found("["):
                self._expect(f"{unit}]")
        elif word in _WITH_UNIT:
            kind = _WITH_UNIT[word](self._in_brackets(_UNIT, _UNITS))
        elif word in _DECIMALS:
            self._expect("(")
            precision = int(self._needed(_NUMBER, "a precision"))
            scale = int(self._needed(_SIGNED, "a scale")) if self.found(",") else 0
            self._expect(")")
            kind = _DECIMALS[word](precision, scale)
        elif word == "fixed_size_binary":
            kind = pa.binary(int(self._in_brackets(_NUMBER, "a size")))
        elif word == "timestamp":
            kind = self._timestamp()
        else:
            kind = self._nested(word, depth + 1)
        return kind

    def _timestamp(self) -> pa.DataType:
        self._expect("[")
        unit = self._needed(_UNIT, _UNITS)
        zone = None
        if self.found(","):
            self._space()
            match = _ZONE.match(self._text, self._at)
            if match is None:
                raise self._error("expected a time zone such as UTC")
            self._at, zone = match.end(), match[1]
        self._expect("]")
        return pa.timestamp(unit, zone)

    def _nested(self, word: str, depth: int) -> pa.DataType | None:
        match word:
            case "list" | "large_list" | "fixed_size_list":
                self._expect("<")
                item = self._inner("item", depth)
                self._expect(">")
                if word == "fixed_size_list":
                    return pa.list_(item, int(self._in_brackets(_NUMBER, "a size")))
                return pa.list_(item) if word == "list" else pa.large_list(item)
            case "struct":
                self._expect("<")
                fields = []
                if not self.found(">"):
                    fields.append(self._inner(None, depth))
                    while self.found(","):
                        fields.append(self._inner(None, depth))
                    self._expect(">")
                return pa.struct(fields)
            case "map":
                self._expect("<")
                inner = self._inner("key", depth)
                key = self._field(inner.name, inner.type, nullable=False)
                self._expect(",")
                item = self._inner("value", depth)
                is_sorted = self.found(",")
                self._expect("keys_sorted>" if is_sorted else ">")
                return pa.map_(key, item, keys_sorted=is_sorted)
        return None

    def _inner(self, default_name: str | None, depth: int) -> pa.Field:
        """A field inside of a type; it may be without a name where there is a default."""
        start = self._at
        name = self._name()
        if name is None or not self.found(":"):
            if default_name is None:
                raise self._error("expected a field such as name: string")
            self._at, name = start, default_name
        kind = self.type(depth)
        required = self.found("not null")
        if not required:
            self.found("?")  # as Arrow has it anyway
        return self._field(name, kind, nullable=not required)

    def _field(self, name: str, kind: pa.DataType, *, nullable: bool) -> pa.Field:
        if not nullable and pat.is_null(kind):
            raise self._error("values of type null are missing, so that a ? must follow")
        return pa.field(name, kind, nullable=nullable)

    # -- tokens -----------------------------------------------------------------------------

    def _name(self) -> str | None:
        quoted = self._match(_QUOTED)
        if quoted is None:
            return self._match(_NAME)
        try:
            return msgspec.json.decode(quoted, type=str)
        except UNDECODABLE as exc:
            raise self._error(f"{quoted} is no name: {exc}") from exc

    def _in_brackets(self, pattern: re.Pattern[str], what: str) -> str:
        self._expect("[")
        found = self._needed(pattern, what)
        self._expect("]")
        return found

    def _needed(self, pattern: re.Pattern[str], what: str) -> str:
        found = self._match(pattern)
        if found is None:
            raise self._error(f"expected {what}", known=True)
        return found

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._space()
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _expect(self, token: str) -> None:
        if not self.found(token):
            raise self._error(f"expected {token!r}", known=self._column is not None)

    def _space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _error(self, reason: str, *, known: bool = False) -> ConfigError:
        column = "" if self._column is None else f"column {self._column!r}: "
        rest = self._text[self._at :]
        shown = rest if len(rest) <= _SHOWN else f"{rest[:_SHOWN]}…"
        there = f"at {shown!r}" if rest else "at the end"
        types = f"; the types are {KNOWN_TYPES}" if known else ""
        return ConfigError(f"{column}{reason} {there} of the schema{types}")


# -- to text --------------------------------------------------------------------------------


def schema_text(schema: pa.Schema) -> str:
    """The short text of a schema."""
    return ",".join(
        f"{_name_text(field.name)}:{type_text(field.type)}{'?' if field.nullable else ''}"
        for field in schema
    )


def type_text(kind: pa.DataType) -> str:
    """The text of a type, inside of which names and nulls are as exact as in a schema."""
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
