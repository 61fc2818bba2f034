"""The reference of options is what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.configuration import SECTIONS, main, render

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_committed_page_is_current():
    """The page in the repository equals the tables; `make docs` mends it when it does not."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_write(tmp_path):
    """The command writes the page to the file it is given."""
    main(str(tmp_path / "page.md"))

    assert (tmp_path / "page.md").read_text(encoding="utf-8") == render()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_every_option_has_its_row(section):
    """Each option is there with its default and its meaning, in one row of five cells."""
    text = render().split(f"## {section.title}\n")[1].split("\n## ")[0]
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}

    assert list(rows) == [option.name for option in section.options]
    for option in section.options:
        row = rows[option.name]
        assert (option.shown or option.default_text) in row
        assert option.doc in row
        assert option.doc.endswith(".")
        assert row.replace("\\|", "").count("|") == 6


def test_limits_are_in_human_units():
    """A reader sees the limits as they would write them."""
    page = render()

    assert "| `batch_bytes` | size | `8MiB` | 1KiB to 1GiB |" in page
    assert "| `batch_age` | duration | `200ms` | 1ms to 10m |" in page
    assert "| `ordering` | text | `none` | `none`, `producer` |" in page
    assert "| `audited` | flag | `true` | `true`, `false` |" in page
