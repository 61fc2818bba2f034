"""`memq dev` and `memq broker`: brokers, run until SIGTERM or SIGINT."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from memq.broker.config import ALLOCATOR, BROKER_OPTIONS, BrokerConfig, load_file
from memq.cli.command import Command, option, output_option, table_options
from memq.cli.console import add_pages
from memq.cli.output import show_rows
from memq.core.defaults import DEFAULT_BOOTSTRAP
from memq.errors import ConfigError
from memq.runtime.log_format import LOG_FORMAT, configure, is_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memq.broker.server import Broker

FIRST_TOPIC = "hello"
DEV_DEFAULTS = {"auto_create_topics": "true"}
"""What a first try wants otherwise than a cluster: `memq produce hello` just works."""


@click.command(cls=Command, epilog="memq dev --data-dir /tmp/memq\nmemq dev --secure")
@option(
    "--secure",
    is_flag=True,
    help="Speak TLS and ask for passwords: a CA, a certificate, the user admin and a profile for "
    "clients are made below --data-dir.",
)
@table_options(BROKER_OPTIONS, variable_prefix="MEMQ_", defaults=DEV_DEFAULTS)
@output_option
@click.pass_context
def dev(ctx: click.Context, given: dict[str, str], secure: bool, output: str) -> None:
    """Run one broker with nothing to set up.

    Notifications go to an embedded queue and Batches to local files, both below --data-dir. Topics
    are made when they are first used. With -o json one line on stdout says where the broker is.
    """
    made = _secured(given) if secure else {}
    ctx.exit(_run(DEV_DEFAULTS | made | given, output, secure=secure))


def _secured(given: Mapping[str, str]) -> dict[str, str]:
    """Options of a broker on this machine that speaks TLS and asks who its clients are."""
    from memq.cli.dev_security import make_admin, make_certificates  # noqa: PLC0415 - loads OpenSSL

    config = BrokerConfig.create({"authentication": "required"} | dict(given))
    host = (config.advertised or f"{config.host}:").rpartition(":")[0].strip("[]")
    try:
        data_dir = Path(config.data_dir)
        return make_certificates(data_dir, host) | make_admin(data_dir)
    except OSError as exc:
        raise ConfigError(f"cannot write certificates to {config.data_dir}: {exc}") from exc


@click.command(cls=Command, epilog="memq broker --config broker.toml --port 7367")
@option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of options; a variable wins over it, and a flag over both.",
)
@option(
    "--check",
    is_flag=True,
    help="Only show the options, with their sources and without secrets. Exit code 1: a start "
    "would refuse them.",
)
@table_options(BROKER_OPTIONS, variable_prefix="MEMQ_")
@output_option
@click.pass_context
def broker(
    ctx: click.Context, given: dict[str, str], config: Path | None, check: bool, output: str
) -> None:
    """Run a broker as configured.

    The file may also name topics to make at start ([topics.NAME]).
    """

    def read() -> dict[str, object]:
        return ({} if config is None else load_file(config)) | given

    if check:
        _check(ctx, BrokerConfig.create(read()), given)
    else:
        ctx.exit(_run(read(), output, read=lambda: BrokerConfig.create(read())))


def _check(ctx: click.Context, config: BrokerConfig, given: Mapping[str, str]) -> None:
    """Show what each option is, and who says so.

    Raises:
        ConfigError: a file that an option names cannot be used.
    """
    from memq.broker.effective import check_files, shown_options  # noqa: PLC0415 - loads HTTP
    from memq.runtime.system import SYSTEM  # noqa: PLC0415

    rows, file = [], ctx.params["config"]
    in_file = {} if file is None else load_file(file)
    for name, value in shown_options(config).items():
        source = str(file) if name.partition(".")[0] in in_file else "default"
        if name in given:
            by_flag = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
            flag = f"--{name.replace('_', '-')}"
            source = flag if by_flag else f"MEMQ_{name.upper()}"
        rows.append({"option": name, "value": value, "source": source})
    show_rows(rows, ["option", "value", "source"], ctx.params["output"])
    check_files(config, SYSTEM)


def _run(
    options: Mapping[str, object],
    output: str,
    *,
    secure: bool = False,
    read: Callable[[], BrokerConfig] | None = None,
) -> int:
    if options.get(LOG_FORMAT.name) == "json":
        configure("json", "INFO")  # what is wrong with the other options is said so as well
    config = BrokerConfig.create(options)
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # until the broker takes them over
    from memq.broker.server import run  # noqa: PLC0415 - loads Arrow and HTTP

    shown = partial(_print_json if output == "json" else _print_welcome, secure)
    return run(config, shown, read, add_pages if config.console else None)


def _profile(broker: Broker, secure: bool) -> str:
    """Write the profile of a secure broker's clients; return its file, or nothing."""
    from memq.cli.dev_security import write_profile  # noqa: PLC0415 - loads OpenSSL

    return str(write_profile(Path(broker.config.data_dir), broker.address)) if secure else ""


def _print_json(secure: bool, broker: Broker) -> None:
    profile = _profile(broker, secure)
    place = {
        "address": broker.address,
        "admin": _admin(broker),
        "data_dir": str(Path(broker.config.data_dir).absolute()),
        "pid": os.getpid(),
    } | ({"profile": profile} if profile else {})
    click.echo(json.dumps(place))


def _print_welcome(secure: bool, broker: Broker) -> None:
    profile = _profile(broker, secure)
    if is_json():
        return  # the log says where it is, in a form that programs read
    known = profile or broker.address == DEFAULT_BOOTSTRAP
    here = "" if known else f" -b {broker.address}"
    missing = not broker.config.auto_create_topics and FIRST_TOPIC not in broker.topics.names()
    steps = [
        *([f"export MEMQ_CONFIG={profile}"] if profile else []),
        *([f"memq topic create {FIRST_TOPIC}{here}"] if missing else []),
        f"seq 1000000 | memq produce {FIRST_TOPIC}{here}",
        f"memq consume {FIRST_TOPIC} --from-beginning --exit-at-end{here}",
    ]
    url = _admin(broker)
    console = f"console {url}/console/" if broker.config.console else f"admin   {url}/status"
    asks = broker.config.token or broker.config.token_file
    token = ", with the token in MEMQ_TOKEN or after --token" if asks else ""
    click.echo(
        f"""
  MemQ is ready.
    broker  {broker.address}
    data    {Path(broker.config.data_dir).absolute()}
    {console}

  Try next{token}:
    {f"{os.linesep}    ".join(steps)}
""",
        err=True,
    )


def _admin(broker: Broker) -> str:
    host = broker.config.host
    scheme = "https" if broker.config.admin_tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{broker.admin_port}"
