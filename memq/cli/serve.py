"""`memq dev` and `memq broker`: run a broker until SIGTERM or SIGINT."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memq.broker.config import ALLOCATOR, BROKER_OPTIONS, BrokerConfig, load_file
from memq.cli.command import Command, option, output_option, table_options
from memq.core.defaults import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from memq.broker.server import Broker

DEV_DEFAULTS = {"auto_create_topics": "true"}
"""What a first try wants otherwise than a cluster: `memq produce hello` just works."""


@click.command(cls=Command, epilog="memq dev --data-dir /tmp/memq")
@table_options(BROKER_OPTIONS, variable_prefix="MEMQ_", defaults=DEV_DEFAULTS)
@output_option
@click.pass_context
def dev(ctx: click.Context, given: dict[str, str], output: str) -> None:
    """Run one broker with nothing to set up.

    Notifications go to an embedded queue and Batches to local files, both below --data-dir. Topics
    are made when they are first used. With -o json one line on stdout says where the broker is.
    """
    ctx.exit(_run(BrokerConfig.create(DEV_DEFAULTS | given), output))


@click.command(cls=Command, epilog="memq broker --config broker.toml --port 7367")
@option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of options; a variable wins over it, and a flag over both.",
)
@table_options(BROKER_OPTIONS, variable_prefix="MEMQ_")
@output_option
@click.pass_context
def broker(ctx: click.Context, given: dict[str, str], config: Path | None, output: str) -> None:
    """Run a broker as configured.

    The file may also name topics to make at start ([topics.NAME]) and other brokers ([[peers]]).
    """
    options = {} if config is None else load_file(config)
    ctx.exit(_run(BrokerConfig.create(options, **given), output))


def _run(config: BrokerConfig, output: str) -> int:
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    from memq.broker.server import run  # noqa: PLC0415 - loads Arrow and HTTP

    return run(config, _print_json if output == "json" else _print_welcome)


def _print_json(broker: Broker) -> None:
    place = {
        "address": broker.address,
        "admin": _admin(broker),
        "data_dir": str(Path(broker.config.data_dir).absolute()),
        "pid": os.getpid(),
    }
    click.echo(json.dumps(place))


def _print_welcome(broker: Broker) -> None:
    here = "" if broker.address == DEFAULT_BOOTSTRAP else f" -b {broker.address}"
    click.echo(
        f"""
  MemQ is ready.
    broker  {broker.address}
    data    {Path(broker.config.data_dir).absolute()}
    admin   {_admin(broker)}/status

  Try next:
    seq 1000000 | memq produce hello{here}
    memq consume hello --from-beginning --exit-at-end{here}
""",
        err=True,
    )


def _admin(broker: Broker) -> str:
    host = broker.config.host
    return f"http://{f'[{host}]' if ':' in host else host}:{broker.admin_port}"
