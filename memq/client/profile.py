"""Where the brokers are and what they ask for: arguments, variables, and the profiles of a file.

The file is `memq.toml` in the user's configuration folder, or what `MEMQ_CONFIG` names:

    [profiles.default]
    bootstrap = "broker-1:6367,broker-2:6367"
    token_file = "memq.token"

    [profiles.local]
    bootstrap = "127.0.0.1:6367"

What is not given on the command line comes from a variable, else from the profile that was asked
for, else from the one called `default`, if there is one. A profile's token and its options of the
storage are for its own brokers: they are not used with those that a flag or `MEMQ_BOOTSTRAP` names
in their place.
"""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict, get_args

from memq.client.security import FILES, SYSTEM_CA, security_values
from memq.core.defaults import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    SECURITY_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
    TOKEN_VARIABLE,
    ZONE_VARIABLE,
)
from memq.core.named_values import (
    NO_VALUES,
    NamedValues,
    have_secret,
    parse_security,
    parse_storage_options,
)
from memq.core.options import Option, defaults, options_of, parse_options
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memq.core.named_values import GivenValues

log = logging.getLogger(__name__)

CONFIG_VARIABLE = "MEMQ_CONFIG"
PROFILE_VARIABLE = "MEMQ_PROFILE"
DEFAULT_PROFILE = "default"

_ReadThrough = Literal["storage", "broker"]


@dataclass(frozen=True)
class Profile:
    """What a profile says; None and an empty token are what it leaves open.

    Attributes:
        bootstrap: Addresses of some brokers, `host:port` separated by commas.
        token: Credential, if the brokers ask for one.
        token_file: File with the token, instead of `token`; relative to the configuration file.
        read_through: For `memq consume` and `memq export`.
        zone: Zone of this machine, such as eu-west-1a, to prefer its brokers.
        storage_options: Options of the object store, for readers: a table
            `[profiles.NAME.storage_options]`, or text as in the broker's option.
        security: TLS: a table `[profiles.NAME.security]`, or text. Files are relative to the
            configuration file.
    """

    bootstrap: Annotated[str | None, Option("text", None)] = None
    token: Annotated[str, Option("text", "")] = ""
    token_file: Annotated[str | None, Option("text", None)] = None
    read_through: Annotated[
        _ReadThrough | None, Option("text", None, choices=get_args(_ReadThrough))
    ] = None
    zone: Annotated[str, Option("text", "")] = ""
    storage_options: Annotated[NamedValues, Option("text", "", read=parse_storage_options)] = (
        NO_VALUES
    )
    security: Annotated[NamedValues, Option("text", "", read=parse_security)] = NO_VALUES

    def __repr__(self) -> str:
        return f"<Profile {self.bootstrap or 'without brokers'}>"  # never the token

    def own(self, name: str, bootstrap: str) -> Any:
        """Return a value for these brokers; nothing where they are not the profile's own."""
        own = self.bootstrap is None or _brokers(bootstrap) <= _brokers(self.bootstrap)
        return getattr(self if own else Profile(), name)


PROFILE_OPTIONS = options_of(Profile)


class Connection(TypedDict):
    """The arguments of a client that say whom to ask, and how to read what they store.

    Zone, options of the storage and security are there only where they are known.
    """

    bootstrap: str
    token: str
    zone: NotRequired[str]
    storage_options: NotRequired[NamedValues]
    security: NotRequired[NamedValues]


def profile(name: str | None = None) -> Connection:
    """Return a profile's brokers and storage, as arguments of any client.

    `Producer(**profile("prod"), topic="clicks")` writes to the brokers of the profile `prod`.

    Args:
        name: of the profile; None for the one in `MEMQ_PROFILE`, or else `default`.

    Raises:
        ConfigError: there is no such profile, or the file cannot be read or is malformed.
    """
    found = read_profile(name)
    bootstrap = found.bootstrap or DEFAULT_BOOTSTRAP
    return _connection(bootstrap, found.token, found.zone, found.storage_options, found.security)


def connection_of(
    bootstrap: str | None,
    token: str = "",
    zone: str = "",
    storage_options: GivenValues = NO_VALUES,
    security: GivenValues = NO_VALUES,
) -> Connection:
    """Whom a client asks that was given these arguments.

    Brokers that are not named are those of `MEMQ_BOOTSTRAP`, of the profile, or the one on this
    machine. A token that is not given is that of `MEMQ_TOKEN`, whatever the brokers, or of the
    profile that names them. A zone that was not given is that of `MEMQ_ZONE`,
    whatever the brokers, or of the profile that names them. Options of the storage are found as the
    zone is, with `MEMQ_STORAGE_OPTIONS`, and security with `MEMQ_SECURITY`.

    Raises:
        ConfigError: as `profile`; or options are malformed.
    """
    zone = zone or os.environ.get(ZONE_VARIABLE, "")
    options = _given(storage_options, STORAGE_OPTIONS_VARIABLE, parse_storage_options)
    safety = _given(security, SECURITY_VARIABLE, security_values)
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    if bootstrap is None:
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE) or None
    if bootstrap is not None:
        return _connection(bootstrap, token, zone, options, safety)
    found = profile()
    return _connection(
        found["bootstrap"],
        token or found["token"],
        zone or found.get("zone", ""),
        options or found.get("storage_options", NO_VALUES),
        safety or found.get("security", NO_VALUES),
    )


def _given(
    values: GivenValues, variable: str, parse: Callable[[GivenValues], NamedValues]
) -> NamedValues:
    """Return what was given, or else what a variable of the machine says."""
    if values:
        return parse(values)
    try:
        return parse(os.environ.get(variable, ""))
    except ConfigError as exc:
        raise ConfigError(f"{variable}: {exc}") from exc


def _connection(
    bootstrap: str, token: str, zone: str, options: NamedValues, security: NamedValues
) -> Connection:
    found = Connection(bootstrap=bootstrap, token=token)
    if zone:
        found["zone"] = zone
    if options:
        found["storage_options"] = options
    if security:
        found["security"] = security
    return found


def read_profile(
    name: str | None = None, *, warn: Callable[[str], object] | None = log.warning
) -> Profile:
    """Read a profile, with the token that its file holds.

    Args:
        name: as `profile` takes it.
        warn: told when others can read the token, or credentials of a storage.

    Raises:
        ConfigError: as `profile`.
    """
    asked = name or os.environ.get(PROFILE_VARIABLE)
    path, is_named = _config_file()
    profiles = _profiles_in(path) if is_named or os.path.exists(path) else {}  # noqa: PTH110 - Path raises
    given = profiles.get(asked or DEFAULT_PROFILE)
    if given is None and not asked:
        return Profile()
    if given is None:
        known = f"; it has {', '.join(profiles)}" if profiles else ""
        raise ConfigError(
            f"no profile {asked!r} in {path}{known}; add [profiles.{asked}] there, or name "
            f"another with --profile or {PROFILE_VARIABLE}"
        )
    return _parse(path, asked or DEFAULT_PROFILE, given, warn)


def _config_file() -> tuple[Path, bool]:
    """Return the path of the file, and whether the user named it."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named), True
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - where there is no home, Path raises
    return Path(folder, "memq.toml"), False


def _profiles_in(path: Path) -> Mapping[str, Any]:
    """Return the tables of the profiles, by name."""
    try:
        content = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path} is not TOML: {exc}") from exc
    profiles = content.pop("profiles", {})
    if content:
        raise ConfigError(
            f"{path}: unknown {next(iter(content))!r}; a profile begins with a line like "
            f"[profiles.{DEFAULT_PROFILE}]"
        )
    if not isinstance(profiles, dict) or not all(isinstance(p, dict) for p in profiles.values()):
        raise ConfigError(
            f"{path}: 'profiles' must be tables, each beginning with a line like "
            f"[profiles.{DEFAULT_PROFILE}]"
        )
    return profiles


def _parse(
    path: Path, name: str, given: Mapping[str, object], warn: Callable[[str], object] | None
) -> Profile:
    try:
        found = Profile(**defaults(PROFILE_OPTIONS) | parse_options(PROFILE_OPTIONS, given))
        _check_addresses(found)
        holder = _holder_of_token(path, found)
        if found.token_file:
            found = replace(found, token=_token_in(holder), token_file=None)
        found = replace(found, security=_beside(path, found.security))
    except ConfigError as exc:
        raise ConfigError(f"{path}, profile {name!r}: {exc}") from exc
    if warn and found.token and _others_read(holder):
        warn(f"{holder} holds a token and others can read it; chmod 600 it")
    if warn and have_secret(found.storage_options) and _others_read(path):
        warn(f"{path} holds credentials of a storage and others can read it; chmod 600 it")
    return found


def _brokers(bootstrap: str) -> set[str]:
    return {address.strip() for address in bootstrap.split(",")}


def _check_addresses(found: Profile) -> None:
    from memq.client.connection import parse_address  # noqa: PLC0415 - loads Arrow

    for address in (found.bootstrap or "").split(","):
        if address.strip():
            parse_address(address.strip())


def _holder_of_token(path: Path, found: Profile) -> Path:
    """Return the file that the token is in, if the profile has one."""
    if not found.token_file:
        return path
    if found.token:
        raise ConfigError("token and token_file are both given; leave out one")
    return path.parent / os.path.expanduser(found.token_file)  # noqa: PTH111 - as below


def _beside(path: Path, security: NamedValues) -> NamedValues:
    """Return what security says, with files relative to the configuration file."""
    return security_values(
        {
            name: str(path.parent / os.path.expanduser(value))  # noqa: PTH111 - as below
            if name in FILES and value != SYSTEM_CA
            else value
            for name, value in security
        }
    )


def _token_in(path: Path) -> str:
    token = _read(path).strip()
    if not token:
        raise ConfigError(f"{path} is empty; it should hold a token")
    return token


def _read(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not text: {exc}") from exc


def _others_read(path: Path) -> bool:
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) and bool(mode & (stat.S_IRGRP | stat.S_IROTH))
