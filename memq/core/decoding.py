"""Decoding JSON or msgpack where the bytes may be damaged, or come from anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Only the first is msgspec's own: what is no UTF-8 raises the second, deep nesting the third."""

T = TypeVar("T")


def decode_stored(decode: Callable[[Any], T], payload: bytes | str, what: str) -> T:
    """Decode what was stored as JSON.

    Args:
        decode: of a decoder of its type.
        payload: the JSON.
        what: it is, in words: "a manifest".

    Raises:
        CorruptDataError: it is nothing of this kind.
    """
    try:
        return decode(payload)
    except UNDECODABLE as exc:
        raise CorruptDataError(f"not {what}: {exc}: {payload[:80]!r}") from exc


def check_version(version: int, known: int, what: str) -> None:
    """Refuse a version of a format that this reader does not know.

    Raises:
        CorruptDataError: naming both versions.
    """
    if version != known:
        raise CorruptDataError(
            f"{what} of version {version}; this reader knows {known}: upgrade memq"
        )
