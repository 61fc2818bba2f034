"""What commands are made of: their class, options, types of values, and the way to the brokers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from datetime import UTC, datetime
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from memq.cli.output import notice
from memq.client.profile import PROFILE_VARIABLE, read_profile
from memq.client.security import security_values
from memq.core.defaults import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    SECURITY_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
    TOKEN_VARIABLE,
    ZONE_VARIABLE,
)
from memq.core.named_values import NamedValues, parse_storage_options
from memq.core.ranges import OffsetRange
from memq.core.units import parse_size_bytes, parse_time
from memq.errors import ConfigError, MemqError, UnavailableError
from memq.runtime.log_format import LOG_FORMAT, configure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memq.client.admin import AdminClient
    from memq.client.profile import Connection
    from memq.core.options import Option
    from memq.runtime.log_format import LogFormat

    Decorated = TypeVar("Decorated", bound=Callable[..., Any])

REACH_S = 3.0  # a broker that was started just now listens within this time
RETRY_S = 0.1
COMPLETION_REACH_S = 0.3  # a broker that does not listen by then is not there
COMPLETION_S = 1.5  # nobody waits longer for a list of names

_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})")
_PROFILE = "memq.profile"  # where a context keeps it
_SEPARATOR = re.compile(rb"(?:[^\\]|\\[tn\\]|\\0(?![0-7])|\\x[0-9A-Fa-f]{2})+", re.DOTALL)


class Command(click.Command):
    """A command whose epilog holds examples, one a line.

    An option that names no environment variable has the one of its flag: `--range` of
    `memq consume` is `MEMQ_CONSUME_RANGE`, whatever Python calls the argument. Each command has the
    option `--log-format`.
    """

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        if not isinstance(self, click.Group) and all(
            p.name != LOG_FORMAT.name for p in self.params
        ):
            self.params.append(_log_format_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the variables, then read arguments and variables."""
        options = [each for each in self.params if isinstance(each, click.Option)]
        for option in options if ctx.auto_envvar_prefix else []:
            if option.envvar is None and option.allow_from_autoenv:
                flag = max(option.opts, key=len).lstrip("-").replace("-", "_")
                option.envvar = f"{ctx.auto_envvar_prefix}_{flag.upper()}"
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as exc:
            exc.ctx = exc.ctx or ctx
            raise

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the examples, a line each."""
        lines = (self.epilog or "").strip().splitlines()
        if lines:
            with formatter.section("Examples" if len(lines) > 1 else "Example"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class Group(Command, click.Group):
    """A group of commands, shown in the order in which they were added."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names as they were added, not sorted."""
        return list(self.commands)


# -- options that many commands share -------------------------------------------------------


option = partial(click.option, show_default=True, show_envvar=True)
"""`click.option` whose help names the default and the variable."""

output_option = option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    envvar="MEMQ_OUTPUT",
    help="How to print the result.",
)


yes_option = option("--yes", is_flag=True, help="Do not ask.")


def _use_profile(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Make the profile's values the defaults of the options of these names."""
    # The shell completes quietly.
    found = read_profile(name, warn=None if context.resilient_parsing else _warn)
    context.meta[_PROFILE] = found
    said = {name: value for name, value in vars(found).items() if value}
    context.default_map = {**(context.default_map or {}), **said}


profile_option = option(
    "--profile",
    is_eager=True,
    expose_value=False,
    callback=_use_profile,
    envvar=PROFILE_VARIABLE,
    metavar="NAME",
    help="Profile of the configuration file that says what is not given here. "
    "[default: default, if there is one]",
    show_default=False,
)
"""For commands that ask no broker; `connection_options` has it for all others."""


def connection_options(command: Decorated) -> Decorated:
    """Add the options for brokers and credentials: arguments `bootstrap`, `token`, `security`.

    What neither a flag nor a variable says comes from the profile, for other options too.
    """

    @wraps(command)
    def with_own_token(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        _warn_of_variable(context)
        own = _own(context, "storage_options")
        return command(*args, **kwargs | connection_in(context) | own)

    for add in (
        option(
            "--token",
            default="",
            show_default=False,
            envvar=TOKEN_VARIABLE,
            help="Credential, where the brokers ask for one.",
        ),
        option(
            "--security",
            type=SecurityType(),
            default="",
            show_default=False,
            envvar=SECURITY_VARIABLE,
            help="What TLS needs, such as ca=ca.pem or ca=system.",
        ),
        profile_option,
        option(
            "-b",
            "--bootstrap",
            default=DEFAULT_BOOTSTRAP,
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT[,…]",
            help="Some brokers of the cluster.",
        ),
    ):
        add(with_own_token)
    return cast("Decorated", with_own_token)


def admin_options(command: Decorated) -> Decorated:
    """Options of a command that asks the brokers: the arguments `admin`, a client, and `output`."""

    @connection_options
    @output_option
    @wraps(command)
    def with_admin(
        *args: Any, bootstrap: str, token: str, security: NamedValues, **kwargs: Any
    ) -> Any:
        with connect_admin(bootstrap, token, security) as admin:
            return command(*args, admin=admin, **kwargs)

    return cast("Decorated", with_admin)


def connection_in(context: click.Context) -> Connection:
    """Return the brokers and the credentials of a command line that was read.

    Those of a profile do not go to brokers that were named in place of its own.
    """
    bootstrap, token = context.params["bootstrap"], context.params["token"]
    if context.get_parameter_source("token") is ParameterSource.DEFAULT_MAP:
        token = context.meta[_PROFILE].own("token", bootstrap)
    security = _own(context, "security")["security"]
    return {"bootstrap": bootstrap, "token": token, "security": security}


def _own(context: click.Context, name: str) -> dict[str, NamedValues]:
    """An option, for a command that has it; a profile's is for its own brokers."""
    if name not in context.params:
        return {}
    values = context.params[name]
    if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
        values = context.meta[_PROFILE].own(name, context.params["bootstrap"])
    return {name: values}


def _warn_of_variable(context: click.Context) -> None:
    """Say that a profile that was asked for by its flag is not the one whose brokers are asked."""
    own = context.meta[_PROFILE].bootstrap
    if (
        context.get_parameter_source("profile") is ParameterSource.COMMANDLINE
        and context.get_parameter_source("bootstrap") is ParameterSource.ENVIRONMENT
        and own not in (None, context.params["bootstrap"])
    ):
        _warn(
            f"{BOOTSTRAP_VARIABLE}={context.params['bootstrap']} wins over the "
            f"profile's bootstrap; unset it, or give -b {own}"
        )


def _warn(text: str) -> None:
    notice(f"memq: warning: {text}")


# -- values ---------------------------------------------------------------------------------


class ParsedType(click.ParamType):  # type: ignore[type-arg]  # older ones have none
    """A value that is made of a text.

    Args:
        name: how help calls the text.
        parse: what makes it; raises ConfigError.
    """

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the value that a text means."""
        try:
            return self._parse(value)
        except ConfigError as exc:
            self.fail(str(exc), param, ctx)


def _parse_range(text: str) -> OffsetRange:
    match = _RANGE.fullmatch(text)
    if match and int(match[2]) > int(match[3]):
        raise ConfigError(f"{text!r} ends before it starts")
    if match is None:
        raise ConfigError(f"{text!r} is not a range of offsets; write it like 0:100-200")
    return OffsetRange(int(match[1]), int(match[2]), int(match[3]))


RangeType = partial(ParsedType, "P:START-END", _parse_range)
"""Partition, first offset, and one past the last."""


def range_option(*, help: str) -> Callable[[Decorated], Decorated]:  # noqa: A002 - as click names it
    """The option `--range`, the argument `wanted`: one range, or none.

    A second one is refused: a range that is dropped in silence would look like missing data.
    """

    def only_one(
        ctx: click.Context, param: click.Parameter, given: tuple[OffsetRange, ...]
    ) -> OffsetRange | None:
        if len(given) > 1:
            raise click.BadParameter(
                "give one range, and run the command once for each", ctx, param
            )
        return given[0] if given else None

    return option(
        "--range", "wanted", type=RangeType(), multiple=True, callback=only_one, help=help
    )


def parse_separator(text: str) -> bytes:
    r"""Parse the bytes of a separator, with `\t`, `\n`, `\0`, `\\` and `\xNN` for what is hard to
    type.

    Raises:
        ConfigError: it is empty, or has another escape.
    """
    given = os.fsencode(text)
    if not _SEPARATOR.fullmatch(given):
        raise ConfigError(
            rf"{text!r} is no separator; write at least one character, and \t, \n, \0, \xNN or \\ "
            "for what is hard to type"
        )
    return given.decode("unicode_escape").encode("latin-1")


SeparatorType = partial(ParsedType, "TEXT", parse_separator)


def _parse_delimiter(text: str) -> str:
    found = parse_separator(text)
    if len(found) > 1 or not found.isascii() or found in b'\0\r\n"':
        raise ConfigError("must be one ASCII character, and no quote or newline")
    return found.decode()


DelimiterType = partial(ParsedType, "TEXT", _parse_delimiter)
"""What stands between the cells of CSV."""


def _parse_size(given: str | int) -> int:
    return given if isinstance(given, int) else parse_size_bytes(given)  # converted before


SizeType = partial(ParsedType, "SIZE", _parse_size)

SecurityType = partial(ParsedType, "NAME=VALUE[,…]", security_values)

StorageOptionsType = partial(ParsedType, "NAME=VALUE[,…]", parse_storage_options)


def _parse_header(given: str | tuple[str, bytes]) -> tuple[str, bytes]:
    if isinstance(given, tuple):
        return given
    name, equals, text = given.partition("=")
    if not (name and equals):
        raise ConfigError(f"{given!r} is no header; write it like source=web-1")
    return name, os.fsencode(text)


HeaderType = partial(ParsedType, "NAME=VALUE", _parse_header)
"""The value ends with the argument, whatever it has."""


def _parse_time(text: str) -> datetime:
    return parse_time(text, now=datetime.now(UTC))


TimeType = partial(ParsedType, "TIME", _parse_time)


def check_together(rules: Iterable[tuple[str, Sequence[str], str]]) -> None:
    """Refuse options of this command line that do not go together.

    Args:
        rules: an option, those that it does not go with, and the way out. An option that has one
            value is written with it, as `--format json`.

    Raises:
        UsageError: naming the two, and the way out.
    """
    context = click.get_current_context()
    given = set()
    for param in context.command.params:
        flag, value = max(param.opts, key=len), context.params.get(param.name or "")
        given.add(f"{flag} {value}")
        if value not in (None, False, (), param.default):
            given.add(flag)
    for one, others, way in rules:
        other = next((each for each in others if each in given), None)
        if one in given and other is not None:
            raise click.UsageError(f"{one} and {other} do not go together: {way}")


def confirm(question: str, *, yes: bool) -> None:
    """Go on only when somebody says so: by `--yes`, or by an answer at the terminal.

    Args:
        question: what would happen, such as "Delete topic clicks?".
        yes: whether `--yes` was given; then nobody is asked.

    Raises:
        click.UsageError: there is no terminal to ask at.
        click.ClickException: the answer is not yes.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask at: add --yes")
    # By hand, for `click.confirm` leaves a space on stdout, where the result is to stand alone.
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.ClickException("nothing was changed")


# -- options that are rows of a table -------------------------------------------------------


class RowType(ParsedType):
    """A value that a row of an option table accepts, kept as the text that was written."""

    def __init__(self, row: Option) -> None:
        super().__init__("text", row.parse)
        self._row = row

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text itself, once the row has parsed it."""
        super().convert(value, param, ctx)
        return value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        """Complete the choices that begin so, where the row has a list of them."""
        return [CompletionItem(each) for each in self._row.choices if each.startswith(incomplete)]


def table_options(
    table: Iterable[Option],
    *,
    variable_prefix: str | None = None,
    show_default: bool = True,
    defaults: Mapping[str, str] | None = None,
) -> Callable[[Decorated], Decorated]:
    """Add one flag for each row of an option table.

    The command gets `given`: the texts by option name that came from a flag or a variable, so that
    a default does not override a file or the present configuration of a topic.

    Args:
        table: the rows.
        variable_prefix: of the environment variables; None for the command's own prefix.
        show_default: whether leaving the option out means its default.
        defaults: shown in place of the table's.
    """
    rows = list(table)

    def decorate(command: Decorated) -> Decorated:
        @wraps(command)
        def gather(*args: Any, **kwargs: Any) -> Any:
            context = click.get_current_context()
            given = kwargs.pop("given", {})  # of another table on the same command
            for row in rows:
                value = kwargs.pop(row.name)
                if context.get_parameter_source(row.name) is not ParameterSource.DEFAULT:
                    given[row.name] = value if isinstance(value, str) else str(value).lower()
            return command(*args, given=given, **kwargs)

        for row in reversed(rows):
            own = None if row.default is None else row.default_text
            default = (defaults or {}).get(row.name, own) if show_default else None
            variable = None if variable_prefix is None else f"{variable_prefix}{row.name.upper()}"
            _flag(row, default, variable)(gather)
        return cast("Decorated", gather)

    return decorate


def row_option(row: Option) -> Callable[[Decorated], Decorated]:
    """Make the flag of a row that stands by itself; its argument is the text."""
    return _flag(row, None if row.default is None else row.default_text, None)


def _flag(row: Option, default: str | None, variable: str | None) -> Callable[[Any], Any]:
    name = row.name.replace("_", "-")
    if row.kind == "flag":
        on = None if default is None else default == "true"
        return option(f"--{name}/--no-{name}", default=on, envvar=variable, help=row.doc)
    metavar = f"[{'|'.join(row.choices)}]" if row.choices else row.kind.upper()
    return option(
        f"--{name}",
        type=RowType(row),
        default=default,
        show_default=bool(default),
        envvar=variable,
        metavar=metavar,
        help=row.doc,
    )


def _log_format_option() -> click.Option:
    """Make the option for how the command logs; text is the message alone."""

    def use(_: click.Context, __: click.Parameter, value: LogFormat) -> None:
        if value == "json":
            configure(value, "INFO")

    return click.Option(
        ["--log-format"],
        type=click.Choice(LOG_FORMAT.choices),
        default=LOG_FORMAT.default_text,
        show_default=True,
        envvar="MEMQ_LOG_FORMAT",
        show_envvar=True,
        expose_value=False,
        is_eager=True,
        callback=use,
        help=LOG_FORMAT.doc,
    )


read_through_option = option(
    "--read-through",
    type=click.Choice(["storage", "broker"]),
    default="storage",
    help="broker: for machines that cannot reach the storage.",
)

storage_options_option = option(
    "--storage-options",
    type=StorageOptionsType(),
    default="",
    show_default=False,
    envvar=STORAGE_OPTIONS_VARIABLE,
    help="Of the object store, such as region=eu-west-1,profile=logs. Put secrets into the "
    "variable or the profile: others can see command lines.",
)

zone_option = option(
    "--zone",
    default="",
    show_default=False,
    envvar=ZONE_VARIABLE,
    help="Where this machine is, such as eu-west-1a: brokers of that zone are preferred.",
)

# -- the way to the brokers -----------------------------------------------------------------


def connect_admin(bootstrap: str, token: str, security: NamedValues) -> AdminClient:
    """Open a client to ask the brokers with.

    Raises:
        UnavailableError: none of them can be reached.
    """
    from memq.client.admin import AdminClient  # noqa: PLC0415 - loads Arrow

    check_reachable(bootstrap)
    return AdminClient(bootstrap, token=token, security=security, client="memq")


def check_reachable(bootstrap: str, *, timeout_s: float = REACH_S) -> None:
    """Refuse to go on where no broker listens.

    Clients go on trying for as long as a program wants; somebody at a terminal has forgotten to
    start a broker, or mistyped its address, and should not have to wait to learn it.

    Raises:
        ConfigError: an address is malformed.
        UnavailableError: none of them can be reached.
    """
    from memq.client.cluster import parse_bootstrap  # noqa: PLC0415 - loads Arrow
    from memq.client.connection import parse_address  # noqa: PLC0415

    addresses = [parse_address(each) for each in parse_bootstrap(bootstrap)]
    deadline_s = time.monotonic() + timeout_s
    while True:
        for address in addresses:
            try:
                socket.create_connection(address, timeout_s).close()
            except OSError as exc:
                reason = exc
            else:
                return
        if time.monotonic() >= deadline_s:
            raise UnavailableError(
                f"no broker at {bootstrap}: {reason.strerror or reason}; start one with "
                "`memq dev`, or name another with --bootstrap"
            ) from reason
        time.sleep(RETRY_S)


# -- names that the brokers know, completed by the shell ---------------------------------------


class NameType(click.ParamType):  # type: ignore[type-arg]  # older ones have none
    """A name that the brokers know.

    Args:
        names: asks for all of them.
    """

    name = "text"

    def __init__(self, names: Callable[[AdminClient], list[str]]) -> None:
        self._names = names

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        """Return the names that begin so."""
        return _ask(ctx, incomplete, self._names)


TopicType = partial(NameType, lambda admin: [each.config.name for each in admin.list_topics()])
GroupType = partial(NameType, lambda admin: [each.group for each in admin.groups()])
BrokerType = partial(NameType, lambda admin: [each.id for each in admin.describe_cluster().brokers])


def _ask(
    ctx: click.Context, incomplete: str, question: Callable[[AdminClient], list[str]]
) -> list[CompletionItem[str]]:
    """Names that the brokers answer; none where they do not in time."""
    from memq.client.admin import AdminClient  # noqa: PLC0415 - loads Arrow

    connection = connection_in(ctx)
    answers: list[list[str]] = []

    def ask() -> None:
        with contextlib.suppress(MemqError, OSError):
            check_reachable(connection["bootstrap"], timeout_s=COMPLETION_REACH_S)
            with AdminClient(
                **connection, client="memq completion", request_timeout_s=COMPLETION_S
            ) as admin:
                answers.append(question(admin))

    # In a thread that nobody waits for at the end: the search for a host's address takes its time.
    asking = Thread(target=ask, name="memq-completion", daemon=True)
    asking.start()
    asking.join(COMPLETION_S)
    names = {name for answer in answers for name in answer if name.startswith(incomplete)}
    # Names that begin with an underscore are MemQ's own.
    shown = [name for name in names if incomplete or not name.startswith("_")]
    return [CompletionItem(name) for name in sorted(shown)]
