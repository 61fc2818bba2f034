"""Reading: from an index to its verified bytes.

A cursor keeps the index page and the data page it read last, so the next item costs one look-up in
the index, one copy out of the map and one CRC32C. Everything unusual (another page, a page that
the pool has unmapped, damage) ends in `_read_mapped`, which repeats the read with the pool locked
and has the last word.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memq.bigqueue.layout import DATA, ENTRY, ENTRY_BYTES, ENTRY_WORDS, INDEX, Kind, Layout, seed_of
from memq.core.checksum import crc32c
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable

    from memq.bigqueue.pool import PagePool

# Entries looked at in one go by a batch read: bounds the work done with the pool locked.
READ_CHUNK_ITEMS = 4096

_unpack_from = ENTRY.unpack_from


class ItemEntry(NamedTuple):
    """One index entry, in the order it has on disk."""

    page: int
    offset: int
    length: int
    check: int
    timestamp_ms: int


class Cursor:
    """Reads the items of one array. Not thread-safe: its owner holds a lock of its own.

    It does not know where the array starts and ends; the caller checks the range.

    Attributes:
        moves: counts page look-ups, so it has changed whenever the cursor entered another page.
    """

    def __init__(self, layout: Layout, pool: PagePool) -> None:
        self._layout = layout
        self._pool = pool
        self._items = layout.index_page_items
        # No index is within a page of this base, so that the first read looks its page up.
        self._base = -self._items
        self._page = -1
        self._timestamp_ms = 0
        self._check_seed = seed_of(0)
        self.moves = 0

    def read(self, index: int) -> bytes:
        """Read the item at `index`.

        Raises:
            CorruptDataError: the item, its entry or one of its page files is damaged.
        """
        slot = index - self._base
        if not 0 <= slot < self._items:
            return self._read_mapped(index)
        try:
            page, offset, length, check, timestamp_ms = _unpack_from(
                self._index, slot * ENTRY_BYTES
            )
            if page != self._page:
                return self._read_mapped(index)
            data = self._data[offset : offset + length]
        except (ValueError, struct.error):  # unmapped by the pool, or a short file
            return self._read_mapped(index)
        if timestamp_ms != self._timestamp_ms:
            self._timestamp_ms = timestamp_ms
            self._check_seed = seed_of(timestamp_ms)
        if crc32c(data, self._check_seed + index) != check:
            return self._read_mapped(index)
        return data

    def read_many(self, start: int, stop: int, max_bytes: int | None = None) -> list[bytes]:
        """Read the items `[start, stop)`, or as many of the first as fit `max_bytes`, but at least
        one.

        Raises:
            CorruptDataError: as `read`, for the first damaged item among them.
        """
        found: list[bytes] = []
        budget_bytes = max_bytes
        while start < stop:
            chunk_stop = min(stop, start + READ_CHUNK_ITEMS, self._page_end(start))
            chunk = self._read_chunk(start, chunk_stop, budget_bytes, at_least=0 if found else 1)
            found += chunk
            if budget_bytes is not None:
                budget_bytes -= sum(map(len, chunk))
            start += len(chunk)
            if start < chunk_stop:
                break
        return found

    def entry(self, index: int) -> ItemEntry:
        """Read the index entry, unverified.

        Raises:
            CorruptDataError: its index page is missing or too short.
        """
        with self._pool.lock:
            number, slot = divmod(index, self._items)
            mapped = self._map(INDEX, number, index)
            try:
                return ItemEntry(*_unpack_from(mapped, slot * ENTRY_BYTES))
            except struct.error as exc:
                raise self._damage(INDEX, number, index, "is too short") from exc

    def _read_mapped(self, index: int) -> bytes:
        number = index // self._items
        with self._pool.lock:
            entry = self.entry(index)
            if not any(entry):
                raise self._damage(INDEX, number, index, "has no entry for it")
            self._index = self._map(INDEX, number, index)
            self._base = number * self._items
            self._data = self._map(DATA, entry.page, index)
            self._page = entry.page
            self.moves += 1
            data = self._data[entry.offset : entry.offset + entry.length]
        if len(data) != entry.length:
            raise self._damage(DATA, entry.page, index, f"ends before its {entry.length} bytes do")
        if crc32c(data, seed_of(entry.timestamp_ms) + index) != entry.check:
            raise self._damage(DATA, entry.page, index, "does not match its CRC32C")
        return data

    def _read_chunk(
        self, start: int, stop: int, budget_bytes: int | None, *, at_least: int
    ) -> list[bytes]:
        """Verified items `[start, stop)` of one index page, cut to the budget."""
        with self._pool.lock:
            words = self._entry_words(start, stop)
            lengths = words[2::ENTRY_WORDS].tolist()
            if budget_bytes is not None:
                fit = bisect_right(list(accumulate(lengths)), budget_bytes)
                lengths = lengths[: max(at_least, fit)]
            pages = words[0::ENTRY_WORDS].tolist()[: len(lengths)]
            items = self._copy_out(start, pages, words[1::ENTRY_WORDS].tolist(), lengths)
        stamps = words.cast("B").cast("q")[2 :: ENTRY_BYTES // 8].tolist()
        checks = words[3::ENTRY_WORDS].tolist()[: len(items)]
        if list(map(crc32c, items, _seeds(stamps, start))) != checks:
            # One at a time finds the damaged one, and raises for it.
            return [self.read(index) for index in range(start, start + len(items))]
        return items

    def _entry_words(self, start: int, stop: int) -> memoryview[int]:
        number, slot = divmod(start, self._items)
        mapped = self._map(INDEX, number, start)
        blob = mapped[slot * ENTRY_BYTES : (slot + stop - start) * ENTRY_BYTES]
        if len(blob) != (stop - start) * ENTRY_BYTES:
            raise self._damage(INDEX, number, start, "is too short")
        return memoryview(blob).cast("I")

    def _copy_out(
        self, start: int, pages: list[int], offsets: list[int], lengths: list[int]
    ) -> list[bytes]:
        items: list[bytes] = []
        while len(items) < len(pages):
            first = len(items)
            page = pages[first]
            stop = len(pages) if pages[-1] == page else bisect_right(pages, page, lo=first)
            data = self._map(DATA, page, start + first)
            places = zip(offsets[first:stop], lengths[first:stop], strict=True)
            items += [data[offset : offset + length] for offset, length in places]
        self.moves += 1
        return items

    def _page_end(self, index: int) -> int:
        return (index // self._items + 1) * self._items

    def _map(self, kind: Kind, number: int, index: int) -> mmap.mmap:
        """Map the page that item `index` needs."""
        try:
            return self._pool.map(kind, number)
        except CorruptDataError as exc:
            raise CorruptDataError(f"item {index} is damaged: {exc}, or move past it") from exc

    def _damage(self, kind: Kind, number: int, index: int, what: str) -> CorruptDataError:
        # A writer may repair or replace the files; do not go on looking at the old ones.
        self._pool.unmap(INDEX, index // self._items)
        self._pool.unmap(kind, number)
        return CorruptDataError(
            f"item {index} is damaged: {self._layout.file(kind, number)} {what}; "
            "restore the file, or move past the item"
        )


def _seeds(stamps: list[int], start: int) -> Iterable[int]:
    """Return where the check of each item starts. Timestamps are in order and mostly the same."""
    count = len(stamps)
    if stamps[0] == stamps[-1]:
        seed = seed_of(stamps[0]) + start
        return range(seed, seed + count)
    seeds = {stamp: seed_of(stamp) for stamp in set(stamps)}
    return [seeds[stamp] + start + place for place, stamp in enumerate(stamps)]
