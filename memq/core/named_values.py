"""Options of what memq is built upon, as people write them: `region=eu-west-1,profile=logs`.

What they mean stands where each is used: `memq.storage.object_store_client`,
`memq.queue.kafka.confluent` and `memq.zookeeper.options`. Values may be secret, so
neither an error nor a `repr` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


class NamedValues(frozenset[tuple[str, str]]):
    """Names and values; hashable, because what is open is known by them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<NamedValues {', '.join(sorted(name for name, _ in self)) or 'none'}>"


NO_VALUES = NamedValues()

# In names of such options, whatever their case: of S3, Google and Azure, and of users.
_OF_SECRETS = (
    "secret", "token", "account_key", "access_key", "master_key", "customer_key", "sas_",
    "password",
)  # fmt: skip

# Ways to have credentials of AWS, beside which none of brokers are wanted.
_CREDENTIALS = ("access_key_id", "secret_access_key", "session_token", "token", "profile")

GivenValues = Mapping[str, object] | str | NamedValues
"""Options as people give them: a table, or its text; or as they were read."""


def have_secret(values: NamedValues) -> bool:
    """Return whether one of some options is a credential, by its name."""
    return any(word in name.lower() for name, _ in values for word in _OF_SECRETS)


def asks_brokers(options: NamedValues) -> bool:
    """Return whether brokers are asked for the credentials.

    Raises:
        ConfigError: nobody knows who is to be asked, or others are given as well.
    """
    given = {name.lower(): value for name, value in options}
    if (how := given.get("credentials")) is None:
        return False
    if how != "broker" or any(name.removeprefix("aws_") in _CREDENTIALS for name in given):
        raise ConfigError(
            f"storage_options: credentials = {how!r}: must be broker, with no key or profile"
        )
    return True


def parse_storage_options(value: object) -> NamedValues:
    """Parse the options of an object store; see `_parse`."""
    return _parse("storage_options", value)


def parse_queue_options(value: object) -> NamedValues:
    """Parse the options of Kafka; see `_parse`."""
    return _parse("queue_options", value)


def parse_zookeeper_options(value: object) -> NamedValues:
    """Parse the options of ZooKeeper; see `_parse`."""
    return _parse("zookeeper_options", value)


def parse_security(value: object) -> NamedValues:
    """Parse what a client needs for TLS, and to log in; see `_parse`."""
    return _parse("security", value)


def parse_catalog_options(value: object) -> NamedValues:
    """Parse the options of a catalog of tables; see `_parse`."""
    return _parse("catalog_options", value)


def text_of(values: NamedValues) -> str:
    """`NAME=VALUE,NAME=VALUE`, from which the same options are read.

    Raises:
        ConfigError: there is no such text: a value has a comma, or begins or ends with a space.
    """
    for name, value in sorted(values):
        if "," in value or value != value.strip():
            raise ConfigError(
                f"{name} has a comma, or a space at one of its ends, and cannot be written as "
                "NAME=VALUE,NAME=VALUE"
            )
    return ",".join(f"{name}={value}" for name, value in sorted(values))


def _parse(option: str, value: object) -> NamedValues:
    """Parse `NAME=VALUE,NAME=VALUE`, or a table, as TOML and Python have it.

    Raises:
        ConfigError: it is neither, or a value is no text, number or flag.
    """
    if isinstance(value, NamedValues):
        return value
    if isinstance(value, str):
        return NamedValues(_pairs(option, value))
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise ConfigError(f"{option}: expected NAME=VALUE,NAME=VALUE or a table, not {kind}")
    return NamedValues((str(name), _text(option, name, given)) for name, given in value.items())


def _pairs(option: str, text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a text; what has neither may be the end of a password with a comma."""
    place = "at its beginning"
    for pair in text.split(","):
        name, separator, value = pair.partition("=")
        if not pair.strip():
            continue
        if not separator or not name.strip():
            raise ConfigError(
                f"{option}: no NAME=VALUE {place}; write NAME=VALUE,NAME=VALUE, or a table in the "
                "configuration file where a value has a comma"
            )
        yield name.strip(), value.strip()
        place = f"after {name.strip()}=…,"


def _text(option: str, name: object, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Mapping):
        raise ConfigError(
            f"{option}: {name} is a table of its own; put the whole name in quotes: "
            f'"{name}.{next(iter(value), "NAME")}" = …'
        )
    kind = type(value).__name__
    raise ConfigError(f"{option}: {name}: expected a text, a number or a flag, not {kind}")
