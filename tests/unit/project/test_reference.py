"""The reference of options is what the tables say."""

from __future__ import annotations

from pathlib import Path

from docs.generate.configuration import render

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_committed_page_is_current():
    """The page in the repository equals the tables; `make docs` mends it when it does not."""
    assert PAGE.read_text(encoding="utf-8") == render()
