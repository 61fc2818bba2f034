"""The parts of `docs/protocol.md` that are generated from the code.

The page is prose with generated parts, each between two comments: `<!-- begin NAME -->` and
`<!-- end -->`. `make docs` renews them in place; a test keeps the page equal to the code.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from memq import errors
from memq.core.options import Option, field_meanings
from memq.core.wire import connection
from memq.core.wire.connection import ClientConnection
from memq.core.wire.frame import encode_frame
from memq.core.wire.messages import (
    REQUESTS,
    AnswerStruct,
    ErrorAnswer,
    Need,
    NotificationEntry,
    RequestType,
    Struct,
    TopicRequest,
    Write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PART = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PLAIN = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    bytes: "bin",
    types.NoneType: "nil",
}


def render(page: str) -> str:
    """The page with its generated parts made new."""

    def renew(part: re.Match[str]) -> str:
        begin, name, end = part.groups()
        return f"{begin}\n{_PARTS[name]().strip()}\n\n{end}"

    return _PART.sub(renew, page)


def main(path: str) -> None:
    """Renew the page in that file."""
    page = Path(path)
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


# -- requests -------------------------------------------------------------------------------


def _requests() -> str:
    return "".join(_request(code, each) for code, each in REQUESTS.items())


def _request(code: int, line: RequestType) -> str:
    request, answer, needs = line
    needed = ", ".join(map(_need, needs)) or "nothing"
    return (
        f"\n### {code}: {request.__name__}\n\n{_meaning(request)}\n{_fields(request)}"
        f"\nNeeds: {needed}.\n\n"
        f"Answer `{answer.__name__}`: {_meaning(answer)}\n{_fields(answer)}"
    )


def _need(need: Need) -> str:
    each = "each " if need.each else ""
    return f"{need.operation} on {each}{need.type.replace('_', ' ')}"


def _parts() -> str:
    """The structs inside of others, in the order in which they are met."""
    met: dict[type[msgspec.Struct], None] = {TopicRequest: None, NotificationEntry: None}
    for line in REQUESTS.values():
        for header in (line.request, line.answer):
            met |= dict.fromkeys(_inner(header))
    return "".join(
        f"\n### {part.__name__}\n\n{_meaning(part)}{_shape(part)}\n{_fields(part)}" for part in met
    )


def _inner(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for field in msgspec.structs.fields(struct):
        for kind in _leaves(field.type):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield kind
                yield from _inner(kind)


def _leaves(kind: Any) -> Iterator[Any]:
    arguments = typing.get_args(kind)
    if not arguments:
        yield kind
    for argument in arguments:
        yield from _leaves(argument)


def _shape(struct: type[msgspec.Struct]) -> str:
    if struct.__struct_config__.array_like:
        return " An array of its fields, in this order, not a map."
    return ""


def _fields(struct: type[msgspec.Struct]) -> str:
    """List the fields that are of the struct's own."""
    bases = (TopicRequest, AnswerStruct, Struct)
    shared = next((e for e in bases if issubclass(struct, e) and struct != e), Struct)
    meanings = field_meanings(struct)
    lines = [
        _item(f"`{field.name}` {_type(field.type)}{_default(field)}", meaning)
        for field in msgspec.structs.fields(struct)
        if field.name not in shared.__struct_fields__
        for meaning in ["" if _is_option(field.type) else meanings.get(field.name, "")]
    ]
    if shared is TopicRequest:
        lines.insert(0, "- [TopicRequest](#topicrequest)\n")
    return "\n" + "".join(lines) if lines else ""


def _is_option(kind: Any) -> bool:
    """Tell whether the reference of options explains the field."""
    return any(isinstance(each, Option) for each in getattr(kind, "__metadata__", ()))


def _type(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:  # with a row of an option
        return _type(kind.__origin__)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(kind))
    arguments = [_type(argument) for argument in typing.get_args(kind)]
    if origin is list:
        return f"array of {arguments[0]}"
    if origin is dict:
        return f"map of {arguments[0]} to {arguments[1]}"
    return " or ".join(arguments) if arguments else f"`{kind.__name__}`"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    return " = " + ("nil" if value is None else f"`{msgspec.json.encode(value).decode()}`")


# -- connection -----------------------------------------------------------------------------


def _limits() -> str:
    """The constants of the module `connection` with the text that follows each."""
    body = ast.parse(inspect.getsource(connection)).body
    items = []
    for statement, text in itertools.pairwise(body):
        match statement, text:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str() as reason)),
            ) if "MAX" in name:
                items.append(_item(f"`{name}` = {getattr(connection, name)}", _line(reason)))
    return "".join(items)


def _errors() -> str:
    leaves = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.MemqError)
    ]
    return "".join(
        _item(f"`{error.code}`" + " (retriable)" * error.retriable, _meaning(error))
        for error in leaves
    )


def _error_fields() -> str:
    return _fields(ErrorAnswer)


def _example() -> str:
    """Two frames, byte by byte, to check an implementation against."""
    write = Write(
        topic="clicks",
        write_partition=0,
        producer_id="p",
        epoch=0,
        sequence=7,
        first_unsettled=5,
        acks=-1,
        schema_id="s",
        records=1,
        min_timestamp_us=1_000_000,
        max_timestamp_us=1_000_000,
    )
    # No RecordBatch, but the text that is used to check implementations of CRC32C.
    body = b"123456789"
    head, _ = encode_frame(10, 2, connection.encode_header(write), body)
    frames = {
        'A Handshake that names the client "example"': ClientConnection("example").open()[0],
        "The head of that Write, with correlation id 2": head,
    }
    return "".join(f"\n{title}:\n\n```\n{_hex(data)}\n```\n" for title, data in frames.items())


def _hex(data: Any) -> str:
    return "\n".join(bytes(data[at : at + 16]).hex(" ", -4) for at in range(0, len(data), 16))


# -- docstrings and lists -------------------------------------------------------------------


def _meaning(described: type) -> str:
    """The first paragraph of a docstring, as one line."""
    return _line((inspect.getdoc(described) or "").split("\n\n")[0])


def _line(text: str) -> str:
    return " ".join(text.split())


def _item(name: str, meaning: str) -> str:
    return f"- {name}: {meaning}\n" if meaning else f"- {name}\n"


_PARTS: dict[str, Callable[[], str]] = {
    "limits": _limits,
    "errors": _errors,
    "error_fields": _error_fields,
    "example": _example,
    "requests": _requests,
    "parts": _parts,
}

if __name__ == "__main__":
    main(sys.argv[1])
