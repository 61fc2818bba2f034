"""Options that the programs in `spark_apps/` have in common."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from memq.cli.options import option
from memq.core.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorator = Callable[[Any], Any]


def topic_options(command: Any) -> Any:
    """Where the data is: the arguments `bootstrap`, `topic` and `token_env`."""
    return _all_of(
        command,
        option(
            "--bootstrap",
            default=DEFAULT_BOOTSTRAP,
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT[,…]",
            help="Some brokers of the cluster.",
        ),
        click.option("--topic", required=True, help="The topic."),
        click.option(
            "--token-env", metavar="NAME", help="Environment variable that holds the credential."
        ),
    )


def job_options(name: str) -> Decorator:
    """What a job is called, and how it takes damage: `job`, `mode` and `report`.

    Args:
        name: of the job, when nothing else is said.
    """

    def add(command: Any) -> Any:
        return _all_of(
            command,
            click.option(
                "--job",
                default=name,
                show_default=True,
                help="Name of the job, and of the consumer that the audit knows.",
            ),
            click.option(
                "--mode",
                type=click.Choice(["failfast", "permissive"]),
                default="failfast",
                show_default=True,
                help="What to do when a Message is damaged or gone: fail, or leave it out and "
                "count it.",
            ),
            click.option(
                "--report/--no-report",
                default=True,
                show_default=True,
                help="Tell the audit what was read.",
            ),
        )

    return add


def _all_of(command: Any, *options: Decorator) -> Any:
    """A command with options, which `--help` shows in this order."""
    return reduce(lambda done, add: add(done), reversed(options), command)
