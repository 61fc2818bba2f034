"""`memq recover`: what a stopped broker has lost, from what is left."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memq.cli.command import Command, option, output_option
from memq.cli.output import notice, show_rows
from memq.core.units import counted
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from memq.broker.recover import Outcome

COLUMNS = ("topic", "action", "published", "messages", "records", "lost", "repeated", "reason")
EVERY = 1_000  # counts between two lines of progress


@click.command(
    cls=Command,
    epilog="memq recover /var/lib/memq\nmemq recover --topic clicks --execute /var/lib/memq",
)
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@option(
    "--storage",
    default="",
    help="The broker's option storage, where it has one.",
)
@option("--topic", help="Only this topic.")
@option("--execute", is_flag=True, help="Do it; without it only what would be done is shown.")
@output_option
def recover(data_dir: Path, storage: str, topic: str | None, execute: bool, output: str) -> None:
    """Rebuild lost notifications from the objects.

    The broker must be stopped. A notification that an object proves is restored at its offset. When
    that is not possible for each of them, the topic is rebuilt under a new incarnation: every
    Message that is stored is published once, and groups have no offsets. Nothing that cannot be
    read is ever removed.
    """
    from memq.broker.recover import recover as run  # noqa: PLC0415 - loads Arrow
    from memq.runtime.system import SYSTEM  # noqa: PLC0415

    outcomes = run(
        data_dir.absolute(),
        storage=storage,
        topic=topic,
        execute=execute,
        runtime=SYSTEM,
        progress=_progress,
    )
    show_rows([asdict(each) for each in outcomes], COLUMNS, output)
    for outcome in outcomes:
        _advise(outcome, execute)
    damaged = [reason for outcome in outcomes for reason in outcome.damaged]
    if damaged:
        raise CorruptDataError(
            f"{counted(len(damaged), 'object')} cannot be read and left where it was: {damaged[0]}"
        )


def _advise(outcome: Outcome, execute: bool) -> None:
    """Say on stderr what is to be done next."""
    if outcome.action == "none":
        return
    done = f"{outcome.topic}: {outcome.action}"
    if not execute:
        notice(f"{done} would be done; nothing has changed. Add --execute")
    elif outcome.action == "rebuild":
        groups = ", ".join(outcome.groups) or "its groups"
        notice(
            f"{done} is done, incarnation {outcome.incarnation}. Clients open it again; {groups} "
            "have no offsets: set them with `memq group reset-offsets` before they start"
        )
    else:
        notice(f"{done} is done; offsets and groups are as they were")


def _progress(what: str, count: int) -> None:
    if count % EVERY == 0 and sys.stderr.isatty():
        click.echo(f"\r{what}: {count:,}", err=True, nl=False)
