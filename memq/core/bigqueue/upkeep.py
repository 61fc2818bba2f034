"""Page files as files: flushing those that changed, deleting those that are no longer needed."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from memq.core.bigqueue.files import sync_directory, sync_file
from memq.core.bigqueue.layout import CONTROL_FILE, DATA, INDEX, Kind, Layout

if TYPE_CHECKING:
    from pathlib import Path

    from memq.core.bigqueue.pool import PagePool
    from memq.core.bigqueue.tail import Tail

KINDS: tuple[Kind, ...] = (DATA, INDEX)


class _OpenPage(NamedTuple):
    number: int
    path: Path
    descriptor: int
    inode: int


class PageFiles:
    """Knows the first page of each kind that exists, and the first that may be unflushed.

    It keeps the page of each kind that was flushed last open, since the next flush is most often
    for the same one. Not thread-safe: the array calls it under its lock for files. Methods raise
    `OSError`.
    """

    def __init__(self, layout: Layout, pool: PagePool, tail: Tail) -> None:
        self._layout = layout
        self._pool = pool
        self._items = layout.index_page_items
        self._lowest: dict[Kind, int] = {
            kind: min(layout.numbers(kind), default=0) for kind in KINDS
        }
        self._unflushed = self._pages_of(tail)
        self._open: dict[Kind, _OpenPage] = {}

    def flush(self, tail: Tail) -> None:
        """Flush all pages written since the last flush, data before index."""
        current = self._pages_of(tail)
        for kind in KINDS:
            first = max(self._unflushed[kind], self._lowest[kind])
            for number in range(first, current[kind] + 1):
                self._flush_page(kind, number)
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

    def close(self) -> None:
        """Close the pages that were kept open."""
        while self._open:
            _, page = self._open.popitem()
            os.close(page.descriptor)

    def _flush_page(self, kind: Kind, number: int) -> None:
        page = self._opened(kind, number)
        os.fdatasync(page.descriptor)
        # What was flushed into a file that lost its name meanwhile is not there after a restart.
        if page.path.stat().st_ino != page.inode:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(page.path))

    def _opened(self, kind: Kind, number: int) -> _OpenPage:
        page = self._open.get(kind)
        if page is not None:
            if page.number == number:
                return page
            del self._open[kind]
            os.close(page.descriptor)
        path = self._layout.file(kind, number)
        descriptor = os.open(path, os.O_RDONLY)
        page = _OpenPage(number, path, descriptor, os.fstat(descriptor).st_ino)
        self._open[kind] = page
        return page

    def _pages_of(self, tail: Tail) -> dict[Kind, int]:
        return {DATA: tail.page, INDEX: max(0, tail.index - 1) // self._items}
