"""Values as users write them, or as templates render them: text, mostly, or nothing at all.

All are parsed here, so that sensors and operators take the same values and refuse others with the
same messages. "Nothing" is None, and what templates render it as: an empty text, or "None".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec

from memq.core import units
from memq.core.decoding import UNDECODABLE
from memq.errors import ConfigError

D = TypeVar("D", int, None)
T = TypeVar("T")
_Count = Annotated[int, msgspec.Meta(ge=0)]

Offsets = Mapping[int, int] | Mapping[str, int] | str
"""Offsets by read partition: a mapping, or its JSON such as `{"0": 5}`."""


# -- what must be given ---------------------------------------------------------------------


def parse_offsets(name: str, given: Offsets) -> dict[int, int]:
    """Offsets by partition, from a mapping or its JSON.

    Raises:
        ConfigError: it is neither, or holds something else than whole numbers from 0 on.
    """
    try:
        return _decoded(given, dict[_Count, _Count])
    except UNDECODABLE as exc:
        raise ConfigError(
            f"{name} = {str(given)[:200]!r}: must be a mapping of read partition to offset, or its "
            f'JSON such as {{"0": 5}}: {exc}'
        ) from exc


def parse_count(name: str, given: object) -> int:
    """Parse a whole number from 0 on, or the text of one.

    Raises:
        ConfigError: it is none.
    """
    text = str(given).strip()
    if isinstance(given, bool) or not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} = {given!r}: must be a whole number, 0 or more")
    return int(text)


def parse_time_ms(name: str, given: datetime | str) -> int:
    """Milliseconds since 1970 UTC of a time or its ISO text, rounded up.

    Raises:
        ConfigError: it is no time, or has no time zone.
    """
    try:
        at = given if isinstance(given, datetime) else datetime.fromisoformat(given.strip())
    except ValueError as exc:
        raise ConfigError(
            f"{name} = {given!r}: must be a time such as 2026-01-02T03:00:00Z. A run that an asset "
            "or a person started has no data interval: give it a time of its own"
        ) from exc
    if at.tzinfo is None:
        raise ConfigError(f"{name} = {given!r} has no time zone; add one, such as Z or +00:00")
    time_us = round(at.timestamp() * 1_000_000)  # Airflow's times subtract in a way of their own
    return -(-time_us // 1_000)  # up, so that nothing is left out


def parse_flag(name: str, given: object) -> bool:
    """Parse a flag, or the text of one.

    Raises:
        ConfigError: it is neither true nor false.
    """
    text = str(given).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} = {given!r}: must be true or false")
    return text == "true"


def skips_removed(on_removed: str) -> bool:
    """Return whether to go on without what retention has removed, in place of failing.

    Raises:
        ConfigError: it is neither "fail" nor "skip".
    """
    if on_removed not in ("fail", "skip"):
        raise ConfigError(f"on_removed = {on_removed!r}: must be 'fail' or 'skip'")
    return on_removed == "skip"


# -- what may be left out -------------------------------------------------------------------


def count_or(default: D, name: str, given: object) -> int | D:
    """Parse a whole number from 0 on; None becomes the default.

    Raises:
        ConfigError: it is none.
    """
    return default if _is_nothing(given) else parse_count(name, given)


def bytes_or(default: D, name: str, given: object) -> int | D:
    """Bytes: a whole number, or a text such as "64MiB".

    Raises:
        ConfigError: it is neither.
    """
    text = str(given).strip()
    if _is_nothing(given) or not text[-1:].isalpha():
        return count_or(default, name, given)
    return units.parse_size_bytes(text)


def duration_ms_or(default: D, given: object) -> int | D:
    """Milliseconds of a text such as "10m".

    Raises:
        ConfigError: it is no duration.
    """
    return default if _is_nothing(given) else units.parse_duration_ms(str(given))


def time_ms_or_none(name: str, given: datetime | str | None) -> int | None:
    """Milliseconds since 1970 UTC of a time or its ISO text.

    Raises:
        ConfigError: it is no time, or has no time zone.
    """
    return None if given is None or _is_nothing(given) else parse_time_ms(name, given)


def parse_texts(name: str, given: Mapping[str, str] | str | None) -> dict[str, str]:
    """Texts by name, from a mapping or its JSON; none where nothing is given.

    Raises:
        ConfigError: it is neither, or holds something else than texts.
    """
    if _is_nothing(given):
        return {}
    try:
        return _decoded(given, dict[str, str])
    except UNDECODABLE as exc:
        raise ConfigError(
            f'{name} = {given!r}: must be texts by name, such as {{"value": "binary"}}'
        ) from exc


def names_in(given: Sequence[str] | str | None) -> list[str]:
    """Read a list of names, or its text with commas."""
    names = given.split(",") if isinstance(given, str) else map(str, given or ())
    return [text for each in names if (text := each.strip())]


def _decoded(given: object, kind: type[T]) -> T:
    """Read a value, or its JSON."""
    value = msgspec.json.decode(given) if isinstance(given, str) else given
    return msgspec.convert(value, kind, strict=False, str_keys=True)


def _is_nothing(given: object) -> bool:
    return given is None or str(given).strip() in ("", "None")


# -- the other way --------------------------------------------------------------------------


def iso(time_ms: int) -> str:
    """Format a time as ISO text in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
