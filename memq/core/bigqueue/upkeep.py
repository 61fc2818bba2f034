"""Page files as files: flushing those that changed, deleting those that are no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.bigqueue.files import sync_directory, sync_file
from memq.core.bigqueue.layout import CONTROL_FILE, DATA, INDEX, Kind, Layout

if TYPE_CHECKING:
    from memq.core.bigqueue.pool import PagePool
    from memq.core.bigqueue.tail import Tail

KINDS: tuple[Kind, ...] = (DATA, INDEX)


class PageFiles:
    """Knows the first page of each kind that exists, and the first that may be unflushed.

    Not thread-safe: the array calls it under its append lock. Methods raise `OSError`.
    """

    def __init__(self, layout: Layout, pool: PagePool, tail: Tail) -> None:
        self._layout = layout
        self._pool = pool
        self._items = layout.index_page_items
        self._lowest: dict[Kind, int] = {
            kind: min(layout.numbers(kind), default=0) for kind in KINDS
        }
        self._unflushed = self._pages_of(tail)

    def flush(self, tail: Tail) -> None:
        """Flush all pages written since the last flush, data before index."""
        current = self._pages_of(tail)
        for kind in KINDS:
            first = max(self._unflushed[kind], self._lowest[kind])
            for number in range(first, current[kind] + 1):
                sync_file(self._layout.file(kind, number))
        if tail.grew:
            for kind in KINDS:
                sync_directory(self._layout.path / kind)
            tail.grew = False
        self._unflushed = current

    def delete_before(self, keep: dict[Kind, int]) -> None:
        """Delete the pages below those in `keep`, after the control file has been flushed."""
        if all(keep[kind] <= self._lowest[kind] for kind in keep):
            return
        sync_file(self._layout.path / CONTROL_FILE)
        for kind, first in keep.items():
            for number in self._layout.numbers(kind):
                if number >= first:
                    break
                self._pool.unmap(kind, number)
                self._layout.file(kind, number).unlink()
            self._lowest[kind] = max(first, self._lowest[kind])

    def _pages_of(self, tail: Tail) -> dict[Kind, int]:
        return {DATA: tail.page, INDEX: max(0, tail.index - 1) // self._items}
