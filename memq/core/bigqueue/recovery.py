"""Opening: find the last whole item, whatever the crash, and make the files agree with it.

Theory of operation. The control file holds three positions: `start`, `end` (published after each
append) and `synced` (everything below was flushed to the device). After a kill they are exact.
After a power loss, or when someone cut, zeroed or removed files, any of them may be stale, and any
item from `synced` on may be torn, because the kernel writes pages back in no particular order.
Each item carries a check over its bytes, timestamp and index, so the truth can be found:

1. From the checkpoint (`synced`) forward, up to the first item that is not whole. Items past the
   published end that are whole are kept: they were written, only their publication was lost.
2. When nothing whole follows the checkpoint, backward from it, to the last item that is whole.
   This only happens when flushed data was damaged.
3. Entries after the new end are zeroed, so that they can never be mistaken for items later.
4. Everything is flushed and the new end becomes the checkpoint.

The result is a prefix: nothing after a torn item survives it. Damage before the checkpoint is
left in place, because the items after it are good; reading a damaged item raises.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from memq.core.bigqueue.cursor import Cursor, Entry
from memq.core.bigqueue.files import failure, sync_directory, sync_file
from memq.core.bigqueue.layout import (
    CONTROL_FILE,
    DATA,
    END,
    ENTRY_BYTES,
    INDEX,
    START,
    START_COPY,
    SYNCED,
    Layout,
)
from memq.core.bigqueue.tail import Position
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from memq.core.bigqueue.pool import PagePool
    from memq.core.bigqueue.words import Words

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
        items_dropped: items that had been published and are gone.
        bytes_dropped: their bytes, as far as their index entries could still be read.
        items_adopted: whole items that had been written but not published.
        reason: what was found, in words; empty when nothing was.
    """

    items_dropped: int = 0
    bytes_dropped: int = 0
    items_adopted: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Extent:
    """The positions of the control file, as far as they can be believed."""

    start: int
    end: int
    synced: int
    reason: str = ""


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

    def entry(self, index: int) -> Entry | None:
        """The entry at `index`, or None when there is none: zeros, or no file."""
        if index < 0 or index // self.items not in self._index_set:
            return None
        try:
            entry = self._cursor.entry(index)
        except CorruptDataError:
            return None
        return entry if any(entry) else None

    def page_of(self, index: int) -> int:
        """The data page of the item, -1 when its entry cannot be read."""
        entry = self.entry(index)
        return -1 if entry is None else entry.page

    def count_whole(self, start: int, stop: int) -> int:
        """How many of the next items were found whole in one go; 0 leaves it to `flaw`."""
        try:
            return len(self._cursor.read_many(start, stop, SCAN_BYTES))
        except CorruptDataError:
            return 0

    def flaw(self, index: int) -> str:
        """What is wrong with the item at `index`; empty when it is whole."""
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


def recover(layout: Layout, pool: PagePool, control: Words) -> tuple[Position, Recovery]:
    """Repair the array at `layout` and say where its next item goes, and what was lost.

    Raises:
        QueueError: the repaired files could not be written or flushed.
    """
    scanner = _Scanner(layout, pool)
    extent = _read_extent(scanner, control)
    end, flaw = _find_end(scanner, extent)
    recovery = Recovery(
        items_dropped=max(0, extent.end - end),
        bytes_dropped=_bytes_between(scanner, end, extent.end),
        items_adopted=max(0, end - extent.end),
        reason="; ".join(filter(None, (extent.reason, flaw if end < extent.end else ""))),
    )
    erased = _erase_from(layout, pool, scanner, end)
    if erased or extent != _Extent(extent.start, end, end):
        control.format(extent.start, end, end, extent.start)
        _flush(layout, scanner, extent)
    if recovery != Recovery():
        _log.warning(
            "%s opened with end %d: %d items (%d bytes) dropped, %d unpublished items kept; %s",
            layout.path,
            end,
            recovery.items_dropped,
            recovery.bytes_dropped,
            recovery.items_adopted,
            recovery.reason or "writing had been cut off",
        )
    return _position(scanner, end), recovery


def _read_extent(scanner: _Scanner, control: Words) -> _Extent:
    """The published positions, or what the page files say when the control file is damaged."""
    start, end, synced = control.cells[START], control.cells[END], control.cells[SYNCED]
    believable = start == control.cells[START_COPY] and start <= end and synced <= end < MAX_INDEX
    if control.formatted and believable:
        return _Extent(start, end, synced)
    reason = "the control file was damaged and is rebuilt from the pages"
    if not scanner.indexes:
        return _Extent(0, 0, 0, reason)
    # Entries are written in order, and whole pages are deleted from the front.
    lowest = scanner.indexes[0] * scanner.items
    last_page = range(scanner.above - scanner.items, scanner.above)
    end = last_page[0] + bisect_left(last_page, x=True, key=lambda i: scanner.entry(i) is None)
    first_page = scanner.pages[0] if scanner.pages else 0
    start = lowest + bisect_left(range(lowest, end), first_page, key=scanner.page_of)
    return _Extent(start, end, start, reason)


def _find_end(scanner: _Scanner, extent: _Extent) -> tuple[int, str]:
    """The end of the longest whole prefix, and what is wrong with the item there."""
    first = end = _scan_start(scanner, extent)
    while whole := scanner.count_whole(end, extent.end):
        end += whole
    while not (flaw := scanner.flaw(end)):
        end += 1
    if end == first:
        while end > extent.start and (earlier := scanner.flaw(end - 1)):
            flaw = earlier
            end -= 1
    return end, flaw


def _scan_start(scanner: _Scanner, extent: _Extent) -> int:
    """The checkpoint, or a later item when that is too far back."""
    end = max(extent.start, min(extent.end, scanner.above))
    first = max(extent.start, min(extent.synced, end), end - MAX_SCAN_ITEMS)
    page = scanner.page_of(end - 1) - MAX_SCAN_PAGES + 1
    return first + bisect_left(range(first, end), page, key=scanner.page_of)


def _bytes_between(scanner: _Scanner, start: int, stop: int) -> int:
    """The bytes of the items `[start, stop)`, up to the first entry that cannot be read."""
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


def _flush(layout: Layout, scanner: _Scanner, extent: _Extent) -> None:
    """Make durable every page that may hold anything written since the checkpoint."""
    last_synced = extent.synced - 1
    first_page = scanner.page_of(last_synced)
    files = [layout.file(DATA, n) for n in scanner.pages if n >= first_page]
    files += [layout.file(INDEX, n) for n in scanner.indexes if n >= last_synced // scanner.items]
    try:
        for file in (*files, layout.path / CONTROL_FILE):
            sync_file(file)
        sync_directory(layout.path / DATA)
        sync_directory(layout.path / INDEX)
    except OSError as exc:
        raise failure("flush", layout.path, exc) from exc


def _position(scanner: _Scanner, end: int) -> Position:
    """Where item `end` goes: after the item before it, or on a data page never used before."""
    entry = scanner.entry(end - 1)
    if entry is not None and not scanner.flaw(end - 1):
        return Position(end, entry.page, entry.offset + entry.length, entry.timestamp_ms)
    return Position(end, scanner.pages[-1] + 1 if scanner.pages else 0, 0, 0)
