"""Objects in memory: a `StorageHandler` for tests that keeps every promise but durability."""

from __future__ import annotations

import threading
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from memq.errors import InvalidRequestError, ObjectNotFoundError, StorageError
from memq.storage.handler import ObjectInfo
from memq.storage.keys import check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memq.storage.handler import Buffer


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class InMemoryStorage:
    """A `StorageHandler` in a dict. Safe to use from many threads. It grows without bound.

    Args:
        clock_ms: milliseconds since 1970 UTC, for `ObjectInfo.modified_ms`.
    """

    remote = False
    requests: Mapping[str, int] = MappingProxyType({})

    def __init__(self, *, clock_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    def __repr__(self) -> str:
        return f"<InMemoryStorage [{len(self._objects)} objects]>"

    def put(self, key: str, buffers: Sequence[Buffer], *, timeout_s: float) -> None:  # noqa: ARG002
        """Write one object; `timeout_s` has no meaning in memory.

        Raises:
            InvalidRequestError: the key is not valid.
            StorageError: the key holds other bytes.
        """
        content = b"".join(buffers)
        with self._lock:
            held, _ = self._objects.setdefault(check_key(key), (content, self._clock_ms()))
        if held != content:
            raise StorageError(
                f"cannot write {key!r}: the key holds other bytes, and an object is never rewritten"
            )

    def get(self, key: str) -> Buffer:
        """Read the whole object.

        Raises:
            InvalidRequestError: the key is not valid.
            ObjectNotFoundError: there is none.
        """
        held = self._objects.get(check_key(key))
        if held is None:
            raise ObjectNotFoundError(f"no object {key!r} in memory")
        return held[0]

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """`length` bytes from `start`; fewer where the object ends sooner.

        Raises:
            InvalidRequestError: the key is not valid, or the range is negative.
            ObjectNotFoundError: there is none.
        """
        if start < 0 or length < 0:
            raise InvalidRequestError(
                f"range of {length} bytes from {start} of {key!r} is negative"
            )
        return self.get(key)[start : start + length]

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """List the objects whose key starts with a prefix, as they were when the listing began.

        Raises:
            InvalidRequestError: no key could start with a prefix.
        """
        for prefix in prefixes:
            check_prefix(prefix)
        with self._lock:
            found = [
                ObjectInfo(key, len(content), modified_ms)
                for prefix in prefixes
                for key, (content, modified_ms) in self._objects.items()
                if key.startswith(prefix)
            ]
        return iter(found)

    def delete(self, *keys: str) -> None:
        """Remove objects; those that are not there are fine.

        Raises:
            InvalidRequestError: a key is not valid; nothing was removed.
        """
        with self._lock:
            for key in [check_key(key) for key in keys]:
                self._objects.pop(key, None)

    def close(self) -> None:
        """Nothing is ever under way."""

    def uri(self, key: str) -> str:
        """`memory:///<key>`; only this instance can read it.

        Raises:
            InvalidRequestError: the key is not valid.
        """
        return f"memory:///{check_key(key)}"
