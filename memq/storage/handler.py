"""The seam to storage: what MemQ needs of an object store or a file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Buffer = Any
"""Anything with the buffer protocol: bytes, memoryview, pyarrow.Buffer."""


class ObjectInfo(NamedTuple):
    """An object as a listing shows it.

    Attributes:
        key: of the object, relative to the storage's root.
        size_bytes: of the object.
        modified_ms: when it was last written, milliseconds since 1970 UTC.
    """

    key: str
    size_bytes: int
    modified_ms: int


class StorageHandler(Protocol):
    """Immutable objects by key. Calls block; the broker makes them in worker threads.

    Keys are relative, with '/' between parts, and never contain '..'. Every method may raise
    `StorageError` (retriable).

    Attributes:
        remote: requests go over a network. A second put of an object may be quicker
            (`memq.runtime.hedging`), and one that was given up may be carried out later.
        requests: how many were made of each kind ("put", "get", "list", "delete"), and the bytes of
            objects that they carried ("put_bytes", "get_bytes"); nothing where none are billed.
    """

    @property
    def remote(self) -> bool: ...  # noqa: D102 - above

    @property
    def requests(self) -> Mapping[str, int]: ...  # noqa: D102 - above

    def put(self, key: str, buffers: Sequence[Buffer], *, timeout_s: float) -> None:
        """Write one object from buffers in order; durable when it returns.

        A key is written once. Putting the same bytes again succeeds (an earlier attempt whose
        answer was lost is recognised); putting other bytes fails. Nobody ever sees half an object.
        """

    def get(self, key: str) -> Buffer:
        """The whole object.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """`length` bytes from `start`; fewer where the object ends sooner.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """The objects whose key starts with a prefix: of one after the other, each in any order.

        A remote storage may ask for all prefixes at a time; whoever lists many gives it some.
        """

    def delete(self, *keys: str) -> None:
        """Remove objects, durably; those that are not there are fine. An error may leave some."""

    def close(self) -> None:
        """Give up what is under way in other threads, which raises `ClosedError` there."""

    def uri(self, key: str) -> str:
        """The complete URI of a key, which `open_uri` understands anywhere."""
