"""Opening: find the last whole item, whatever the crash, and make the files agree with it.

Theory of operation. The control file holds three positions: `start`, `end` (published after each
append) and `synced` (everything below was flushed to the device). After a kill they are exact.
After a power loss, or when someone cut, zeroed or removed files, any of them may be stale, and any
item from `synced` on may be torn, because the kernel writes pages back in no particular order.
Each item carries a check over its bytes, timestamp and index, so the truth can be found:

1. From the checkpoint (`synced`) forward, up to the first item that is not whole. Items past the
   published end that are whole are kept: they were written, only their publication was lost.
   What follows the first that is not whole is cut off: it was never flushed.
2. What lies before the checkpoint was flushed and may have been handed out, so its indexes are
   never used again, whatever became of it: a damaged item keeps its index, and reading it raises.
   The checkpoint, the pages' entries and the caller's `least_end` each say how far that reaches;
   as they lie in different files, the loss of one file costs items but never moves the end back.
3. Entries after the new end are zeroed, so that they can never be mistaken for items later.
4. Everything is flushed, and then the new end becomes the checkpoint. After a flush that failed
   the device may hold items that were erased in memory, and lack what memory holds, so everything
   since the checkpoint is written and flushed once more: what opening found stays so.

What was not flushed becomes a prefix: nothing after a torn item survives it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from memq.bigqueue.cursor import Cursor, ItemEntry
from memq.bigqueue.files import sync_file, translated
from memq.bigqueue.layout import (
    CONTROL_FILE,
    DATA,
    DOUBT,
    END,
    ENTRY_BYTES,
    INDEX,
    START,
    START_COPY,
    SYNCED,
    Kind,
    Layout,
)
from memq.bigqueue.tail import TailPosition
from memq.errors import CorruptDataError
from memq.runtime.files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.bigqueue.files import Words
    from memq.bigqueue.pool import PagePool

# With sync="none" the checkpoint may be arbitrarily far back. The kernel writes dirty pages back
# within about half a minute, so older ones are on disk; these bounds keep opening to seconds.
# An item before them is verified when it is read, like any other.
MAX_SCAN_PAGES = 8
MAX_SCAN_ITEMS = 4 << 20
# Verified in one go, then forgotten: bounds the memory that opening takes.
SCAN_BYTES = 4 << 20
# An end above this is no count of items but damage; it also keeps ranges within a C integer.
MAX_INDEX = 1 << 62

_log = logging.getLogger("memq.bigqueue")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found to repair. Nothing, after a clean close.

    Attributes:
        items_dropped: items that had been published, never flushed, and are gone.
        bytes_dropped: their bytes, as far as their index entries could still be read.
        items_damaged: flushed items at the end that are damaged; they keep their indexes.
        items_adopted: whole items that had been written but not published.
        reason: what was found, in words; empty when nothing was.
    """

    items_dropped: int = 0
    bytes_dropped: int = 0
    items_damaged: int = 0
    items_adopted: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Extent:
    """The positions of the control file, as far as they can be believed."""

    start: int
    end: int
    synced: int
    reason: str = ""

    @property
    def floor(self) -> int:
        """Indexes below it may have been handed out: the end is never lower."""
        return max(self.start, self.synced)


class _Scanner:
    """Judges items while an array is opened.

    Attributes:
        pages: numbers of the data pages that have a file, ascending.
        indexes: the same for index pages.
        above: the first index for which no index page exists.
        items: entries in an index page.
    """

    def __init__(self, layout: Layout, pool: PagePool) -> None:
        self._cursor = Cursor(layout, pool)
        self.items = layout.index_page_items
        self.pages = layout.numbers(DATA)
        self.indexes = layout.numbers(INDEX)
        self.above = (self.indexes[-1] + 1) * self.items if self.indexes else 0
        self._page_set = set(self.pages)
        self._index_set = set(self.indexes)

    def entry(self, index: int) -> ItemEntry | None:
        """Read the entry at `index`; None when there is none: zeros, or no file."""
        if index < 0 or index // self.items not in self._index_set:
            return None
        try:
            entry = self._cursor.entry(index)
        except CorruptDataError:
            return None
        return entry if any(entry) else None

    def entries_end(self) -> int:
        """Return one past the last entry of the last index page; its first when it holds none."""
        last_page = range(self.above - self.items, self.above)
        found = (index for index in reversed(last_page) if self.entry(index) is not None)
        return next(found, last_page.start - 1) + 1

    def page_of(self, index: int) -> int:
        """Return the data page of the item, -1 when its entry cannot be read."""
        entry = self.entry(index)
        return -1 if entry is None else entry.page

    def count_whole(self, start: int, stop: int) -> int:
        """Count the next items that were found whole in one go; 0 leaves it to `flaw`."""
        try:
            return len(self._cursor.read_many(start, stop, SCAN_BYTES))
        except CorruptDataError:
            return 0

    def flaw(self, index: int) -> str:
        """Say what is wrong with the item at `index`; empty when it is whole."""
        entry = self.entry(index)
        if entry is None:
            return f"item {index} has no index entry"
        if entry.page not in self._page_set:
            return f"item {index} is damaged: its data page {entry.page} is missing"
        try:
            self._cursor.read(index)
        except CorruptDataError as exc:
            return str(exc)
        return ""


def recover(
    layout: Layout, pool: PagePool, control: Words, least_end: int = 0
) -> tuple[TailPosition, Recovery]:
    """Repair the array at `layout` and say where its next item goes, and what was lost.

    Args:
        layout: of the array.
        pool: maps its pages.
        control: its positions.
        least_end: indexes below it are known to have been handed out.

    Raises:
        QueueError: the repaired files could not be written or flushed.
    """
    scanner = _Scanner(layout, pool)
    extent = _read_extent(scanner, control, least_end)
    end, flaw = _find_end(scanner, extent)
    whole = _last_whole(scanner, extent, end)
    if whole < end:
        flaw = scanner.flaw(whole)
    recovery = Recovery(
        items_dropped=max(0, extent.end - end),
        bytes_dropped=_bytes_between(scanner, end, extent.end),
        items_damaged=end - whole,
        items_adopted=max(0, end - extent.end),
        reason="; ".join(filter(None, (extent.reason, flaw if whole < extent.end else ""))),
    )
    doubt = control.cells[DOUBT]
    erased = _erase_from(layout, pool, scanner, end)
    if erased or doubt or extent != _Extent(extent.start, end, end):
        control.cells[DOUBT] = 1  # should this fail, the next opening does all of it again
        if doubt:
            _rewrite(pool, _unflushed(scanner, extent))
        _flush_pages(layout, _unflushed(scanner, extent))
        control.format(extent.start, end, end, extent.start, 0)
        with translated("flush", layout.path):  # last: below the checkpoint all is on the device
            sync_file(layout.path / CONTROL_FILE)
    if recovery != Recovery():
        _log.warning(
            "%s opened with end %d: %d items (%d bytes) dropped, %d damaged ones and %d "
            "unpublished ones kept; %s",
            layout.path,
            end,
            recovery.items_dropped,
            recovery.bytes_dropped,
            recovery.items_damaged,
            recovery.items_adopted,
            recovery.reason or "writing had been cut off",
        )
    return _position(scanner, whole, end), recovery


def _read_extent(scanner: _Scanner, control: Words, least_end: int) -> _Extent:
    """Read the published positions, or what the page files say when the control file is damaged."""
    start, end, synced = control.cells[START], control.cells[END], control.cells[SYNCED]
    believable = start == control.cells[START_COPY] and start <= end and synced <= end < MAX_INDEX
    if not (control.formatted and believable):
        extent = _rebuilt_extent(scanner)
    else:
        extent = _Extent(start, end, synced)
    if least_end <= extent.end:
        return replace(extent, synced=max(extent.synced, least_end))
    known = f"{least_end} indexes are known to have been handed out, {extent.end} are here"
    reason = "; ".join(filter(None, (extent.reason, known)))
    return _Extent(extent.start, least_end, least_end, reason)


def _rebuilt_extent(scanner: _Scanner) -> _Extent:
    """Rebuild the positions from the pages; any item that has an entry may have been flushed."""
    reason = "the control file was damaged and is rebuilt from the pages"
    if not scanner.indexes:
        return _Extent(0, 0, 0, reason)
    # Entries are written in order, and whole pages are deleted from the front.
    lowest = scanner.indexes[0] * scanner.items
    end = scanner.entries_end()
    first_page = scanner.pages[0] if scanner.pages else 0
    start = lowest + bisect_left(range(lowest, end), first_page, key=scanner.page_of)
    return _Extent(start, end, end, reason)


def _find_end(scanner: _Scanner, extent: _Extent) -> tuple[int, str]:
    """Find the end of the longest prefix that is whole from the floor on, and what ends it."""
    first = end = _scan_start(scanner, extent)
    while whole := scanner.count_whole(end, extent.end):
        end += whole
    while not (flaw := scanner.flaw(end)):
        end += 1
    if end == first:
        while end > extent.floor and (earlier := scanner.flaw(end - 1)):
            flaw = earlier
            end -= 1
    return end, flaw


def _scan_start(scanner: _Scanner, extent: _Extent) -> int:
    """Return where to scan from: the checkpoint, or a later item when that is too far back."""
    end = min(extent.end, scanner.above)
    first = max(extent.floor, end - MAX_SCAN_ITEMS)
    page = scanner.page_of(end - 1) - MAX_SCAN_PAGES + 1
    return first + bisect_left(range(first, end), page, key=scanner.page_of)


def _last_whole(scanner: _Scanner, extent: _Extent, end: int) -> int:
    """Return one past the last whole item; below `end` when the last flushed ones are damaged."""
    if end == extent.floor:
        while end > extent.start and scanner.flaw(end - 1):
            end -= 1
    return end


def _bytes_between(scanner: _Scanner, start: int, stop: int) -> int:
    """Count the bytes of the items `[start, stop)`, up to the first entry that cannot be read."""
    entries = map(scanner.entry, range(start, stop))
    return sum(entry.length for entry in takewhile(lambda e: e is not None, entries) if entry)


def _erase_from(layout: Layout, pool: PagePool, scanner: _Scanner, end: int) -> bool:
    """Zero all entries from `end` on; True when there were any."""
    number, slot = divmod(end, layout.index_page_items)
    erased = False
    for later in (n for n in scanner.indexes if n >= number):
        pool.allocate(INDEX, later)
        place = slice(slot * ENTRY_BYTES if later == number else 0, layout.size_bytes(INDEX))
        zeros = bytes(place.stop - place.start)
        with pool.lock:
            mapped = pool.map(INDEX, later)
            if mapped[place] != zeros:
                mapped[place] = zeros
                erased = True
    return erased


def _unflushed(scanner: _Scanner, extent: _Extent) -> list[tuple[Kind, int]]:
    """List every page that may hold anything written since the checkpoint, data before index."""
    last_synced = extent.synced - 1
    first_page = scanner.page_of(last_synced)
    pages: list[tuple[Kind, int]] = [(DATA, n) for n in scanner.pages if n >= first_page]
    first_index = last_synced // scanner.items
    return pages + [(INDEX, n) for n in scanner.indexes if n >= first_index]


def _rewrite(pool: PagePool, pages: Iterable[tuple[Kind, int]]) -> None:
    """Write what the pages hold once more.

    After a flush that failed the kernel takes them for written, and would not write them again.
    """
    for kind, number in pages:
        pool.allocate(kind, number)
        with pool.lock:
            mapped = pool.map(kind, number)
            mapped[:] = mapped[:]


def _flush_pages(layout: Layout, pages: Iterable[tuple[Kind, int]]) -> None:
    """Make the pages and their names durable."""
    with translated("flush", layout.path):
        for kind, number in pages:
            sync_file(layout.file(kind, number))
        sync_folder(layout.path / DATA)
        sync_folder(layout.path / INDEX)


def _position(scanner: _Scanner, whole: int, end: int) -> TailPosition:
    """Return where item `end` goes: after the item before it, or on a data page never used before.

    The items `[whole, end)` are damaged; the pages that their entries name stay theirs.
    """
    entry = scanner.entry(whole - 1)
    if entry is None or scanner.flaw(whole - 1):
        entry = None
    elif whole == end:
        return TailPosition(end, entry.page, entry.offset + entry.length, entry.timestamp_ms)
    used = scanner.pages[-1] if scanner.pages else -1
    # An item begins one page at most; a number beyond that is damage itself.
    furthest = used + end - whole
    for damaged in map(scanner.entry, range(whole, end)):
        if damaged is not None and used < damaged.page <= furthest:
            used = damaged.page
    return TailPosition(end, used + 1, 0, 0 if entry is None else entry.timestamp_ms)
