"""The seam to storage: what MemQ needs of an object store or a file system.

Below it: what storages do with the buffers of an object before and after they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

COMPARE_BYTES = 1 << 20  # read at a time when an object is compared

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
        """Read the whole object.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """`length` bytes from `start`; fewer where the object ends sooner.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """List the objects whose key starts with a prefix: of one after the other, each in any
        order.

        A remote storage may ask for all prefixes at a time; callers that list many give it some.
        """

    def delete(self, *keys: str) -> None:
        """Remove objects, durably; those that are not there are fine. An error may leave some."""

    def close(self) -> None:
        """Give up what is under way in other threads, which raises `ClosedError` there."""

    def uri(self, key: str) -> str:
        """Return the complete URI of a key, which `open_uri` understands anywhere."""


def views_of(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Views of the bytes of buffers, without those that are empty."""
    return [view for buffer in buffers if (view := memoryview(buffer).cast("B")).nbytes]


def same_bytes(
    read: Callable[[int, int], Buffer], size_bytes: int, views: Sequence[memoryview]
) -> bool:
    """Return whether an object holds exactly the bytes of some buffers.

    Args:
        read: bytes of the object, from a start and so many; no more than `COMPARE_BYTES`, and none
            after its end.
        size_bytes: of the object.
        views: of the buffers.
    """
    if size_bytes != sum(view.nbytes for view in views):
        return False
    start = 0
    for view in views:
        for at in range(0, view.nbytes, COMPARE_BYTES):
            piece = pa.py_buffer(view[at : at + COMPARE_BYTES])
            if not pa.py_buffer(read(start, piece.size)).equals(piece):
                return False
            start += piece.size
    return True
