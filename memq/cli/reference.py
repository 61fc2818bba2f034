"""The reference of every option, as Markdown, made from the tables that check them.

`make docs` writes it to `docs/configuration.md`; a test keeps that file equal to the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memq.broker.config import BROKER_OPTIONS
from memq.core.topic import TOPIC_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.options import Option

_INTRODUCTION = """\
# Configuration

This page is generated from the code by `make docs`.

Durations are written like `500ms`, `10s`, `5m`, `2h` or `7d`; sizes like `512B`, `64KiB`, `16MiB`
or `2GiB`. A value outside its limits, and an option that does not exist, is refused with an error
that names it.
"""


class Section(NamedTuple):
    """One table of options as the reference shows it.

    Attributes:
        title: its heading.
        text: where these options are given.
        options: the table.
    """

    title: str
    text: str
    options: tuple[Option, ...]


SECTIONS = (
    Section(
        "Topic",
        "Given when a topic is created or altered, with `memq topic` or from Python.",
        TOPIC_OPTIONS,
    ),
    Section(
        "Broker",
        "Given in the TOML file of `memq broker --config FILE`. An environment variable (`MEMQ_` "
        "and the\nname in capitals, such as `MEMQ_DATA_DIR`) wins over the file, and a "
        "command-line flag over both.",
        BROKER_OPTIONS,
    ),
)


def render() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(section) for section in SECTIONS)])


def main(path: str) -> None:
    """Write the page to a file."""
    Path(path).write_text(render(), encoding="utf-8")


def _section(section: Section) -> str:
    return f"## {section.title}\n\n{section.text}\n\n{_table(section.options)}\n"


def _table(options: Iterable[Option]) -> str:
    head = "| Option | Kind | Default | Allowed | Meaning |\n| --- | --- | --- | --- | --- |"
    return "\n".join([head, *(_row(option) for option in options)])


def _row(option: Option) -> str:
    default = f"`{option.default_text}`" if option.default_text else "empty"
    meaning = option.doc.replace("|", "\\|")
    return f"| `{option.name}` | {option.kind} | {default} | {_allowed(option)} | {meaning} |"


def _allowed(option: Option) -> str:
    """What values pass: the choices, or the limits."""
    if option.kind == "flag":
        return "`true`, `false`"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.low is None or option.high is None:
        return ""
    return f"{option.show(option.low)} to {option.show(option.high)}"


if __name__ == "__main__":
    main(sys.argv[1])
