"""Small bugs that a program can plant: each is one change of one place in a source.

They are the kinds that tests miss: a condition of several, one class of an `except`, a bound, a
statement, a clean-up, the right one of two values. Texts, logs and types are left alone.
"""

import ast
from typing import NamedTuple

TIGHTENED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
LIMITS = frozenset({"default", "timeout", "timeout_s", "before", "start", "end", "limit"})
"""Keyword arguments without which a call goes on for longer, or over more."""


class Bug(NamedTuple):
    """A change of a source.

    Attributes:
        line: where it is, from 1.
        what: it is, in a few words.
        source: the whole source with it.
    """

    line: int
    what: str
    source: str


def bugs_of(source: str) -> list[Bug]:
    """Return all the bugs that can be planted in a source, in the order of their lines."""
    found = {bug.source: bug for bug in _Planter(source).bugs() if _parses(bug.source)}
    return sorted(found.values(), key=lambda bug: (bug.line, bug.what))


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class _Planter:
    """Visit each node of a source, and keep the source with one change made there."""

    def __init__(self, source: str) -> None:
        self._source = source.encode()
        self._starts = [0]  # of each line, in bytes, as `ast` counts columns
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bugs: list[Bug] = []

    def bugs(self) -> list[Bug]:
        tree = ast.parse(self._source)
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                child.parent = node  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            visit = getattr(self, f"_{type(node).__name__}", None)
            if visit is not None:
                visit(node)
        return self._bugs

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0),
        )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _plant(self, node: ast.expr | ast.stmt, text: str, what: str) -> None:
        start, end = self._span(node)
        changed = self._source[:start] + text.encode() + self._source[end:]
        self._bugs.append(Bug(node.lineno, " ".join(what.split())[:100], changed.decode()))

    def _BoolOp(self, node: ast.BoolOp) -> None:
        joint = " and " if isinstance(node.op, ast.And) else " or "
        for value in node.values:
            others = joint.join(
                f"({self._text(each)})" for each in node.values if each is not value
            )
            self._plant(node, f"({others})", f"without{joint}{self._text(value)}")

    def _If(self, node: ast.If) -> None:
        condition = self._text(node.test)
        if condition == "TYPE_CHECKING":
            return
        self._plant(node.test, "False", f"never: if {condition}")
        if node.orelse or not isinstance(node.body[0], ast.Raise):
            self._plant(node.test, "True", f"always: if {condition}")

    def _IfExp(self, node: ast.IfExp) -> None:
        for value in (node.body, node.orelse):
            self._plant(node, f"({self._text(value)})", f"always: {self._text(value)}")

    def _Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and (sign := TIGHTENED.get(type(node.ops[0]))):
            changed = f"{self._text(node.left)} {sign} {self._text(node.comparators[0])}"
            self._plant(node, changed, f"in place of {self._text(node)}: {sign}")

    def _comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._plant(condition, "True", f"each, and not only if {self._text(condition)}")

    def _Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        text = self._text(node)
        if isinstance(value, ast.Call) and not text.startswith(("log.", "_log.", "super()")):
            self._plant(node, "pass", f"without {text}")

    def _Assign(self, node: ast.Assign) -> None:
        kept = all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        if kept and _function_of(node) != "__init__":
            self._plant(node, "pass", f"without {self._text(node)}")

    def _AugAssign(self, node: ast.AugAssign) -> None:
        self._plant(node, "pass", f"without {self._text(node)}")

    def _Delete(self, node: ast.Delete) -> None:
        self._plant(node, "pass", f"without {self._text(node)}")

    def _ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if isinstance(node.type, ast.Tuple):
            self._leave_out_each(node.type, node.type.elts)
        elif node.type is not None:
            self._plant(node.type, "()", f"without except {self._text(node.type)}")

    def _leave_out_each(self, node: ast.expr, of: list[ast.expr]) -> None:
        for left_out in of:
            others = "".join(f"{self._text(each)}, " for each in of if each is not left_out)
            self._plant(node, f"({others})", f"without except {self._text(left_out)}")

    def _Continue(self, node: ast.Continue) -> None:
        self._plant(node, "break", "break in place of continue")

    def _Break(self, node: ast.Break) -> None:
        self._plant(node, "continue", "continue in place of break")

    def _Call(self, node: ast.Call) -> None:
        name = self._text(node.func)
        if name in ("min", "max") and len(node.args) > 1:
            self._plant(node.func, "max" if name == "min" else "min", f"not {self._text(node)}")
        if name == "suppress":
            for left_out in node.args:
                others = ", ".join(self._text(each) for each in node.args if each is not left_out)
                self._plant(node, f"suppress({others})", f"without {self._text(left_out)}")
        for limit in node.keywords:
            if limit.arg in LIMITS:
                others = [self._text(each) for each in node.args]
                others += [
                    f"{each.arg}={self._text(each.value)}" if each.arg else self._text(each.value)
                    for each in node.keywords
                    if each is not limit
                ]
                self._plant(node, f"{name}({', '.join(others)})", f"{name} without {limit.arg}")

    def _BinOp(self, node: ast.BinOp) -> None:
        numbers = not isinstance(node.right, ast.JoinedStr | ast.List | ast.Tuple)
        if isinstance(node.op, ast.Add | ast.Sub) and numbers:
            if not isinstance(node.left, ast.Constant | ast.JoinedStr):
                self._plant(node, self._text(node.left), f"half of {self._text(node)}")
        elif isinstance(node.op, ast.FloorDiv):
            up = f"-(-({self._text(node.left)}) // ({self._text(node.right)}))"
            self._plant(node, up, f"rounded up: {self._text(node)}")

    def _Try(self, node: ast.Try) -> None:
        for statement in node.finalbody:
            self._plant(statement, "pass", f"without finally {self._text(statement)}")


def _function_of(node: ast.AST) -> str:
    """Return the name of the function that a node is in; empty where it is in none."""
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        node = node.parent  # type: ignore[attr-defined]
    return getattr(node, "name", "")
