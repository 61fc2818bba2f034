"""`memq quota`: how much principals, clients and groups may ask of each broker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import Group, ParsedType, admin_options, option
from memq.cli.output import show_rows
from memq.core.access.quotas import LIMITS, SIZES
from memq.core.units import parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq import AdminClient


@click.group(cls=Group)
def quota() -> None:
    """Limit what principals, clients and groups may ask.

    HOLDER is User:NAME, client:NAME or group:NAME; the name * is for each that has no limit of its
    own. A limit holds at each broker. Beyond it nothing is refused: the client has to wait.
    """


def _parse_limit(given: str | int) -> int:
    if isinstance(given, int):
        return given  # converted before
    return 0 if given == "0" else parse_size_bytes(given)


LimitType = partial(ParsedType, "SIZE", _parse_limit)


def _limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for limit, meaning in reversed(LIMITS.items()):
        kind = LimitType() if limit in SIZES else click.IntRange(min=0)
        command = option(f"--{limit.replace('_', '-')}", limit, type=kind, help=meaning)(command)
    return command


@quota.command("list", epilog="memq quota list\nmemq quota list -o json")
@admin_options
def list_(*, admin: AdminClient, output: str) -> None:
    """List all quotas, and how long clients waited."""
    rows = [
        {"holder": holder, "limit": limit, "value": value, "waited_s": round(waited_s[limit], 3)}
        for holder, limits, waited_s in admin.quotas()
        for limit, value in limits.items()
    ]
    show_rows(rows, ["holder", "limit", "value", "waited_s"], output)


@quota.command(
    "set",
    epilog="""
memq quota set User:etl --bytes-out 50MiB --replay-bytes 10MiB
memq quota set 'User:*' --connections 100 --mutations 5
memq quota set group:reports --replay-bytes 0
""",
)
@click.argument("holder")
@_limit_options
@admin_options
def set_(*, holder: str, admin: AdminClient, output: str, **given: int | None) -> None:
    """Set limits of HOLDER; 0 takes one away.

    Other limits of HOLDER stay as they are.
    """
    limits = {limit: value or None for limit, value in given.items() if value is not None}
    if not limits:
        raise click.UsageError("nothing to change; give an option such as --bytes-out 50MiB")
    admin.alter_quota(holder, limits)
    show_rows([{"holder": holder, **limits}], ["holder", *limits], output)


@quota.command("remove", epilog="memq quota remove User:etl")
@click.argument("holder")
@admin_options
def remove(*, holder: str, admin: AdminClient, output: str) -> None:
    """Take all limits of HOLDER away."""
    admin.alter_quota(holder, {})
    show_rows([{"holder": holder}], ["holder"], output)
