"""One LogMessage as a caller gives it: checked, made immutable, and measured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from memq.core.format.message import Headers

BytesLike = bytes | bytearray | memoryview

# What Arrow adds to the bytes of a LogMessage of the default schema.
RECORD_BYTES = 21  # three offsets of 4, a timestamp of 8, and up to four validity bits
HEADER_BYTES = 9  # two offsets of 4 and a validity bit
ENVELOPE_BYTES = 704  # of a Message: metadata (about 530), padding, last offsets, compression

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP_RANGE = range(-(1 << 63), 1 << 63)


class Record(NamedTuple):
    """A checked LogMessage.

    Attributes:
        key: None where it has none.
        value: None is a tombstone.
        headers: None where it has none.
        timestamp_us: microseconds since 1970 UTC; None for the time of writing.
        size_bytes: upper bound of what it adds to its Message.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_us: int | None
    size_bytes: int


def check_record(
    value: BytesLike | None,
    key: BytesLike | None,
    headers: Headers | None,
    timestamp: datetime | int | None,
) -> Record:
    """The record, safe from later changes by the caller.

    Raises:
        InvalidRequestError: something is not of its type; the message says how to give it.
    """
    value = _checked_bytes("value", value)
    key = _checked_bytes("key", key)
    size = RECORD_BYTES + len(value or b"") + len(key or b"")
    pairs = None
    if headers is not None:
        pairs = [_checked_header(pair) for pair in _pairs(headers)]
        size += sum(HEADER_BYTES + len(name.encode()) + len(text or b"") for name, text in pairs)
    return Record(key, value, pairs, _checked_timestamp_us(timestamp), size)


def _checked_bytes(what: str, given: object) -> bytes | None:
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    hint = "; encode it first: value.encode()" if isinstance(given, str) else ""
    raise InvalidRequestError(f"a {what} must be bytes or None, not {type(given).__name__}{hint}")


def _pairs(headers: Headers) -> list[tuple[object, object]]:
    try:
        items = headers.items() if isinstance(headers, Mapping) else headers
        return [(name, text) for name, text in items]
    except (TypeError, ValueError) as exc:
        raise InvalidRequestError(
            f"headers must be a mapping of str to bytes, or pairs of them, not {headers!r:.200}"
        ) from exc


def _checked_header(pair: tuple[object, object]) -> tuple[str, bytes | None]:
    name, text = pair
    if not isinstance(name, str):
        raise InvalidRequestError(f"a header name must be str, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequestError(f"header name {name!r:.200} is not valid Unicode") from exc
    return name, _checked_bytes(f"value of header {name!r:.200}", text)


def _checked_timestamp_us(timestamp: object) -> int | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidRequestError(
                f"timestamp {timestamp!r} has no time zone; give one, such as "
                "datetime.now(timezone.utc)"
            )
        return (timestamp - _EPOCH) // _MICROSECOND
    if type(timestamp) is not int:
        raise InvalidRequestError(
            "a timestamp must be a datetime with a time zone, or microseconds since 1970 UTC as "
            f"int, not {type(timestamp).__name__}"
        )
    if timestamp not in _TIMESTAMP_RANGE:
        raise InvalidRequestError(f"timestamp {timestamp} does not fit 64 bits of microseconds")
    return timestamp
