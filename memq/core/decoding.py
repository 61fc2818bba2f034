"""Decoding JSON or msgpack where the bytes may be damaged, or come from anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Only the first is msgspec's own: what is no UTF-8 raises the second, deep nesting the third."""

MAX_TOLD_CHARS = 400
"""Most of an error's text that is passed on: it may quote a name or value as long as the input."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that msgpack and Arrow take as well; in JSON one may be of any size."""

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
        told = str(exc)[:MAX_TOLD_CHARS]
        raise CorruptDataError(f"not {what}: {told}: {payload[:80]!r}") from exc


def check_version(version: int, known: int, what: str) -> None:
    """Refuse a version of a format that this reader does not know.

    Raises:
        CorruptDataError: naming both versions.
    """
    if version != known:
        raise CorruptDataError(
            f"{what} of version {version}; this reader knows {known}: upgrade memq"
        )
