"""Conventions of this tree that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
PRODUCT = ("memq", "airflow_provider_memq", "pyspark_memq", "spark_apps", "dags", "demo")

COUNTED = re.compile(
    r" (?:live |duplicate |published |read |write )?(?:LogMessages|Messages|Batches|batches|records"
    r"|rows|reports|objects|topics|partitions|groups|members|consumers|producers|brokers|files"
    r"|lines|notifications|offsets|ranges|tasks|failures|duplicates|findings|runs)\b"
)
"""What stands after a number in a text for people; sizes and times are units, and not here."""


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.name)
def test_every_test_opens_with_a_sentence_of_behaviour(path: Path) -> None:
    """A test says in one sentence what must hold, for the reader of its failure."""
    tree = ast.parse(path.read_text())
    silent = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def _texts(tree: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    """Strings of a module, but for docstrings and those of `__repr__`, which are for developers."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name="__repr__") | ast.Expr(value=ast.Constant()):
                continue
            case ast.JoinedStr() | ast.Constant(value=str()):
                yield node
            case _:
                yield from _texts(node)


def _counts_in(node: ast.JoinedStr | ast.Constant) -> Iterator[str]:
    """Plurals after a number that may be 1, which a constant such as MAX_TOPICS is not."""
    if isinstance(node, ast.Constant):
        yield from (
            match[0] for match in re.finditer(r"%d[\w ]*?" + COUNTED.pattern, str(node.value))
        )
        return
    for value, text in zip(node.values, node.values[1:], strict=False):
        if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
            match = COUNTED.match(str(text.value))
            is_constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
            is_number = not isinstance(value.value, ast.Constant)
            if match and is_number and not is_constant:
                yield ast.unparse(value.value) + match[0]


NO_COUNTS = {
    "report.consumer reports": "a verb",
    "report.partition offsets": "the offsets of a partition, which was named before",
    "len(names) topics": "more than the most that may be named",
    "table.num_rows records": "more than 2 GiB",
    "messages Messages": "more than an audit compares",
    "report.messages Messages": "more than a report may name",
    "partitions read partitions": "0, or more than there may be",
    "len(index.entries) Messages": "another number follows",
    "self.records records": "what a Tally shows of itself",
}
"""What looks like a count and is none."""


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_one_thing_is_not_spoken_of_as_many(path: Path) -> None:
    """A number and what it counts are written by `counted`, which knows the singular."""
    found = [count for node in _texts(ast.parse(path.read_text())) for count in _counts_in(node)]
    assert [each for each in found if each not in NO_COUNTS] == []
