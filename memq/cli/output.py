"""Results on stdout: a table for people, JSON for programs.

Rows are dicts whose keys say the unit, as everywhere: `size_bytes` is a plain number in JSON, and
`SIZE  8.0 MiB` in a table; durations work the same way.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from memq.core.units import format_duration_ms, human_age, human_size
from memq.errors import ConfigError
from memq.runtime.log_format import is_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Row = dict[str, Any]

log = logging.getLogger("memq")

NAMED = 8  # names in a line below a table
_BYTES, _MS, _SECONDS = "_bytes", "_ms", "_seconds"


def show_rows(rows: Sequence[Row], columns: Sequence[str], output: str) -> None:
    """Print a list.

    Args:
        rows: all with the same keys.
        columns: keys that a table shows, in order; JSON has every key.
        output: "table" or "json".
    """
    if output == "json":
        show_json(list(rows))
    else:
        click.echo(table_text(rows, columns))


def table_text(
    rows: Sequence[Row], columns: Sequence[str], titles: Mapping[str, str] | None = None
) -> str:
    """Format a list as a table.

    Args:
        rows: all with the same keys.
        columns: keys that are shown, in order.
        titles: of columns whose key is not their title.
    """
    from tabulate import tabulate  # noqa: PLC0415 - not needed for JSON

    cells = [[_cell(column, row[column]) for column in columns] for row in rows]
    heads = [(titles or {}).get(column, _title(column)) for column in columns]
    return tabulate(cells, heads, "plain", disable_numparse=True)


def plain(value: Any) -> Any:
    """Structs within a value as JSON has them, with all their fields but `throttle_ms`."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
        value.pop("throttle_ms", None)  # is about the connection
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def show_json(value: object) -> None:
    """Print a result as JSON, indented."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def show_one(row: Row, output: str) -> None:
    """Print one thing: a key and its value a line, or a JSON object."""
    if output == "json":
        show_json(row)
        return
    from tabulate import tabulate  # noqa: PLC0415 - not needed for JSON

    lines = [[key, _cell(key, value)] for key, value in row.items()]
    click.echo(tabulate(lines, tablefmt="plain", disable_numparse=True))


def notice(text: str) -> None:
    """Say something besides the result, on stderr; as a log line where the command logs JSON."""
    if is_json():
        log.info("%s", text.removeprefix("memq: "))
    else:
        click.echo(text, err=True)


def replace_closed() -> None:
    """Open the streams that are closed (`>&-`), so that none of them is None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def check_stdout() -> None:
    """Refuse to print what nobody can read.

    Raises:
        ConfigError: stdout was closed at the start.
    """
    if getattr(sys.stdout, "name", None) == os.devnull:
        raise ConfigError("stdout is closed; name a file: > FILE")


def write_whole(out: IO[bytes], data: Any) -> None:
    """Write all of `data`, which is as bytes.

    Under PYTHONUNBUFFERED stdout is a bare file: it may take a part and only say so, also when the
    reader has gone, so that what was lost would be taken for written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) :]


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, if that is a terminal.

    Args:
        label: what is under way.
        length: how much there is to do.

    Returns:
        What is called with how much more is done.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


def some_of(items: Iterable[object]) -> str:
    """Name the first few of what may be many: JSON has all of them."""
    names = list(map(str, items))
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _title(column: str) -> str:
    return column.removesuffix(_BYTES).removesuffix(_MS).replace("_", "-").upper()


def _cell(key: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    for suffix, kind, human in _HUMAN:
        if key.endswith(suffix) and isinstance(value, kind):
            return human(value)
    return str(value)


_HUMAN: tuple[tuple[str, type, Callable[[Any], str]], ...] = (
    (_BYTES, int, human_size),
    (_MS, int, format_duration_ms),
    (_SECONDS, float, human_age),
    ("dollars", float, lambda value: f"{value:,.2f}"),
    ("amount", int, "{:,}".format),
)
"""How a table writes values, by the unit that ends their key."""
