"""Options of an object store as people write them: `region=eu-west-1,storage_class=STANDARD_IA`.

What they mean stands in `memq.core.storage.object_store_client`.
"""

from __future__ import annotations

from collections.abc import Mapping

from memq.errors import ConfigError

StorageOptions = frozenset[tuple[str, str]]
"""Names and values; hashable, because an open storage is known by them."""

NO_OPTIONS: StorageOptions = frozenset()


def parse_storage_options(value: object) -> StorageOptions:
    """Options from `NAME=VALUE,NAME=VALUE`, or from a table, as TOML and Python have it.

    Raises:
        ConfigError: it is neither, or a value is no text, number or flag.
    """
    if isinstance(value, str):
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        wrong = [name for name, separator, _ in pairs if not separator or not name.strip()]
        if wrong:
            raise ConfigError(
                f"storage_options: {wrong[0]!r} has no value; write NAME=VALUE,NAME=VALUE"
            )
        return frozenset((name.strip(), text.strip()) for name, _, text in pairs)
    if not isinstance(value, Mapping):
        raise ConfigError(f"storage_options = {value!r}: expected NAME=VALUE,NAME=VALUE or a table")
    return frozenset((str(name), _text(name, given)) for name, given in value.items())


def _text(name: object, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise ConfigError(f"storage_options: {name} = {value!r}: expected a text, a number or a flag")
