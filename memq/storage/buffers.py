"""The buffers of an object: what storages do with them before and after they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memq.storage.handler import Buffer

COMPARE_BYTES = 1 << 20  # read at a time when an object is compared


def views_of(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Views of the bytes of buffers, without those that are empty."""
    return [view for buffer in buffers if (view := memoryview(buffer).cast("B")).nbytes]


def same_bytes(
    read: Callable[[int, int], Buffer], size_bytes: int, views: Sequence[memoryview]
) -> bool:
    """Whether an object holds just the bytes of some buffers.

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
