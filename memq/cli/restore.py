"""`memq restore`: what a queue or a coordination service has lost, from the bucket."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memq.broker.config import BROKER_OPTIONS, BrokerConfig, load_file
from memq.cli.command import Command, option, output_option, table_options
from memq.cli.output import notice, show_rows
from memq.core.units import counted
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from memq.broker.restore import RestoreOutcome

COUNTS = ("exact", "later", "lost", "missing", "given_up")
EVERY = 1_000  # counts between two lines of progress


@click.command(
    cls=Command,
    epilog="memq restore --config broker.toml\n"
    "memq restore --from s3://logs/memq/ --data-dir /var/lib/memq --execute",
)
@option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of the broker's options.",
)
@option("--from", "source", default="", help="URI of the bucket, as the option storage.")
@option("--topic", help="Only this topic.")
@option("--execute", is_flag=True, help="Do it; without it only what would be done is shown.")
@table_options(BROKER_OPTIONS, variable_prefix="MEMQ_")
@output_option
def restore(given: dict[str, str], config: Path | None, output: str, **chosen: Any) -> None:
    """Restore queue, topics, groups, users from the bucket.

    All brokers must be stopped. What was backed up comes back at its old offsets. Batches that were
    published after the last backup get new ones, which groups read again. What is not lost is left
    as it is. Nothing that cannot be read is ever removed.
    """
    import asyncio  # noqa: PLC0415 - `--help` does without, as without Arrow

    from memq.broker.restore_run import restore_cluster  # noqa: PLC0415

    options = ({} if config is None else load_file(config)) | given
    if chosen["source"]:
        options["storage"] = chosen["source"]
    broker, execute = BrokerConfig.create(options), chosen["execute"]
    outcomes = asyncio.run(
        restore_cluster(broker, topic=chosen["topic"], execute=execute, progress=_progress)
    )
    columns = ["topic", "action", *COUNTS, "reason"]
    show_rows([asdict(each) for each in outcomes], columns, output)
    _advise(outcomes, execute)
    damaged = [reason for outcome in outcomes for reason in outcome.damaged]
    if damaged:
        raise CorruptDataError(
            f"{counted(len(damaged), 'object')} cannot be read and left where it was: {damaged[0]}"
        )


def _advise(outcomes: list[RestoreOutcome], execute: bool) -> None:
    """Say on stderr what is to be done next."""
    restored = [each for each in outcomes if each.action != "none"]
    if not restored:
        notice("nothing is lost")
    elif not execute:
        what = counted(len(restored), "topic")
        notice(f"{what} would be restored; nothing has changed. Add --execute")
    else:
        notice(f"{counted(len(restored), 'topic')} restored: start the brokers")


def _progress(what: str, count: int) -> None:
    if count % EVERY == 0 and sys.stderr.isatty():
        click.echo(f"\r{what}: {count:,}", err=True, nl=False)
