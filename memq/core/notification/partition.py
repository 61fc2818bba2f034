"""One read partition of the embedded queue: a big array of entries.

An item of the array is the entry's time (8 bytes, little endian, milliseconds since 1970) and its
payload; the index of the item is the offset of the entry.

The array publishes an item only after it was flushed (`sync="batch"`), so a reader never sees an
entry that a power cut could take back, and no offset ever names two things. When a flush fails the
array takes no more; the items of that flush are erased, and the next append, or a fence, opens the
array again, which settles what it holds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING

from memq.core.bigqueue import BigArray
from memq.core.notification.checks import out_of_range
from memq.core.notification.queue import Entry, Publication
from memq.errors import CorruptDataError, PublishUncertainError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAGE_BYTES = 4 << 20
"""Some thousand notifications. A page is claimed on disk as a whole, so a queue of a thousand
partitions takes 4 GiB at least; 64 MiB, the default of the array, would take 64."""
INDEX_PAGE_ITEMS = 8192  # as many entries as about two data pages hold; 192 KiB
_MAX_MAPPED_PAGES = 4  # the fewest: an idle partition costs no more than eight descriptors
_TIME_BYTES = 8

_log = logging.getLogger("memq.queue")


class Partition:
    """The entries of one read partition. Opened at first use.

    `append`, `truncate` and `settle` belong to one thread; the others may be called from any.

    Args:
        topic: the topic, for messages.
        number: of the read partition.
        path: folder of its array.
        page_bytes: of the array, when it is made.
        index_page_items: of the array, when it is made.

    Attributes:
        start: first offset still held; 0 until the partition is opened.
        end: one past the last offset that is durable; 0 until the partition is opened.
    """

    def __init__(
        self, topic: str, number: int, path: Path, *, page_bytes: int, index_page_items: int
    ) -> None:
        self.start = 0
        self.end = 0
        self._topic = topic
        self._number = number
        self._path = path
        self._page_bytes = page_bytes
        self._index_page_items = index_page_items
        self._array: BigArray | None = None
        self._last_ms = 0
        self._failed = False
        self._closed = False
        # Held while the array is read or exchanged, never while it is flushed.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "failed" if self._failed else f"{self.start} to {self.end}"
        return f"<Partition {self._topic}/{self._number} [{state}]>"

    @property
    def is_open(self) -> bool:
        """Whether `start` and `end` are known."""
        return self._array is not None

    def open(self) -> BigArray:
        """Open the array if that was not done yet.

        Raises:
            UnknownTopicError: the topic has been deleted.
            CorruptDataError, QueueError: the array cannot be opened.
        """
        with self._lock:
            return self._opened()

    def append(self, publications: Sequence[Publication]) -> int:
        """Append entries, all or none, durably. Returns the offset of the first.

        Raises:
            PublishUncertainError: the flush failed.
            QueueError: nothing was appended.
            UnknownTopicError: the topic has been deleted.
        """
        self.settle()
        array = self.open()
        items: list[bytes] = []
        last_ms = self._last_ms
        for publication in publications:
            last_ms = max(last_ms, publication.timestamp_ms)
            items.append(last_ms.to_bytes(_TIME_BYTES, "little") + publication.payload)
        try:
            first = array.append_many(items, last_ms)
        except PublishUncertainError:
            self._failed = True
            raise
        self._last_ms = last_ms
        self.end = first + len(items)
        return first

    def settle(self) -> None:
        """Open the array again if a flush had failed, so that what it holds is certain.

        Raises:
            CorruptDataError, QueueError: it cannot be opened; it is tried again by the next call.
        """
        if self._failed:
            with self._lock:
                if self._array is not None:
                    self._array.close()
                    self._array = None
                self._opened()
                self._failed = False

    def read(self, offset: int, *, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `offset` on; at least one, unless it is the end.

        Raises:
            OffsetOutOfRangeError: the partition does not hold the offset.
            CorruptDataError: an entry is damaged.
        """
        with self._lock:
            array = self._opened()
            if not self.start <= offset <= self.end:
                raise out_of_range(self._topic, self._number, offset, self.start, self.end)
            # Each item is longer than its payload by the time, so this never reads too many.
            items = array.get_many(offset, max_entries, max_bytes + _TIME_BYTES * max_entries)
        entries: list[Entry] = []
        size_bytes = 0
        for index, item in enumerate(items, offset):
            size_bytes += len(item) - _TIME_BYTES
            if entries and size_bytes > max_bytes:
                break
            entries.append(Entry(index, _time_of(item), item[_TIME_BYTES:]))
        return entries

    def find(self, timestamp_ms: int) -> int:
        """First offset with that time or a later one; the end when there is none.

        Raises:
            CorruptDataError: an entry that the search needs is damaged.
        """
        with self._lock:
            array = self._opened()
            held = range(self.start, self.end)
            return held.start + bisect_left(
                held, timestamp_ms, key=lambda index: _time_of(array.get(index))
            )

    def truncate(self, offset: int) -> None:
        """Forget the entries before `offset`.

        Raises:
            OffsetOutOfRangeError: it is after the end.
            QueueError: a page could not be deleted; the entries are forgotten all the same.
        """
        array = self.open()
        if offset > self.end:
            raise out_of_range(self._topic, self._number, offset, self.start, self.end)
        try:
            array.truncate_front(max(0, offset))
        finally:
            self.start = array.start

    def close(self) -> None:
        """Release the array; whoever comes later learns that the topic is gone.

        Raises:
            PublishUncertainError: the last flush failed; the array is released all the same.
        """
        with self._lock:
            self._closed = True
            if self._array is not None:
                array, self._array = self._array, None
                array.close()

    def _opened(self) -> BigArray:
        if self._closed:
            raise UnknownTopicError(f"topic {self._topic!r} has been deleted")
        if self._array is None:
            with contextlib.ExitStack() as undo:
                array = undo.enter_context(self._open_array())
                self._last_ms = _last_time(array)
                self._array, self.start, self.end = array, array.start, array.end
                undo.pop_all()
        return self._array

    def _open_array(self) -> BigArray:
        array = BigArray(
            self._path,
            page_bytes=self._page_bytes,
            index_page_items=self._index_page_items,
            sync="batch",
            max_mapped_pages=_MAX_MAPPED_PAGES,
        )
        lost = array.recovery.items_dropped
        if lost:
            _log.error(
                "%s/%d lost %d published notifications from offset %d on: %s",
                self._topic,
                self._number,
                lost,
                array.end,
                array.recovery.reason,
            )
        return array


def _time_of(item: bytes) -> int:
    return int.from_bytes(item[:_TIME_BYTES], "little")


def _last_time(array: BigArray) -> int:
    """Time of the last entry, also when it was truncated; 0 when there never was one.

    The array keeps the entry's index, and the last item of every append has the array's time.
    """
    if array.end == 0:
        return 0
    try:
        return array.cursor().entry(array.end - 1).timestamp_ms
    except CorruptDataError as exc:
        # Recovery keeps no item without its index, so this one was truncated, and nobody reads it.
        _log.warning("times of an empty partition begin anew: %s", exc)
        return 0
