"""Filters of records, as people write them, compiled to Arrow expressions.

    key = "x" and timestamp >= 2026-11-01 and (value contains "abc" or not user.age < 18)

A comparison has a column on its left and a value on its right: a text in double quotes, a number, a
time such as 2026-11-01 or 2026-11-01T12:30:00Z (UTC where it has no zone), true, false or null. The
fields of a column that has some are written with a dot. `not` binds tighter than `and`, and that
tighter than `or`. What a row has no value for is neither equal nor unequal, but `= null`.
"""

from __future__ import annotations

import operator
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from memq.errors import InvalidRequestError

MAX_CHARS = 1_000
MAX_DEPTH = 30  # of parentheses and nots: each is a call of the parser

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\["\\])*")|(?P<op><=|>=|!=|=|<|>)|(?P<paren>[()])"""
    r"""|(?P<time>\d{4}-\d\d-\d\d(?:T[0-9:.]+(?:Z|[+-]\d\d:\d\d)?)?)"""
    r"""|(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_][\w.]*)|(?P<no>\S))""",
    re.ASCII,
)
_COMPARE = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    def wrong(self, why: str) -> InvalidRequestError:
        """Make the error that names this place."""
        return InvalidRequestError(f"filter, at character {self.at + 1}: {why}")

    def __str__(self) -> str:
        return repr(self.text[:40]) if self.text else "the end"


def compile_filter(text: str, schema: pa.Schema) -> pc.Expression:
    """Compile a filter for rows of a schema.

    Raises:
        InvalidRequestError: it is none; the message names the place.
    """
    if len(text) > MAX_CHARS:
        raise InvalidRequestError(f"a filter of {len(text)} characters; it has up to {MAX_CHARS}")
    text = text.rstrip()
    tokens = [
        _Token(kind, match[kind], match.start(kind))
        for match in _TOKEN.finditer(text)
        if (kind := match.lastgroup)
    ]
    parser = _Parser([*tokens, _Token("end", "", len(text))], schema)
    found = parser.either(0)
    parser.expect("end", "and, or, or the end")
    return found


class _Parser:
    """Takes tokens from the left, one function a rule of the grammar."""

    def __init__(self, tokens: list[_Token], schema: pa.Schema) -> None:
        self._tokens = tokens[::-1]
        self._schema = schema

    def either(self, depth: int) -> pc.Expression:
        """Parse what `or` joins."""
        found = self._both(depth)
        while self._takes("or"):
            found = found | self._both(depth)
        return found

    def expect(self, kind: str, wanted: str) -> _Token:
        """Take a token of a kind."""
        if self._tokens[-1].kind != kind:
            raise self._tokens[-1].wrong(f"expected {wanted}, not {self._tokens[-1]}")
        return self._tokens.pop()

    def _takes(self, text: str) -> bool:
        takes = self._tokens[-1].text.lower() == text
        if takes:
            self._tokens.pop()
        return takes

    def _both(self, depth: int) -> pc.Expression:
        found = self._one(depth)
        while self._takes("and"):
            found = found & self._one(depth)
        return found

    def _one(self, depth: int) -> pc.Expression:
        if depth > MAX_DEPTH:
            raise self._tokens[-1].wrong(f"nested deeper than {MAX_DEPTH}")
        if self._takes("not"):
            return ~self._one(depth + 1)
        if self._takes("("):
            found = self.either(depth + 1)
            if not self._takes(")"):
                raise self._tokens[-1].wrong(f"expected ), not {self._tokens[-1]}")
            return found
        return self._comparison()

    def _comparison(self) -> pc.Expression:
        name = self.expect("word", "the name of a column")
        field, column = pc.field(*name.text.split(".")), self._type(name)
        if self._takes("contains"):
            token = self.expect("text", "a text in double quotes")
            if not (_is_text(column) or _is_bytes(column)):
                raise token.wrong(f"contains is for text and bytes, and the column is {column}")
            return pc.match_substring(field, _value(token))
        compares = self.expect("op", "one of = != < <= > >= contains")
        token = self._tokens.pop()
        value = _value(token)
        if value is not None:
            return _COMPARE[compares.text](field, _scalar(value, column, token))
        if compares.text not in ("=", "!="):
            raise compares.wrong("null is only compared by = and !=")
        return field.is_null() if compares.text == "=" else field.is_valid()

    def _type(self, name: _Token) -> Any:
        """Return the type of a column, or of a field in it."""
        found: Any = self._schema
        for part in name.text.split("."):
            names = found.names if isinstance(found, pa.Schema | pa.StructType) else []
            if part not in names:
                raise name.wrong(f"no {part!r}; there is {', '.join(names) or 'no field'}")
            found = found.field(part).type
        return found


def _value(token: _Token) -> Any:
    if token.kind == "text":
        return re.sub(r"\\(.)", r"\1", token.text[1:-1])
    if token.kind == "number":
        return float(token.text) if set(token.text) & set(".eE") else int(token.text)
    if token.kind == "time":
        try:
            moment = datetime.fromisoformat(token.text)
        except ValueError as exc:
            raise token.wrong(f"{token} is no time: {exc}") from exc
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if token.text.lower() in _CONSTANTS:
        return _CONSTANTS[token.text.lower()]
    raise token.wrong(f'expected "text", a number, a time, true, false or null, not {token}')


def _scalar(value: Any, column: Any, token: _Token) -> Any:
    """Return a value as one of the column's type.

    Raises:
        InvalidRequestError: it is none.
    """
    is_number = types.is_integer(column) or types.is_floating(column) or types.is_decimal(column)
    fits = {
        str: _is_text(column) or _is_bytes(column),
        datetime: types.is_timestamp(column) or types.is_date(column),
        bool: types.is_boolean(column),
    }.get(type(value), is_number)
    if not fits:
        raise token.wrong(f"{token} cannot be compared with a column of {column}")
    if isinstance(value, float):
        return pa.scalar(value)
    if isinstance(value, datetime) and getattr(column, "tz", None) is None:
        value = value.astimezone(UTC).replace(tzinfo=None)
        value = value.date() if types.is_date(column) else value
    try:
        return pa.scalar(value.encode() if _is_bytes(column) else value, column)
    except (pa.ArrowException, OverflowError, ValueError) as exc:
        raise token.wrong(f"{token} is no {column}: {exc}") from exc


def _is_text(column: Any) -> bool:
    return bool(types.is_string(column) or types.is_large_string(column))


def _is_bytes(column: Any) -> bool:
    return bool(types.is_binary(column) or types.is_large_binary(column))
