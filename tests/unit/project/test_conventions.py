"""Conventions of this tree that no linter knows."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[2]


def test_every_test_opens_with_a_sentence_of_behaviour():
    """A test says in one sentence what must hold, for the reader of its failure."""
    silent = [
        f"{path.name}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []
