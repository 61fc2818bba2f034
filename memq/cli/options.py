"""Options of commands: those that many share, and those that are rows of an option table."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from memq.cli.ranges import Range
from memq.cli.times import parse_time
from memq.core.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memq.core.options import Option

    Command = TypeVar("Command", bound=Callable[..., Any])

_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})")

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


def connection_options(command: Command) -> Command:
    """Where the brokers are, and the credential: the arguments `bootstrap` and `token`."""
    command = option(
        "--token",
        default="",
        show_default=False,
        envvar="MEMQ_TOKEN",
        help="Credential, where the brokers ask for one.",
    )(command)
    return option(
        "-b",
        "--bootstrap",
        default=DEFAULT_BOOTSTRAP,
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT[,…]",
        help="Some brokers of the cluster.",
    )(command)


class RangeType(click.ParamType[Range]):
    """`P:START-END`: partition, first offset, and one past the last."""

    name = "P:START-END"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Range:
        """The range that a text means."""
        match = _RANGE.fullmatch(value)
        if match is None or int(match[2]) > int(match[3]):
            self.fail(f"{value!r} is no offset range; write it like 0:100-200", param, ctx)
        return Range(int(match[1]), int(match[2]), int(match[3]))


class TimeType(click.ParamType[datetime]):
    """A time with its zone; see `parse_time` for how it is written."""

    name = "TIME"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The time that a text means now."""
        try:
            return parse_time(value, now=datetime.now(UTC))
        except ConfigError as exc:
            self.fail(str(exc), param, ctx)


class RowType(click.ParamType[str]):
    """A value that a row of an option table accepts, kept as the text that was written."""

    name = "text"

    def __init__(self, row: Option) -> None:
        self._row = row

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself, once the row has parsed it."""
        try:
            self._row.parse(value)
        except ConfigError as exc:
            self.fail(str(exc), param, ctx)
        return value


def table_options(
    table: Iterable[Option],
    *,
    variable_prefix: str | None = None,
    show_default: bool = True,
    defaults: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """One flag for each row of an option table.

    The command gets `given`: the texts by option name that came from a flag or a variable, so that
    defaults stay where they belong, behind a file or the present configuration of a topic.

    Args:
        table: the rows.
        variable_prefix: of the environment variables; None for the command's own prefix.
        show_default: whether leaving the option out means its default.
        defaults: shown in place of the table's.
    """
    rows = list(table)

    def decorate(command: Command) -> Command:
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
        return cast("Command", gather)

    return decorate


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
