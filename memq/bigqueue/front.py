"""A front: a persistent position in an array that moves forward as items are taken.

The position is one mapped 64-bit word: it survives a kill at once, and other processes can read it.
It is flushed as the array's `sync` option says. A position that is lost with its file goes back
to the start of the array: items may come again, but none is skipped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from memq.bigqueue.files import Words, sync_file, translated
from memq.bigqueue.layout import FRONT_MAGIC, POSITION
from memq.bigqueue.turn import Turn
from memq.errors import ClosedError, CorruptDataError, InvalidRequestError, OffsetOutOfRangeError
from memq.runtime.files import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from memq.bigqueue.array import BigArray

_log = logging.getLogger("memq.bigqueue")


class Front:
    """One reading end of an array. Thread-safe, and independent of other fronts.

    Args:
        array: what it reads.
        path: its file, made when it does not exist.
        position: where a new front begins; None is the start of the array.

    Attributes:
        cursor: reads the items; its `moves` tells that another page was entered.

    Raises:
        OffsetOutOfRangeError: the array does not reach to `position`.
        CorruptDataError: opened read-only, the file is damaged.
        QueueError: the file system refused.
    """

    def __init__(self, array: BigArray, path: Path, position: int | None = None) -> None:
        self._array = array
        self._turn = Turn()
        self._closed = False
        # Cleared by close(): one check in `take` for both reasons to refuse.
        self._may_take = not array.read_only
        self._flush_each = array.sync_mode == "each"
        # The array's end when last looked at: looking again is only needed on reaching it.
        self._end = 0
        self.cursor = array.cursor()
        existed = path.exists()
        if position is not None:
            self._check_range(position)
        self._words = Words(path, FRONT_MAGIC, writable=not array.read_only)
        self._cells = self._words.cells
        if not array.read_only:
            self._settle(existed, position)
        elif not self._words.formatted:
            self._words.close()
            raise CorruptDataError(f"{path} is damaged; open the queue for writing to repair it")

    @property
    def position(self) -> int:
        """The index of the item that is taken next."""
        with self._turn:
            self._check_open()
            return self._cells[POSITION]

    def take(self) -> bytes | None:
        """Take the next item and move past it; None when there is none yet.

        Raises:
            CorruptDataError: the item is damaged; the front stays before it. `seek` passes it.
            QueueError: the position could not be flushed (sync="each"); the front stays.
            ClosedError, InvalidRequestError: the queue is closed, or open read-only.
        """
        turn = self._turn
        if not turn.try_acquire(False):
            turn.wait()
        try:
            if not self._may_take:
                self._check_writable()
            index = self._cells[POSITION]
            if index >= self._end and index >= self._look_at_end():
                return None
            data = self.cursor.read(index)
            self._cells[POSITION] = index + 1
            if self._flush_each:
                self._flush_or_return_to(index)
        finally:
            turn.release()
        if turn.wanted:
            turn.pass_on()
        return data

    def take_many(self, count: int, max_bytes: int | None = None) -> list[bytes]:
        """Up to `count` next items, moving past them; with `max_bytes` as many as fit, but one.

        Raises: as `take`; the front stays before all of them.
        """
        with self._turn:
            self._check_writable()
            index = self._cells[POSITION]
            stop = min(index + count, self._look_at_end())
            items = self.cursor.read_many(index, stop, max_bytes)
            if items:
                self._cells[POSITION] = index + len(items)
                if self._array.sync_mode != "none":
                    self._flush_or_return_to(index)
            return items

    def peek(self) -> bytes | None:
        """Read the next item without moving past it; None when there is none yet.

        Raises:
            CorruptDataError: the item is damaged.
            ClosedError: the queue is closed.
        """
        with self._turn:
            self._check_open()
            index = self._cells[POSITION]
            return None if index >= self._look_at_end() else self.cursor.read(index)

    def seek(self, index: int) -> None:
        """Move to `index`, forward or back, anywhere in the array or to its end.

        Raises:
            OffsetOutOfRangeError: the array does not reach there.
            QueueError: the position could not be flushed (unless sync="none"); the front stays.
            ClosedError, InvalidRequestError: the queue is closed, or open read-only.
        """
        with self._turn:
            self._check_writable()
            self._move(index)

    def skip(self, count: int) -> None:
        """Move past `count` items without reading them.

        Raises: as `seek`.
        """
        with self._turn:
            self._check_writable()
            if count < 0:
                raise InvalidRequestError(f"cannot skip {count} items; give 0 or more")
            self._move(self._cells[POSITION] + count)

    def pass_to(self, index: int) -> None:
        """Move forward to `index` if the front is before it."""
        with self._turn:
            self._check_writable()
            self._cells[POSITION] = max(index, self._cells[POSITION])

    def sync(self) -> None:
        """Flush the position to the device.

        Raises:
            QueueError: flushing failed; try again.
            ClosedError, InvalidRequestError: the queue is closed, or open read-only.
        """
        with self._turn:
            self._check_writable()
            self._flush()

    def close(self) -> None:
        """Unmap the position. Closing twice does nothing."""
        with self._turn:
            if not self._closed:
                self._closed = True
                self._may_take = False
                self._words.close()

    def _settle(self, existed: bool, wanted: int | None) -> None:
        """Give a new front its position, and a damaged or stale one a position that exists."""
        start, end = self._array.start, self._array.end
        formatted, position = self._words.formatted, self._cells[POSITION]
        if not (formatted and start <= position <= end):
            self._give_position(existed, wanted)
        folder = self._words.path.parent
        with translated("flush", folder):
            sync_folder(folder)  # who made it may have died before this

    def _give_position(self, existed: bool, wanted: int | None) -> None:
        start, end = self._array.start, self._array.end
        formatted, position = self._words.formatted, self._cells[POSITION]
        if existed:
            what = f"position {position} does not exist" if formatted else "file was damaged"
            wanted = min(max(start, position), end) if formatted else start
            _log.warning("%s: %s; moved to %d", self._words.path, what, wanted)
        self._words.format(start if wanted is None else wanted)
        self._flush()

    def _move(self, index: int) -> None:
        self._check_range(index)
        before = self._cells[POSITION]
        self._cells[POSITION] = index
        if self._array.sync_mode != "none":
            self._flush_or_return_to(before)

    def _look_at_end(self) -> int:
        self._end = self._array.end
        return self._end

    def _flush_or_return_to(self, index: int) -> None:
        try:
            self._flush()
        except BaseException:
            self._cells[POSITION] = index
            raise

    def _flush(self) -> None:
        with translated("flush", self._words.path):
            sync_file(self._words.path)

    def _check_range(self, index: int) -> None:
        start, end = self._array.start, self._array.end
        if not start <= index <= end:
            raise OffsetOutOfRangeError(f"cannot move to {index}; move to {start} up to {end}")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._array.path} is closed; open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if self._array.read_only:
            raise InvalidRequestError(
                f"{self._array.path} is open read-only; open it without read_only=True to take"
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"at {self._cells[POSITION]}"
        return f"<Front {self._words.path.name} [{state}]>"
