"""Names that become part of file names, object keys, command lines and notifications."""

from __future__ import annotations

import re

from memq.errors import InvalidRequestError

MAX_PRODUCER_ID = 200  # characters, which are bytes

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def check_name(kind: str, name: str, most: int) -> None:
    """Refuse a name with other characters, or with more than `most` of them.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    if len(name) > most or _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{kind} {name[:300]!r} is not valid: use 1 to {most} of letters, digits, '.', '_' "
            "and '-', starting with a letter, digit or '_'"
        )


def is_producer_id(name: str) -> bool:
    """Return whether a name can be a producer id; it stands in every notification."""
    return 0 < len(name) <= MAX_PRODUCER_ID and name.isascii() and name.isprintable()
