"""Advice in messages: what each error and warning tells its reader to do, and which tests do it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Test = TypeVar("Test", bound=Callable[..., object])

ROOT = Path(__file__).parents[1]
PRODUCT = ("memq", "airflow_provider_memq", "pyspark_memq", "spark_apps")
NOT_SHIPPED = ROOT / "memq" / "testing"  # fakes speak to those who write tests

VERBS = frozenset(
    [
        "add",
        "allow",
        "append",
        "ask",
        "assign",
        "await",
        "begin",
        "build",
        "call",
        "cast",
        "change",
        "check",
        "choose",
        "clear",
        "close",
        "commit",
        "compare",
        "configure",
        "convert",
        "copy",
        "correct",
        "create",
        "cut",
        "decode",
        "decrease",
        "define",
        "delete",
        "disable",
        "divide",
        "drop",
        "enable",
        "encode",
        "ensure",
        "export",
        "extend",
        "fetch",
        "fill",
        "filter",
        "find",
        "finish",
        "fix",
        "fit",
        "follow",
        "format",
        "free",
        "get",
        "give",
        "go",
        "grant",
        "group",
        "hold",
        "ignore",
        "import",
        "include",
        "increase",
        "insert",
        "inspect",
        "install",
        "join",
        "keep",
        "kill",
        "launch",
        "lay",
        "leave",
        "lengthen",
        "let",
        "limit",
        "link",
        "list",
        "load",
        "lock",
        "look",
        "lower",
        "make",
        "mark",
        "match",
        "mend",
        "merge",
        "migrate",
        "mount",
        "move",
        "name",
        "omit",
        "open",
        "override",
        "pass",
        "pick",
        "place",
        "plan",
        "point",
        "poll",
        "provide",
        "publish",
        "pull",
        "purge",
        "push",
        "put",
        "query",
        "raise",
        "read",
        "rebuild",
        "reconnect",
        "recover",
        "reduce",
        "refer",
        "reload",
        "remove",
        "rename",
        "repair",
        "repeat",
        "replace",
        "report",
        "request",
        "resend",
        "reset",
        "resize",
        "restart",
        "restore",
        "resume",
        "retry",
        "rewrite",
        "rotate",
        "run",
        "save",
        "say",
        "see",
        "seek",
        "select",
        "send",
        "separate",
        "set",
        "shorten",
        "show",
        "shrink",
        "skip",
        "sort",
        "specify",
        "spell",
        "split",
        "spread",
        "start",
        "stop",
        "store",
        "submit",
        "supply",
        "switch",
        "take",
        "tell",
        "test",
        "truncate",
        "try",
        "turn",
        "type",
        "unlock",
        "unmount",
        "update",
        "upgrade",
        "use",
        "verify",
        "wait",
        "watch",
        "widen",
        "wrap",
        "write",
    ]
)
"""What advice begins with: a sentence or a clause in the imperative."""

_CLAUSE = re.compile(r"(?:^|[;:.,?] |\bor |\bthen |\()(?=(?:or |and |then )?([A-Za-z]+)\b)")
_HELP = {"help", "epilog", "doc", "description", "metavar", "short_help"}


def follows(*_: str) -> Callable[[Test], Test]:
    """Marks a test that provokes a message and does what it advises, literally.

    Args:
        *_: a part of the text of each such message, with `…` for what differs; no other message
            has it.
    """
    return lambda test: test


def gives_advice(text: str) -> bool:
    """Whether a clause of a message tells its reader to do something."""
    return any(match[1].lower() in VERBS for match in _CLAUSE.finditer(text))


@cache
def advice() -> dict[str, list[Path]]:
    """The messages of the product that give advice, with `…` for values; and where they stand."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if NOT_SHIPPED not in path.parents:
                for text in messages(ast.parse(path.read_text())):
                    if gives_advice(text):
                        found[text].append(path)
    return dict(found)


def messages(tree: ast.AST) -> Iterator[str]:
    """Texts of a module: neither docstrings nor help, which are documentation, nor `__repr__`."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name="__repr__") | ast.Expr(value=ast.Constant()):
                continue
            case ast.keyword(arg=str(name)) if name in _HELP:
                continue
            case ast.Call(func=ast.Name(id="Option")):
                continue
            case ast.JoinedStr() | ast.Constant(value=str()):
                text = template(node)
                if " " in text.strip():
                    yield text
            case _:
                yield from messages(node)


def template(node: ast.JoinedStr | ast.Constant) -> str:
    """A text with `…` for each of its values."""
    if isinstance(node, ast.Constant):
        return re.sub(r"%(?:\(\w+\))?[.+]*\d*[a-z]", "…", str(node.value))
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
    )


@cache
def followed() -> dict[str, str]:
    """What tests say that they follow, with the test."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for each in node.decorator_list:
                    if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "follows":
                        for text in each.args:
                            found[ast.literal_eval(text)] = f"{path.name}::{node.name}"
    return found
