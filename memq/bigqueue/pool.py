"""The page pool: a bounded number of page files mapped into memory at any time.

An array may be far larger than memory; only its pages in use are mapped. The pool unmaps the page
that was least recently asked for when it reaches its bound, and pages not asked for within their
time to live. Unmapping is explicit, so the bound holds at every instant, even while code holds a
map: readers and writers keep the maps they work on without asking again, and find out by the error
that a closed map raises. They then repeat the step under `lock`, where no page can be unmapped.
Unmapping loses nothing: what was written stays in the kernel's page cache.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from memq.bigqueue.files import preallocate, translated
from memq.errors import ClosedError, ConfigError, CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.bigqueue.layout import Kind, Layout

# Up to 1 GiB of address space and 16 descriptors with default pages: both ends of a queue and a
# dozen readers elsewhere in it.
DEFAULT_MAX_MAPPED_PAGES = 16
# The writer and one reader hold a data page and an index page each; fewer would thrash.
MIN_MAPPED_PAGES = 4
# Long enough for a busy page, short enough that an idle queue gives its mappings back.
DEFAULT_PAGE_TTL_S = 60.0


class PagePool:
    """Maps page files on demand and unmaps the least recently used. Thread-safe.

    Attributes:
        lock: no page is unmapped while a thread holds it; re-entrant.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        max_pages: int,
        ttl_s: float,
        writable: bool,
        clock_s: Callable[[], float],
    ) -> None:
        if max_pages < MIN_MAPPED_PAGES:
            raise ConfigError(f"max_mapped_pages={max_pages} is too few; give {MIN_MAPPED_PAGES}+")
        if ttl_s <= 0:
            raise ConfigError(f"page_ttl_s={ttl_s} is not positive; give seconds, such as 60")
        self.lock = threading.RLock()
        self._layout = layout
        self._max_pages = max_pages
        self._ttl_s = ttl_s
        self._access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._clock_s = clock_s
        self._closed = False
        # Least recently used first; the value is the map and when it was last asked for.
        self._pages: OrderedDict[tuple[Kind, int], tuple[mmap.mmap, float]] = OrderedDict()

    def map(self, kind: Kind, number: int) -> mmap.mmap:
        """Map the page, which may be unmapped again as soon as `lock` is free.

        The map is as long as the file, which in a damaged array may be shorter than a page.

        Raises:
            CorruptDataError: the file is missing or empty.
            QueueError: the system refused to map it.
            ClosedError: the pool is closed.
        """
        with self.lock:
            if self._closed:
                raise ClosedError(f"{self._layout.path} is closed; open it again")
            now_s = self._clock_s()
            self._unmap_expired(now_s)
            page = self._pages.get((kind, number))
            if page is None:
                while len(self._pages) >= self._max_pages:
                    self._unmap_oldest()
                mapped = self._map_file(kind, number)
            else:
                mapped = page[0]
            self._pages[kind, number] = (mapped, now_s)
            self._pages.move_to_end((kind, number))
            return mapped

    def allocate(self, kind: Kind, number: int) -> bool:
        """Make sure that the page has a file of full size with blocks of its own.

        Returns:
            True when the file is new or grew.

        Raises:
            QueueError: the disk is full or the system refused; nothing was changed.
        """
        file = self._layout.file(kind, number)
        with translated("allocate a page in", file):
            grew = preallocate(file, self._layout.size_bytes(kind))
        if grew:
            self.unmap(kind, number)  # a map of the shorter file would not see the rest
        return grew

    def unmap(self, kind: Kind, number: int) -> None:
        """Unmap the page if it is mapped."""
        with self.lock:
            page = self._pages.pop((kind, number), None)
            if page is not None:
                page[0].close()

    def close(self) -> None:
        """Unmap everything, for good."""
        with self.lock:
            self._closed = True
            while self._pages:
                self._unmap_oldest()

    def _map_file(self, kind: Kind, number: int) -> mmap.mmap:
        path = self._layout.file(kind, number)
        if not path.exists():
            raise CorruptDataError(f"{kind} page {path} is missing; restore it")
        mode = "r+b" if self._access == mmap.ACCESS_WRITE else "rb"
        try:
            with translated("map", path), path.open(mode) as file:
                return mmap.mmap(file.fileno(), 0, access=self._access)
        except ValueError as exc:  # an empty file cannot be mapped
            raise CorruptDataError(f"{kind} page {path} is empty; restore it") from exc

    def _unmap_expired(self, now_s: float) -> None:
        while self._pages:
            _, last_used_s = next(iter(self._pages.values()))
            if now_s - last_used_s < self._ttl_s:
                return
            self._unmap_oldest()

    def _unmap_oldest(self) -> None:
        _, (mapped, _) = self._pages.popitem(last=False)
        mapped.close()

    def __len__(self) -> int:
        return len(self._pages)

    def __repr__(self) -> str:
        return f"<PagePool {self._layout.path} [{len(self)} of {self._max_pages} pages mapped]>"
