"""The big array: append-only, numbered from 0, on memory-mapped pages, truncated from the front.

Theory of operation. An append copies the item into the data page, then its entry into the index
page, and only then stores the new `end` into the control file, with one aligned 8-byte store.
A reader that reads `end` first, in any process, therefore finds every item below it. Readers
take no lock against the writer. Truncation stores and flushes the new `start` before it deletes
page files, so a missing page is never mistaken for one that was truncated away.

Locks, in the order in which they nest: the append lock (writing at the tail), the files lock
(flushing and deleting, which take milliseconds and must not stop appends that flush nothing), the
pool's. Reads by index have a lock of their own, because they share a cursor.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypedDict, TypeVar, get_args

from memq.bigqueue.cursor import Cursor
from memq.bigqueue.files import Words, sync_file, translated
from memq.bigqueue.layout import (
    CONTROL_FILE,
    CONTROL_MAGIC,
    DATA,
    DOUBT,
    END,
    INDEX,
    START,
    START_COPY,
    SYNCED,
    Kind,
    check_exists,
    claim_folder,
    load_layout,
    load_or_make_layout,
    seed_of,
)
from memq.bigqueue.pool import DEFAULT_MAX_MAPPED_PAGES, DEFAULT_PAGE_TTL_S, PagePool
from memq.bigqueue.recovery import Recovery, recover
from memq.bigqueue.tail import BytesLike, PageFiles, Tail, flat
from memq.bigqueue.turn import Turn
from memq.core.checksum import crc32c
from memq.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueFailedError,
)
from memq.runtime.files import sync_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

_Result = TypeVar("_Result")
_log = logging.getLogger("memq.bigqueue")

Sync = Literal["none", "batch", "each"]


class ArrayOptions(TypedDict, total=False):
    """The keyword arguments of `BigArray`, which describes them."""

    page_bytes: int | None
    index_page_items: int | None
    sync: Sync
    max_mapped_pages: int
    page_ttl_s: float
    read_only: bool
    create: bool
    first: int
    least_end: int
    clock_ms: Callable[[], int]
    clock_s: Callable[[], float]


def wall_clock_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


class BigArray:
    """A persistent array of byte strings with indexes `[start, end)` that are never used again.

    One process writes; any number of others may open it with `read_only=True` meanwhile. All
    methods are thread-safe.

    Args:
        path: folder of the array; made when it does not exist.
        page_bytes: size of a data page, which is also the longest item; None is the recorded
            size, or 64 MiB for a new array.
        index_page_items: entries in an index page; None as for `page_bytes`, or 262,144.
        sync: what is flushed to the device before a call returns: with "none" nothing (the kernel
            does it in time), with "batch" what `append_many` wrote, with "each" every append.
            `sync()` and `close()` always flush. A killed process loses nothing in any of them.
        max_mapped_pages: how many page files may be mapped at once.
        page_ttl_s: unmap pages not looked up for so long.
        read_only: follow a writer in another process: no lock, no repair, no writing.
        create: make the array when there is none; otherwise its absence is an error.
        first: index of the first item of an array that is made.
        least_end: indexes below it are known to have been handed out; should the files hold fewer
            items, the missing ones are damaged, and their indexes are not used again.
        clock_ms: gives the timestamp of an item appended without one.
        clock_s: monotonic seconds, for `page_ttl_s`.

    Attributes:
        path: the folder.
        sync_mode: the `sync` option.
        read_only: the option of that name.
        recovery: what opening had to repair; `Recovery()` when nothing.

    Raises:
        LockedError: another writer has it open.
        ConfigError: an option is out of its limits or differs from what is recorded.
        CorruptDataError: the metadata, or for a reader the control file, is damaged; or there is no
            array and none is to be made.
        QueueError: the file system refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        page_bytes: int | None = None,
        index_page_items: int | None = None,
        sync: Sync = "none",
        max_mapped_pages: int = DEFAULT_MAX_MAPPED_PAGES,
        page_ttl_s: float = DEFAULT_PAGE_TTL_S,
        read_only: bool = False,
        create: bool = True,
        first: int = 0,
        least_end: int = 0,
        clock_ms: Callable[[], int] = wall_clock_ms,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if sync not in get_args(Sync):
            raise ConfigError(f"sync={sync!r} is unknown; use one of {', '.join(get_args(Sync))}")
        self.path = Path(path)
        self.recovery = Recovery()
        self.sync_mode: Sync = sync
        self.read_only = read_only
        self._clock_ms = clock_ms
        self._append_turn = Turn()
        self._files_lock = threading.Lock()
        self._read_turn = Turn()
        self._closed = False
        # Why appending is refused, as error type and text; None while it is allowed.
        self._refusal: tuple[type[MemqError], str] | None = None
        self._flush_each = sync == "each"
        with ExitStack() as opened:
            if read_only:
                self._layout = load_layout(self.path, page_bytes, index_page_items)
            else:
                if not create:
                    check_exists(self.path)
                claim_folder(self.path, opened)
                self._layout = load_or_make_layout(self.path, page_bytes, index_page_items, first)
            self._control = Words(self.path / CONTROL_FILE, CONTROL_MAGIC, writable=not read_only)
            opened.callback(self._control.close)
            self._cells = self._control.cells
            self._pool = PagePool(
                self._layout,
                max_pages=max_mapped_pages,
                ttl_s=page_ttl_s,
                writable=not read_only,
                clock_s=clock_s,
            )
            opened.callback(self._pool.close)
            self._cursor = self.cursor()
            if read_only:
                self._start_reading()
            else:
                self._start_writing(least_end)
            self._opened = opened.pop_all()

    def _start_reading(self) -> None:
        if not self._control.formatted:
            raise CorruptDataError(
                f"{self._control.path} is damaged; open the array for writing once to rebuild it"
            )
        self._refusal = (
            InvalidRequestError,
            f"{self.path} is open read-only; open it without read_only=True to write",
        )

    def _start_writing(self, least_end: int) -> None:
        position, self.recovery = recover(self._layout, self._pool, self._control, least_end)
        self._tail = Tail(self._layout, self._pool, position)
        self._files = PageFiles(self._layout, self._pool, self._tail)
        self._delete_before(self.start)

    # -- writing ----------------------------------------------------------------------------

    def append(self, data: BytesLike, timestamp_ms: int | None = None) -> int:
        """Append one item and return its index.

        The timestamp that is stored is the larger of the given one (by default the clock's) and
        that of the item before, so timestamps never decrease.

        Raises:
            MessageTooLargeError: the item is longer than a data page.
            InvalidRequestError: it is not bytes-like, or the array is open read-only.
            QueueError: no room on disk; nothing was changed, try again.
            PublishUncertainError: flushing failed; the array takes no more until reopened.
            QueueFailedError: an earlier flush failed.
            ClosedError: the array is closed.
        """
        if type(data) is not bytes:
            data = flat(data)
        turn = self._append_turn
        if not turn.try_acquire(False):
            turn.wait()
        try:
            if self._refusal is not None:
                raise self._refused()
            tail = self._tail
            index = tail.index
            tail.put(data, self._clock_ms() if timestamp_ms is None else timestamp_ms)
            if self._flush_each:
                self._flush()
            else:
                self._cells[END] = index + 1
        finally:
            turn.release()
        if turn.wanted:
            turn.pass_on()
        return index

    def append_many(self, items: Sequence[BytesLike], timestamp_ms: int | None = None) -> int:
        """Append the items as neighbours, all or none, and return the index of the first.

        Raises: as `append`.
        """
        batch = [item if type(item) is bytes else flat(item) for item in items]
        with self._append_turn:
            if self._refusal is not None:
                raise self._refused()
            tail = self._tail
            first = tail.index
            if batch:
                tail.put_many(batch, self._clock_ms() if timestamp_ms is None else timestamp_ms)
                if self.sync_mode == "none":
                    self._cells[END] = tail.index
                else:
                    self._flush()
        return first

    def length(self, index: int) -> int:
        """Return the size of an item in bytes by its entry, which may be damaged; 0 when there is
        none.

        Raises:
            OffsetOutOfRangeError: `index` is outside `[start, end)`.
        """
        self._check_range(index)
        try:
            return self.cursor().entry(index).length
        except CorruptDataError:
            return 0

    def was(self, index: int, data: bytes) -> bool:
        """Return whether these bytes are the item at `index`, by the check that its entry holds.

        Raises:
            OffsetOutOfRangeError: `index` is outside `[start, end)`.
        """
        self._check_range(index)
        try:
            entry = self.cursor().entry(index)
        except CorruptDataError:
            return False
        same = len(data) == entry.length
        return same and crc32c(data, seed_of(entry.timestamp_ms) + index) == entry.check

    def restore(self, index: int, data: bytes) -> None:
        """Write the bytes of a damaged item back, durably. Nobody may read it meanwhile.

        Raises:
            InvalidRequestError: these are not the bytes that were appended; nothing was changed.
            CorruptDataError: the item's entry is damaged as well.
            QueueError: the file system refused.
            OffsetOutOfRangeError, ClosedError: as for `get` and `append`.
        """
        with self._append_turn, self._files_lock, self._read_turn:
            if self._refusal is not None:
                raise self._refused()
            if not self.was(index, data):
                raise InvalidRequestError(
                    f"item {index} of {self.path} was not these {len(data)} bytes"
                )
            entry = self._cursor.entry(index)
            if entry.offset + entry.length > self._layout.page_bytes:
                raise CorruptDataError(f"item {index} of {self.path} goes past the end of its page")
            self._pool.allocate(DATA, entry.page)
            with self._pool.lock:
                page = self._pool.map(DATA, entry.page)
                page[entry.offset : entry.offset + entry.length] = data
            with translated("flush", self.path):
                sync_file(self._layout.file(DATA, entry.page))
                sync_folder(self.path / DATA)

    def sync(self) -> None:
        """Flush everything appended so far to the device.

        Raises:
            PublishUncertainError: flushing failed. It is not tried again, because the kernel may
                have dropped what it could not write: the array refuses appends until reopened.
            ClosedError, InvalidRequestError: as `append`.
        """
        with self._append_turn:
            if self._refusal is not None:
                raise self._refused()
            self._flush()

    def truncate_front(self, index: int) -> None:
        """Forget the items below `index`, and delete the page files that hold no other.

        The last page of each kind is kept. Truncating below `start` does nothing.

        Raises:
            OffsetOutOfRangeError: `index` is past `end`.
            QueueError: a file could not be deleted; the items are forgotten all the same.
            ClosedError, InvalidRequestError: as `append`.
        """
        with self._files_lock:
            if self.read_only or self._closed:
                raise self._refused()
            if index > self._cells[END]:
                raise OffsetOutOfRangeError(
                    f"cannot truncate {self.path} to {index}: its end is {self._cells[END]}"
                )
            if index > self._cells[START]:
                self._cells[START] = index
                self._cells[START_COPY] = index
            self._delete_before(self._cells[START])

    # -- reading ----------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """The index of the first item that is kept."""
        return self._cell(START)

    @property
    def end(self) -> int:
        """The index that the next item will get."""
        return self._cell(END)

    @property
    def last_timestamp_ms(self) -> int:
        """The timestamp of the last item, also when it was truncated; 0 when it is not known.

        Raises:
            InvalidRequestError: the array is open read-only.
        """
        if self.read_only:
            raise self._refused()
        return self._tail.timestamp_ms

    def get(self, index: int) -> bytes:
        """Read the item at `index` and verify its CRC32C.

        Raises:
            OffsetOutOfRangeError: `index` is outside `[start, end)`.
            CorruptDataError: the item or its page files are damaged; names file and index.
        """
        return self._read(index, lambda: self._cursor.read(index))

    def get_many(self, start: int, count: int, max_bytes: int | None = None) -> list[bytes]:
        """Up to `count` items from `start` on, verified; fewer at the end of the array.

        With `max_bytes` also no more than fit it, but always at least one.

        Raises:
            OffsetOutOfRangeError: `start` is outside `[start, end]`.
            CorruptDataError: as `get`, for the first damaged item.
        """
        end = self.end
        if start == end or count <= 0:
            return []
        stop = min(start + count, end)
        return self._read(start, lambda: self._cursor.read_many(start, stop, max_bytes))

    def timestamp_ms(self, index: int) -> int:
        """Read the timestamp of the item at `index`, verified together with the item.

        Raises: as `get`.
        """
        self.get(index)
        return self._read(index, lambda: self._stamp_of(index))

    def find_timestamp(self, timestamp_ms: int) -> int:
        """Find the first index with a timestamp at or after `timestamp_ms`; `end` when there is
        none.

        A binary search over the index pages, which does not read the items.

        Raises:
            CorruptDataError: an index page that the search needs is missing.
        """
        start, end = self.start, self.end
        if start == end:
            return end
        indexes = range(start, end)
        return start + self._read(
            start, lambda: bisect_left(indexes, timestamp_ms, key=self._stamp_of)
        )

    # -- the rest ---------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """Open a reader with its own position, for an owner that locks it and checks the range."""
        return Cursor(self._layout, self._pool)

    def close(self) -> None:
        """Flush, unmap and release the lock. Closing twice does nothing.

        Raises:
            PublishUncertainError: flushing failed; the array is closed all the same.
        """
        with self._append_turn, self._read_turn:
            if self._closed:
                return
            try:
                if self._refusal is None:
                    self._flush()
            finally:
                with self._files_lock:
                    self._closed = True
                    self._refusal = (ClosedError, f"{self.path} is closed; open it again")
                    self._opened.close()

    def _flush(self) -> None:
        """Flush what was written and publish it; on failure the array takes no more."""
        tail = self._tail
        if self._cells[SYNCED] == tail.index:
            return
        try:
            with self._files_lock:
                self._files.flush(tail)
        except OSError as exc:
            text = f"flushing {self.path} failed ({exc}); close it and open it again to recover"
            self._refusal = (QueueFailedError, text)
            self._cells[DOUBT] = 1
            with suppress(CorruptDataError):  # an index page that is gone needs no erasing
                tail.erase(self._cells[END], tail.index)
            raise PublishUncertainError(text) from exc
        self._cells[END] = tail.index
        self._cells[SYNCED] = tail.index

    def _delete_before(self, index: int) -> None:
        """Delete page files that hold neither an item from `index` on nor the last item."""
        kept = min(index, self._cells[END] - 1)
        keep: dict[Kind, int] = {INDEX: max(0, kept) // self._layout.index_page_items}
        try:
            any_pages = kept >= 0 and self._layout.numbers(DATA)
            keep[DATA] = self._page_of_whole(kept) if any_pages else 0
        except CorruptDataError as exc:
            # The entry of a damaged item may name any page; a later truncation will delete more.
            _log.warning("%s: no data pages are deleted yet: %s", self.path, exc)
        with translated("delete pages of", self.path):
            self._files.delete_before(keep)

    def _page_of_whole(self, index: int) -> int:
        """Return the data page of an item, which must be whole: a wrong one would delete good
        pages.
        """
        cursor = self.cursor()
        cursor.read(index)
        return cursor.entry(index).page

    def _read(self, index: int, read: Callable[[], _Result]) -> _Result:
        with self._read_turn:
            self._check_range(index)
            try:
                return read()
            except CorruptDataError:
                self._check_range(index)  # the writer may have truncated the page meanwhile
                raise

    def _stamp_of(self, index: int) -> int:
        return self._cursor.entry(index).timestamp_ms

    def _check_range(self, index: int) -> None:
        start, end = self.start, self.end
        if not start <= index < end:
            raise OffsetOutOfRangeError(
                f"{self.path} has no item {index}; it has {start} up to, not including, {end}"
            )

    def _cell(self, which: int) -> int:
        try:
            return self._cells[which]
        except ValueError as exc:  # released by close()
            raise self._refused() from exc

    def _refused(self) -> MemqError:
        kind, text = self._refusal or (ClosedError, f"{self.path} is closed; open it again")
        return kind(text)

    def __len__(self) -> int:
        return self.end - self.start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"<BigArray {self.path} [closed]>"
        return (
            f"<BigArray {self.path} [{self.start}, {self.end}) sync={self.sync_mode} "
            f"{len(self._pool)} pages mapped>"
        )
