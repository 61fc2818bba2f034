"""Conventions of this tree that no linter knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MAX_MODULE_LINES = 450  # one idea a file; the models that the project follows rarely pass 400


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


def test_modules_stay_small() -> None:
    """A module that grows past the limit holds more than one idea: split it."""
    package = TESTS.parent / "memq"
    long = {
        str(path.relative_to(package)): lines
        for path in package.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > MAX_MODULE_LINES
    }
    assert long == {}
