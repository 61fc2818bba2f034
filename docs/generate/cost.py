"""The tables of `docs/cost.md`, as `memq cost` prints them.

`make docs` renews them in place; a test keeps the page equal to the command.
"""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tabulate import tabulate

from memq.cli.main import main

RATES = {"1": "1 MB/s", "30": "30 MB/s", "1000": "1,000 MB/s"}
"""Megabytes a second, and how the page calls them."""

EMBEDDED_MOST = 50.0  # MB a second that one broker takes by the model
SHOWN = 8  # inputs in the table of what changes most
INPUT_RATES = ("30", "1")
VARIANTS = {("memq", "zone set"), ("kafka tuned", "zone set"), ("memq", "embedded queue")}

_PART = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with its tables made new."""

    def renew(part: re.Match[str]) -> str:
        begin, name, end = part.groups()
        return f"{begin}\n{_PARTS[name]()}\n\n{end}"

    return _PART.sub(renew, page)


def _cost(*arguments: str) -> list[dict[str, Any]]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(["cost", "--readers", "3", *arguments, "-o", "json"])
    if code:
        raise SystemExit(code)
    found: list[dict[str, Any]] = json.loads(out.getvalue())
    return found


def _bills() -> str:
    """A row for each line of each system, a column for each rate."""
    cells: dict[tuple[str, str], list[str]] = {}
    for number, rate in enumerate(RATES):
        usual = ("--mb-per-second", rate, "--against", "kafka")
        rows = [(row["system"], row["item"], row["dollars"]) for row in _cost(*usual)]
        for about, found in (
            ("zone set", _cost(*usual, "--zone-share", "0")),
            ("embedded queue", _cost(*usual, "--embedded") if float(rate) < EMBEDDED_MOST else []),
        ):
            rows += [
                (row["system"], f"total, {about}", row["dollars"])
                for row in found
                if row["item"] == "total" and (row["system"], about) in VARIANTS
            ]
        for system, item, dollars in rows:
            cells.setdefault((system, item), ["-"] * len(RATES))[number] = f"{dollars:,.0f}"
    order = {"memq": 0, "kafka tuned": 1, "kafka default": 2}
    ordered = sorted(cells.items(), key=lambda each: order[each[0][0]])
    return _block([[*names, *row] for names, row in ordered], ["", "dollars", *RATES.values()])


def _inputs() -> str:
    """What each input changes, halved and doubled, those first that change most."""
    found = [
        {row["item"]: row["dollars"] for row in rows if row["unit"] == "more a month"}
        for rows in (_cost("--mb-per-second", rate, "--sensitivity") for rate in INPUT_RATES)
    ]
    rows = [[item, *(f"{each[item]:+,.0f}" for each in found)] for item in list(found[0])[:SHOWN]]
    return _block(rows, ["more dollars", *(RATES[rate] for rate in INPUT_RATES)])


def _block(rows: list[list[str]], heads: list[str]) -> str:
    right = ["left" if "dollars" in head or not head else "right" for head in heads]
    table = tabulate(rows, heads, "plain", colalign=right, disable_numparse=True)
    return "\n".join(["```text", *(line.rstrip() for line in table.splitlines()), "```"])


_PARTS = {"bills": _bills, "inputs": _inputs}

if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
