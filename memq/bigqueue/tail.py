"""Writing: where the next item goes, and the page files that were written: flushing, deleting.

An item is copied into the current data page, then its entry into the current index page; it
becomes visible when the array publishes the new end. Nothing here publishes. Blocks are claimed
before anything is written, so a full disk leaves the tail where it was.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memq.bigqueue.files import sync_file
from memq.bigqueue.layout import (
    CONTROL_FILE,
    DATA,
    ENTRY,
    ENTRY_BYTES,
    ENTRY_WORDS,
    INDEX,
    MAX_TIMESTAMP_MS,
    Kind,
    Layout,
    seed_of,
)
from memq.core.checksum import crc32c
from memq.errors import InvalidRequestError, MessageTooLargeError
from memq.runtime.files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.bigqueue.pool import PagePool

BytesLike = bytes | bytearray | memoryview

# Small items are joined into pieces of about this size before they are copied into the map: one
# copy more, but in the CPU's cache, and one Python step a piece instead of one an item.
JOIN_BYTES = 64 << 10

_pack_into = ENTRY.pack_into


@dataclass(frozen=True, slots=True)
class TailPosition:
    """Where the next item goes: its index, and the place after the last item."""

    index: int
    page: int
    offset: int
    timestamp_ms: int


class PageRun(NamedTuple):
    """Neighbours of a batch that share a data page: `items[first:stop]` from `offset` on."""

    page: int
    offset: int
    first: int
    stop: int


class Tail:
    """The end of one array, where items are written. Not thread-safe: the array locks.

    Attributes:
        index: the index that the next item gets.
        page: the data page being filled.
        grew: a page file was made or enlarged since the array last cleared this; so at first, for
            who made the pages that are there may have died before their names were durable.
    """

    def __init__(self, layout: Layout, pool: PagePool, position: TailPosition) -> None:
        self._layout = layout
        self._pool = pool
        self._items = layout.index_page_items
        self._index_bytes = layout.size_bytes(INDEX)
        self.index, self.page = position.index, position.page
        self._offset, self._timestamp_ms = position.offset, position.timestamp_ms
        self._check_seed = seed_of(position.timestamp_ms)
        self.grew = True
        # The last page of each kind that is known to have all its blocks.
        self._claimed: dict[Kind, int] = {
            DATA: self.page - 1,
            INDEX: self.index // self._items - 1,
        }
        # No pages are mapped yet: the first item finds no room, and that maps them.
        self._room = -1
        self._base = 0

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of the last item; 0 when it is not known."""
        return self._timestamp_ms

    def put(self, data: BytesLike, timestamp_ms: int) -> None:
        """Write one item at `index`, unpublished.

        Raises:
            MessageTooLargeError: it is longer than a data page.
            QueueError: there is no room on the disk for another page; nothing was changed.
        """
        if timestamp_ms > self._timestamp_ms:
            self._stamp(timestamp_ms)
        length = len(data)
        index = self.index
        place = (index - self._base) * ENTRY_BYTES
        if self._offset + length > self._room or place >= self._index_bytes:
            self._make_room(length)
            place = (index - self._base) * ENTRY_BYTES
        offset = self._offset
        check = crc32c(data, self._check_seed + index)
        try:
            self._data[offset : offset + length] = data
            _pack_into(self._index, place, self.page, offset, length, check, self._timestamp_ms)
        except (ValueError, TypeError):
            # The pool has unmapped a page meanwhile: mmap says ValueError, pack_into TypeError.
            with self._pool.lock:
                self._map()
                self._data[offset : offset + length] = data
                _pack_into(self._index, place, self.page, offset, length, check, self._timestamp_ms)
        self._offset = offset + length
        self.index = index + 1

    def put_many(self, items: Sequence[BytesLike], timestamp_ms: int) -> None:
        """Write the items from `index` on, unpublished: all of them or, on an error, none.

        Raises:
            MessageTooLargeError, QueueError: as `put`.
        """
        lengths = list(map(len, items))
        self._check_length(max(lengths))
        if timestamp_ms > self._timestamp_ms:
            self._stamp(timestamp_ms)
        runs = plan_runs(lengths, self.page, self._offset, self._layout.page_bytes)
        stop = self.index + len(items)
        last = runs[-1]
        self._claim(last.page, stop - 1)
        for run in runs:
            self._write_run(items, lengths, run)
        entries = self._entries(items, lengths, runs)
        try:
            self._write_entries(entries, stop)
        except BaseException:
            self.erase(self.index, stop)
            raise
        self._offset = last.offset + sum(lengths[last.first : last.stop])
        self.page = last.page
        self.index = stop
        self._room = -1  # the next single item maps its pages again

    def erase(self, start: int, stop: int) -> None:
        """Zero the entries `[start, stop)`, so that no recovery takes them for appended items."""
        while start < stop:
            number, slot = divmod(start, self._items)
            count = min(stop - start, self._items - slot)
            with self._pool.lock:
                mapped = self._pool.map(INDEX, number)
                place = slice(slot * ENTRY_BYTES, (slot + count) * ENTRY_BYTES)
                mapped[place] = bytes(count * ENTRY_BYTES)
            start += count

    def _make_room(self, length: int) -> None:
        """Move on to the pages that the next item of `length` bytes goes to."""
        self._check_length(length)
        fits = self._offset + length <= self._layout.page_bytes
        page = self.page if fits else self.page + 1
        self._claim(page, self.index)
        # Until both pages are mapped there is no room: an error or an interrupt on the way must
        # not leave the tail with the map of another page.
        self._room = -1
        if not fits:
            self.page, self._offset = page, 0
        with self._pool.lock:
            self._map()

    def _map(self) -> None:
        number = self.index // self._items
        self._data = self._pool.map(DATA, self.page)
        self._index = self._pool.map(INDEX, number)
        self._base = number * self._items
        self._room = self._layout.page_bytes

    def _claim(self, page: int, index: int) -> None:
        """Have all blocks for data up to `page` and for entries up to `index`."""
        for kind, last in ((DATA, page), (INDEX, index // self._items)):
            for number in range(self._claimed[kind] + 1, last + 1):
                self.grew |= self._pool.allocate(kind, number)
                self._claimed[kind] = number

    def _stamp(self, timestamp_ms: int) -> None:
        if timestamp_ms > MAX_TIMESTAMP_MS:
            raise InvalidRequestError(
                f"timestamp_ms={timestamp_ms} does not fit 63 bits; give milliseconds since 1970"
            )
        self._timestamp_ms = timestamp_ms
        self._check_seed = seed_of(timestamp_ms)

    def _check_length(self, length: int) -> None:
        if length > self._layout.page_bytes:
            raise MessageTooLargeError(
                f"an item of {length} bytes does not fit a page of {self._layout.page_bytes} "
                "bytes; split it, or make a new array with a larger page_bytes"
            )

    def _write_run(self, items: Sequence[BytesLike], lengths: list[int], run: PageRun) -> None:
        total_bytes = sum(lengths[run.first : run.stop])
        step = max(1, JOIN_BYTES * (run.stop - run.first) // max(1, total_bytes))
        offset = run.offset
        for first in range(run.first, run.stop, step):
            piece = b"".join(items[first : min(first + step, run.stop)])
            with self._pool.lock:
                data = self._pool.map(DATA, run.page)
                data[offset : offset + len(piece)] = piece
            offset += len(piece)

    def _entries(
        self, items: Sequence[BytesLike], lengths: list[int], runs: list[PageRun]
    ) -> bytes:
        """Build the index entries of a batch, column by column."""
        count = len(items)
        seed = self._check_seed + self.index
        low, high = self._timestamp_ms & 0xFFFFFFFF, self._timestamp_ms >> 32
        pages, offsets = array("I"), array("I")
        for run in runs:
            places = accumulate(lengths[run.first : run.stop], initial=run.offset)
            pages.extend(array("I", [run.page]) * (run.stop - run.first))
            offsets.extend(array("I", list(places)[:-1]))
        words = array("I", bytes(count * ENTRY_BYTES))
        words[0::ENTRY_WORDS] = pages
        words[1::ENTRY_WORDS] = offsets
        words[2::ENTRY_WORDS] = array("I", lengths)
        words[3::ENTRY_WORDS] = array("I", list(map(crc32c, items, range(seed, seed + count))))
        words[4::ENTRY_WORDS] = array("I", [low]) * count
        words[5::ENTRY_WORDS] = array("I", [high]) * count
        return words.tobytes()

    def _write_entries(self, entries: bytes, stop: int) -> None:
        index, done = self.index, 0
        while index < stop:
            number, slot = divmod(index, self._items)
            count = min(stop - index, self._items - slot)
            piece = entries[done : done + count * ENTRY_BYTES]
            with self._pool.lock:
                mapped = self._pool.map(INDEX, number)
                mapped[slot * ENTRY_BYTES : (slot + count) * ENTRY_BYTES] = piece
            index += count
            done += len(piece)


def flat(data: BytesLike) -> BytesLike:
    """Return the item as plain bytes to copy from, so that its length is its number of bytes.

    Raises:
        InvalidRequestError: it is not bytes-like, or not contiguous.
    """
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError, BufferError) as exc:
        raise InvalidRequestError(
            f"an item is {type(data).__name__}, not contiguous bytes ({exc}); "
            "give bytes, a bytearray or a contiguous memoryview"
        ) from exc


def plan_runs(lengths: Sequence[int], page: int, offset: int, page_bytes: int) -> list[PageRun]:
    """Cut a batch at the data pages it fills, starting at `offset` of `page`.

    An item never spans pages, so each run takes what fits and the next starts on a fresh page.
    Every length must be at most `page_bytes`.
    """
    ends = list(accumulate(lengths))
    runs: list[PageRun] = []
    first = 0
    while first < len(lengths):
        start_bytes = ends[first - 1] if first else 0
        stop = bisect_right(ends, start_bytes + page_bytes - offset, lo=first)
        if stop > first:
            runs.append(PageRun(page, offset, first, stop))
            first = stop
        page, offset = page + 1, 0
    return runs


KINDS: tuple[Kind, ...] = (DATA, INDEX)


class PageFiles:
    """Knows the first page of each kind that exists, and the first that may be unflushed.

    Not thread-safe: the array calls it under its lock for files. Methods raise `OSError`.
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
                sync_folder(self._layout.path / kind)
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
