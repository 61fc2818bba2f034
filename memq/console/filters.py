"""Filters of records, as people write them, compiled to Arrow expressions.

    key = "x" and timestamp >= 2026-11-01 and (value contains "abc" or not user.age < 18)

A comparison has a column on its left and a value on its right: a text in double quotes, a number, a
time such as 2026-11-01 or 2026-11-01T12:30:00Z (UTC where it has no zone), true, false or null. The
fields of a column that has some are written with a dot. `not` binds tighter than `and`, and that
tighter than `or`. What a row has no value for is neither equal nor unequal, but `= null`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARS = 1_000
MAX_DEPTH = 30  # of parentheses and nots: each is a call of the parser

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\["\\])*")|(?P<op><=|>=|!=|=|<|>)|(?P<paren>[()])"""
    r"""|(?P<time>\d{4}-\d\d-\d\d(?:T[0-9:.]+(?:Z|[+-]\d\d:\d\d)?)?)"""
    r"""|(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_][\w.]*))""",
    re.ASCII,
)
_COMPARE: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_CONSTANTS = {"true": True, "false": False, "null": None}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def compile_filter(text: str, schema: pa.Schema) -> pc.Expression:
    """Compile a filter for rows of a schema.

    Raises:
        InvalidRequestError: it is none; the message names the place.
    """
    if len(text) > MAX_CHARS:
        raise InvalidRequestError(f"a filter of {len(text)} characters; it has up to {MAX_CHARS}")
    parser = _Parser(_tokens(text), schema)
    found = parser.either(0)
    parser.expect("end", "and, or, or the end")
    return found


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    end = len(text.rstrip())
    at = 0
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise _wrong(place, f"{text[place : place + 20]!r} is no name, value or comparison")
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", end)]


def _wrong(at: int, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"filter, at character {at + 1}: {why}")


class _Parser:
    """Takes tokens from the left, one function a rule of the grammar."""

    def __init__(self, tokens: list[_Token], schema: pa.Schema) -> None:
        self._tokens = tokens[::-1]
        self._schema = schema

    def either(self, depth: int) -> pc.Expression:
        """Parse what `or` joins."""
        found = self._both(depth)
        while self._takes("word", "or"):
            found = found | self._both(depth)
        return found

    def expect(self, kind: str, wanted: str, text: str = "") -> _Token:
        """Take a token of a kind."""
        token = self._tokens[-1]
        if token.kind != kind or (text and token.text != text):
            shown = repr(token.text[:40]) if token.text else "the end"
            raise _wrong(token.at, f"expected {wanted}, not {shown}")
        return self._tokens.pop()

    def _takes(self, kind: str, text: str) -> bool:
        if (self._tokens[-1].kind, self._tokens[-1].text.lower()) != (kind, text):
            return False
        self._tokens.pop()
        return True

    def _both(self, depth: int) -> pc.Expression:
        found = self._one(depth)
        while self._takes("word", "and"):
            found = found & self._one(depth)
        return found

    def _one(self, depth: int) -> pc.Expression:
        if depth > MAX_DEPTH:
            raise _wrong(self._tokens[-1].at, f"nested deeper than {MAX_DEPTH}")
        if self._takes("word", "not"):
            return ~self._one(depth + 1)
        if self._takes("paren", "("):
            found = self.either(depth + 1)
            self.expect("paren", "a closing parenthesis", ")")
            return found
        return self._comparison()

    def _comparison(self) -> pc.Expression:
        name = self.expect("word", "the name of a column")
        path, column = self._column(name)
        operator = self._tokens[-1]
        if operator.kind != "op" and operator.text.lower() != "contains":
            raise _wrong(operator.at, "expected = != < <= > >= or contains")
        self._tokens.pop()
        token = self._tokens[-1]
        value = self._value()
        field = pc.field(*path)
        if operator.kind != "op":
            return self._contains(field, column, value, token)
        if value is None:
            if operator.text not in ("=", "!="):
                raise _wrong(operator.at, "null is only compared by = and !=")
            return field.is_null() if operator.text == "=" else field.is_valid()
        return _COMPARE[operator.text](field, _scalar(value, column, token))

    def _column(self, name: _Token) -> tuple[list[str], pa.DataType]:
        """Return the path of a column or of a field in it, and its type."""
        path = name.text.split(".")
        fields: Any = self._schema
        found: pa.DataType | None = None
        for depth, part in enumerate(path):
            names = fields.names if isinstance(fields, pa.Schema | pa.StructType) else []
            if part not in names:
                what = ".".join(path[:depth]) or "the topic"
                known = ", ".join(names) or "no fields"
                raise _wrong(name.at, f"no {part!r} in {what}, which has {known}")
            found = fields = fields.field(part).type
        return path, found

    def _value(self) -> Any:
        token = self._tokens.pop()
        match token.kind:
            case "text":
                return re.sub(r"\\(.)", r"\1", token.text[1:-1])
            case "number":
                return float(token.text) if set(token.text) & set(".eE") else int(token.text)
            case "time":
                try:
                    moment = datetime.fromisoformat(token.text)
                except ValueError as exc:
                    raise _wrong(token.at, f"{token.text!r} is no time: {exc}") from exc
                return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            case "word" if token.text.lower() in _CONSTANTS:
                return _CONSTANTS[token.text.lower()]
        shown = repr(token.text[:40]) if token.text else "the end"
        raise _wrong(
            token.at, f'expected a value, not {shown}: write "text", 12, 2026-11-01, true or null'
        )

    @staticmethod
    def _contains(
        field: pc.Expression, column: pa.DataType, value: Any, token: _Token
    ) -> pc.Expression:
        if not isinstance(value, str):
            raise _wrong(token.at, "contains takes a text in double quotes")
        if not (_is_text(column) or _is_bytes(column)):
            raise _wrong(token.at, f"contains is for text and bytes, and the column is {column}")
        return pc.match_substring(field, value)


def _scalar(value: Any, column: pa.DataType, token: _Token) -> pa.Scalar:
    """Return a value as one of the column's type."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        str: _is_text(column) or _is_bytes(column),
        datetime: bool(pa.types.is_timestamp(column) or pa.types.is_date(column)),
        bool: pa.types.is_boolean(column),
    }.get(type(value), number and _is_number(column))
    if not fits:
        raise _wrong(token.at, f"{token.text[:40]} cannot be compared with a column of {column}")
    if isinstance(value, datetime):
        if pa.types.is_date(column):
            value = value.date()
        elif column.tz is None:
            value = value.astimezone(UTC).replace(tzinfo=None)
    elif isinstance(value, float) or pa.types.is_floating(column) or pa.types.is_decimal(column):
        return pa.scalar(float(value), pa.float64())
    try:
        made = value.encode() if isinstance(value, str) and _is_bytes(column) else value
        return pa.scalar(made, column)
    except (pa.ArrowException, OverflowError, ValueError) as exc:
        raise _wrong(token.at, f"{token.text[:40]} is no {column}: {exc}") from exc


def _is_text(column: pa.DataType) -> bool:
    return bool(pa.types.is_string(column) or pa.types.is_large_string(column))


def _is_bytes(column: pa.DataType) -> bool:
    return bool(pa.types.is_binary(column) or pa.types.is_large_binary(column))


def _is_number(column: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(column) or types.is_floating(column) or types.is_decimal(column))
