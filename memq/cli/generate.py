"""`memq generate`: files for Prometheus and Grafana, made from the tables of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memq.broker.alerts import rules_text
from memq.broker.dashboard import dashboard_text
from memq.cli.command import Group

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group(cls=Group)
def generate() -> None:
    """Make alerts for Prometheus and a dashboard for Grafana."""


def _command(name: str, text: Callable[[], str], short: str, example: str) -> None:
    @click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
    def write(file: Path | None) -> None:
        if file is None:
            click.echo(text(), nl=False)
        else:
            file.write_text(text(), encoding="utf-8")

    write.__doc__ = f"{short}\n\nIt goes to FILE, or to stdout."
    generate.command(name, epilog=f"memq generate {name} {example}")(write)


_command("alerts", rules_text, "Make alert rules for Prometheus.", "memq.rules.yaml")
_command("grafana", dashboard_text, "Make a dashboard for Grafana.", "memq.json")
