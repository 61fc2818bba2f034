"""`memq user`: who may log in with a password."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memq.cli.command import Group, admin_options, confirm, option, yes_option
from memq.cli.output import notice, show_rows
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from memq import AdminClient

_COLUMNS = ["user", "principal"]


@click.group(cls=Group)
def user() -> None:
    """Create users, list them, change their passwords, delete them."""


def _password_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return option(
        "--password-file",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        help="File with the password, or - for stdin; without it you are asked at the terminal.",
    )(command)


def _read_password(file: Path | None) -> str:
    """Return a password, which no command line has: others see those.

    Raises:
        ConfigError: the file cannot be read.
        UsageError: there is no terminal to ask at.
    """
    if file is None and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at: give --password-file")
    if file is None:
        found: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return found
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the password from {file}: {exc}") from exc
    return text.rstrip("\r\n")


@user.command("list", epilog="memq user list")
@admin_options
def list_(*, admin: AdminClient, output: str) -> None:
    """List the users that have a password."""
    show_rows([_row(name) for name in admin.users()], _COLUMNS, output)


@user.command(epilog="memq user create alice\nmemq user create etl --password-file etl.password")
@click.argument("name", metavar="USER")
@_password_option
@admin_options
def create(*, name: str, password_file: Path | None, admin: AdminClient, output: str) -> None:
    """Create USER, whom rules call User:USER.

    The password does not leave this machine. What USER may do is said by `memq acl add`.
    """
    admin.create_user(name, _read_password(password_file))
    show_rows([_row(name)], _COLUMNS, output)


@user.command(epilog="memq user alter alice")
@click.argument("name", metavar="USER")
@_password_option
@admin_options
def alter(*, name: str, password_file: Path | None, admin: AdminClient, output: str) -> None:
    """Change the password of USER, whose connections end."""
    admin.alter_user(name, _read_password(password_file))
    show_rows([_row(name)], _COLUMNS, output)


@user.command(epilog="memq user delete alice --yes")
@click.argument("name", metavar="USER")
@yes_option
@admin_options
def delete(*, name: str, yes: bool, admin: AdminClient, output: str) -> None:
    """Delete USER, whose connections end.

    Rules about the user stay, and hold again for a later user of that name.
    """
    principal = f"User:{name}"
    rules = [rule for rule in admin.rules() if rule.principal == principal]
    confirm(f"Delete user {name}?", yes=yes)
    admin.delete_user(name)
    show_rows([_row(name)], _COLUMNS, output)
    if rules:
        notice(f"{len(rules)} of the rules are about {principal}: memq acl list {principal}")


def _row(name: str) -> dict[str, Any]:
    return {"user": name, "principal": f"User:{name}"}
