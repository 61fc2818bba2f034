"""One read partition of the embedded queue: a big array of entries.

An item of the array is the entry's time (8 bytes, little endian, milliseconds since 1970), its
running time (the same) and its payload; the index of the item is the offset of the entry.

The array publishes an item only after it was flushed (`sync="batch"`), so a reader never sees an
entry that a power cut could take back, and no offset ever names two things. When a flush fails the
array takes no more; the items of that flush are erased, and the next append, or a fence, opens the
array again, which decides what it holds.

Offsets without an entry, which `memq restore` leaves, are items without a notification (`GAP`). A
gap at the end is not seen until an entry follows it.

An offset that was handed out is never used again. Where the array has lost entries that had been
published, their offsets stay theirs: reading them is a `CorruptDataError` that names them and how
to go on, and new entries come after them. How far offsets were handed out is said by the array's
own files and, should these be gone, by what groups have committed.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

from memq.bigqueue import BigArray
from memq.core.queue import Publication, QueueEntry, out_of_range, within_bytes
from memq.core.ranges import offsets_in_words
from memq.core.units import counted
from memq.errors import CorruptDataError, PublishUncertainError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

PAGE_BYTES = 4 << 20
"""Some thousand notifications. A page is claimed on disk as a whole, so a queue of a thousand
partitions takes 4 GiB at least; 64 MiB, the default of the array, would take 64."""
MAX_DAMAGED_NAMED = 10_000  # damaged entries looked at to name a run of them; the rest is "or more"
INDEX_PAGE_ITEMS = 8192  # as many entries as about two data pages hold; 192 KiB
_MAX_MAPPED_PAGES = 4  # the fewest: an idle partition costs no more than eight descriptors
GAP = b"\0"
"""What stands at an offset without an entry. No notification begins like this."""
_TIMES = struct.Struct("<QQ")

_log = logging.getLogger("memq.queue")


def entry_bytes(timestamp_ms: int, running_ms: int, payload: bytes) -> bytes:
    """Encode an entry as the array has it."""
    return _TIMES.pack(timestamp_ms, running_ms) + payload


def payload_of(item: bytes) -> bytes:
    """Decode the payload of an entry as the array has it."""
    return item[_TIMES.size :]


def make_partition(path: Path, *, page_bytes: int, index_page_items: int, first: int = 0) -> None:
    """Make an empty partition from an offset on, so that one that is missing is not taken for one.

    Raises:
        QueueError: the file system refused.
    """
    BigArray(path, page_bytes=page_bytes, index_page_items=index_page_items, first=first).close()


class Partition:
    """The entries of one read partition, which `make_partition` has made. Opened at first use.

    `append`, `truncate` and `settle` belong to one thread; the others may be called from any.

    Args:
        topic: the topic, for messages.
        number: of the read partition.
        path: folder of its array.
        committed_end: gives the least end that groups have proven, by committing offsets up to it.
        clock_s: monotonic seconds; pages that were not used for long are unmapped.

    Attributes:
        start: first offset still retained; 0 until the partition is opened.
        end: one past the last offset that is durable; 0 until the partition is opened.
        last_running_ms: of the last entry retained; -1 for none, and until the partition is opened.
    """

    def __init__(
        self,
        topic: str,
        number: int,
        path: Path,
        *,
        committed_end: Callable[[], int] = int,
        clock_s: Callable[[], float],
    ) -> None:
        self.start = 0
        self.end = 0
        self._topic = topic
        self._number = number
        self._path = path
        self._committed_end = committed_end
        self._clock_s = clock_s
        self._array: BigArray | None = None
        self._last_ms = 0
        self.last_running_ms = -1
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
        last_ms, running_ms = self._last_ms, self.last_running_ms
        for publication in publications:
            last_ms = max(last_ms, publication.timestamp_ms)
            running_ms = max(running_ms, publication.running_ms)
            items.append(entry_bytes(last_ms, running_ms, publication.payload))
        try:
            first = array.append_many(items, last_ms)
        except PublishUncertainError:
            self._failed = True
            raise
        self._last_ms, self.last_running_ms = last_ms, running_ms
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

    def read(self, offset: int, *, max_entries: int, max_bytes: int) -> list[QueueEntry]:
        """Entries from `offset` on, up to a damaged one; at least one, unless it is the end.

        Raises:
            OffsetOutOfRangeError: the partition does not hold the offset.
            CorruptDataError: the entry at `offset` is damaged.
        """
        with self._lock:
            array = self._opened()
            if not self.start <= offset <= self.end:
                raise out_of_range(self._topic, self._number, offset, self.start, self.end)
            # Each item is longer than its payload by the times, so this never reads too many.
            limit_bytes = max_bytes + _TIMES.size * max_entries
            entries: list[QueueEntry] = []
            while offset < self.end and not entries:
                try:
                    items = array.get_many(offset, max_entries, limit_bytes)
                except CorruptDataError:
                    items = self._whole(array, offset, max_entries, limit_bytes)
                found = map(_entry, range(offset, self.end), items)
                entries = [each for each in found if each.payload != GAP]
                offset += len(items)
        return within_bytes(entries, max_bytes)

    def _whole(
        self, array: BigArray, offset: int, max_entries: int, limit_bytes: int
    ) -> list[bytes]:
        """Read the items from `offset` on that stand before the first damaged one.

        Raises:
            CorruptDataError: that is the first; names all that follow it, and how to go on.
        """
        items: list[bytes] = []
        for index in range(offset, min(offset + max_entries, self.end)):
            try:
                items.append(array.get(index))
            except CorruptDataError as exc:
                if items:
                    break
                raise self._damaged(array, offset, exc) from exc
            limit_bytes -= len(items[-1])
            if limit_bytes <= 0:
                break
        return items

    def _item_at(self, array: BigArray, offset: int) -> bytes:
        try:
            return array.get(offset)
        except CorruptDataError as exc:
            raise self._damaged(array, offset, exc) from exc

    def _damaged(self, array: BigArray, offset: int, cause: CorruptDataError) -> CorruptDataError:
        last = min(self.end, offset + MAX_DAMAGED_NAMED) - 1
        later = range(offset + 1, last + 1)
        sound = next((each for each in later if _whole_item(array, each) is not None), last + 1)
        more = " or more" if sound == last + 1 < self.end else ""
        names = f"{offsets_in_words(offset, sound)}{more} of {self._topic!r}/{self._number}"
        return CorruptDataError(
            f"{names} damaged: {cause}. Stop the broker and run `memq restore`, or go on "
            f"at offset {sound}"
        )

    def find(self, timestamp_ms: int) -> int:
        """First offset with that time or a later one; the end when there is none.

        Raises:
            CorruptDataError: an entry that the search needs is damaged.
        """
        return self._search(timestamp_ms, lambda array, at: times_of(self._item_at(array, at))[0])

    def find_running(self, running_ms: int) -> int:
        """First offset with that running time or a later one; the end when there is none.

        A damaged entry is taken to be as old as the next whole one, so that it stops no retention.
        """
        return self._search(running_ms, self._running_ms)

    def _running_ms(self, array: BigArray, offset: int) -> int:
        return next(_running_times(array, range(offset, self.end)), 1 << 64)  # later than all

    def _search(self, time_ms: int, time_of: Callable[[BigArray, int], int]) -> int:
        with self._lock:
            time_at = partial(time_of, self._opened())
            retained = range(self.start, self.end)
            return retained.start + bisect_left(retained, time_ms, key=time_at)

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
            if self.start == self.end:
                self.last_running_ms = -1

    def close(self) -> None:
        """Release the array; later callers learn that the topic is gone.

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
                self._last_ms = array.last_timestamp_ms
                backwards = reversed(range(array.start, array.end))
                self.last_running_ms = next(_running_times(array, backwards), -1)
                self._array, self.start, self.end = array, array.start, _end_of(array)
                undo.pop_all()
        return self._array

    def _open_array(self) -> BigArray:
        try:
            array = BigArray(
                self._path,
                sync="batch",
                max_mapped_pages=_MAX_MAPPED_PAGES,
                create=False,
                least_end=self._committed_end(),
                clock_s=self._clock_s,
            )
        except CorruptDataError as exc:
            raise CorruptDataError(
                f"{exc}; restore it from a copy, or stop the broker and run `memq restore`"
            ) from exc
        lost = array.recovery.items_damaged
        if lost:
            _log.error(
                "%s/%d lost %s, %s: %s",
                self._topic,
                self._number,
                counted(lost, "published notification"),
                offsets_in_words(array.end - lost, array.end),
                array.recovery.reason,
            )
        return array


def times_of(item: bytes) -> tuple[int, int]:
    """Time, in milliseconds since 1970, and running time of an entry as the array has it."""
    timestamp_ms, running_ms = _TIMES.unpack_from(item)
    return timestamp_ms, running_ms


def _entry(offset: int, item: bytes) -> QueueEntry:
    timestamp_ms, running_ms = times_of(item)
    return QueueEntry(offset, timestamp_ms, payload_of(item), running_ms)


def _end_of(array: BigArray) -> int:
    """Return one past the last entry."""
    end = array.end
    gap_bytes = len(entry_bytes(0, 0, GAP))
    while end > array.start and array.length(end - 1) == gap_bytes:
        if payload_of(_whole_item(array, end - 1) or b"") != GAP:
            break
        end -= 1
    return end


def _whole_item(array: BigArray, index: int) -> bytes | None:
    """Read the item, unless it is damaged."""
    try:
        return array.get(index)
    except CorruptDataError:
        return None


def _running_times(array: BigArray, indexes: Iterable[int]) -> Iterator[int]:
    """Running times of those items that are whole."""
    for item in (_whole_item(array, each) for each in indexes):
        if item is not None:
            yield times_of(item)[1]
