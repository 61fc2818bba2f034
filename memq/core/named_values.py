"""Options of what memq is built upon, as people write them: `region=eu-west-1,profile=logs`.

What they mean stands where each is used: `memq.core.storage.object_store_client`,
`memq.core.notification.kafka.confluent` and `memq.core.governor.options`.
"""

from __future__ import annotations

from collections.abc import Mapping

from memq.errors import ConfigError

NamedValues = frozenset[tuple[str, str]]
"""Names and values; hashable, because what is open is known by them."""

NO_VALUES: NamedValues = frozenset()


def parse_storage_options(value: object) -> NamedValues:
    """Those of an object store; see `_parse`."""
    return _parse("storage_options", value)


def parse_queue_options(value: object) -> NamedValues:
    """Those of Kafka; see `_parse`."""
    return _parse("queue_options", value)


def parse_zookeeper_options(value: object) -> NamedValues:
    """Those of ZooKeeper; see `_parse`."""
    return _parse("zookeeper_options", value)


def _parse(option: str, value: object) -> NamedValues:
    """From `NAME=VALUE,NAME=VALUE`, or from a table, as TOML and Python have it.

    Raises:
        ConfigError: it is neither, or a value is no text, number or flag.
    """
    if isinstance(value, str):
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        wrong = [name for name, separator, _ in pairs if not separator or not name.strip()]
        if wrong:
            raise ConfigError(f"{option}: {wrong[0]!r} has no value; write NAME=VALUE,NAME=VALUE")
        return frozenset((name.strip(), text.strip()) for name, _, text in pairs)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{option} = {value!r}: expected NAME=VALUE,NAME=VALUE or a table")
    return frozenset((str(name), _text(option, name, given)) for name, given in value.items())


def _text(option: str, name: object, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise ConfigError(f"{option}: {name} = {value!r}: expected a text, a number or a flag")
