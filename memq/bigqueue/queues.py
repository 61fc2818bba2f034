"""The queues on a big array: first in, first out with one front, and fan-out with many.

*The big queue.* Both ends have locks of their own, so producers and consumers do not wait for each
other. A page file goes as soon as the queue has moved past it. An item counts as consumed when
`dequeue` returns it; to process before consuming, use `peek`, or a fan-out queue with explicit
positions.

*The fan-out queue.* Every front sees every item. Items stay until `gc` finds that all fronts have
passed them, or until `truncate_front` drops them whatever the fronts say: a retention limit does.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, Unpack
from urllib.parse import quote, unquote

from memq.bigqueue.array import BigArray
from memq.bigqueue.files import translated
from memq.bigqueue.front import Front
from memq.bigqueue.layout import FRONTS_FOLDER, HEAD_FILE
from memq.errors import ConfigError, InvalidRequestError
from memq.runtime.files import make_folders, sync_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from memq.bigqueue.array import ArrayOptions
    from memq.bigqueue.recovery import Recovery
    from memq.bigqueue.tail import BytesLike

FRONT_SUFFIX = ".front"
# Each front keeps a descriptor open, of which a process has 1,024 by default.
MAX_FRONTS = 256
# A file name has at most 255 bytes, and the suffix takes six of them.
MAX_NAME_BYTES = 240


class BigQueue:
    """A persistent FIFO queue of byte strings, far larger than memory. Thread-safe.

    Args:
        path: folder of the queue; made when it does not exist.
        options: those of `BigArray`. With sync="each" every dequeue is flushed too, with "batch"
            every `dequeue_many` and `skip`.

    Attributes:
        recovery: what opening had to repair; `Recovery()` when nothing.

    Raises: as `BigArray`, and ConfigError when `path` holds a fan-out queue.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[ArrayOptions]) -> None:
        with ExitStack() as opened:
            self._array = opened.enter_context(BigArray(path, **options))
            self.recovery: Recovery = self._array.recovery
            if (self._array.path / FRONTS_FOLDER).exists():
                raise ConfigError(f"{path} holds a fan-out queue; open it with FanOutQueue")
            self._front = Front(self._array, self._array.path / HEAD_FILE)
            opened.callback(self._front.close)
            self._cursor = self._front.cursor
            self._moves_collected = 0
            self._opened = opened.pop_all()

    def enqueue(self, data: BytesLike, timestamp_ms: int | None = None) -> int:
        """Append one item; returns its index. Raises: as `BigArray.append`."""
        return self._array.append(data, timestamp_ms)

    def enqueue_many(self, items: Sequence[BytesLike], timestamp_ms: int | None = None) -> int:
        """Append the items as neighbours, all or none; returns the index of the first.

        Raises: as `BigArray.append`.
        """
        return self._array.append_many(items, timestamp_ms)

    def dequeue(self) -> bytes | None:
        """Take the oldest item; None when the queue is empty.

        Raises:
            CorruptDataError: the item is damaged, and stays the oldest; `skip` passes it.
            QueueError: consumed pages could not be deleted, or the position not be flushed; no
                item was taken, try again.
            ClosedError, InvalidRequestError: the queue is closed, or open read-only.
        """
        if self._cursor.moves != self._moves_collected:
            self.gc()
        return self._front.take()

    def dequeue_many(self, count: int, max_bytes: int | None = None) -> list[bytes]:
        """Take up to `count` of the oldest items, with `max_bytes` as many as fit, but one.

        Raises: as `dequeue`.
        """
        if self._cursor.moves != self._moves_collected:
            self.gc()
        return self._front.take_many(count, max_bytes)

    def peek(self) -> bytes | None:
        """Read the oldest item, which stays; None when the queue is empty.

        Raises:
            CorruptDataError: the item is damaged.
            ClosedError: the queue is closed.
        """
        return self._front.peek()

    def skip(self, count: int = 1) -> None:
        """Pass the `count` oldest items without reading them: the way past damaged ones.

        Raises:
            OffsetOutOfRangeError: the queue holds fewer; none is passed.
            QueueError, ClosedError, InvalidRequestError: as `dequeue`.
        """
        self._front.skip(count)

    def gc(self) -> None:
        """Delete the page files of consumed items. `dequeue` does it on entering another page.

        Raises:
            QueueError: a file could not be deleted; try again.
            ClosedError, InvalidRequestError: the queue is closed, or open read-only.
        """
        moves = self._cursor.moves
        self._array.truncate_front(self._front.position)
        self._moves_collected = moves

    def sync(self) -> None:
        """Flush everything enqueued, and the position, to the device.

        Raises: as `BigArray.sync`, and QueueError when the position could not be flushed.
        """
        self._array.sync()
        self._front.sync()

    def close(self) -> None:
        """Flush, unmap and release the lock. Closing twice does nothing."""
        self._opened.close()

    def __len__(self) -> int:
        position = self._front.position
        return self._array.end - position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BigQueue {self._front!r} of {self._array!r}>"


class FanOutQueue(BigArray):
    """A big array that any number of named fronts read independently. Thread-safe.

    Args:
        path: folder of the queue; made when it does not exist.
        options: those of `BigArray`. With sync="each" every dequeue is flushed too, with "batch"
            every `dequeue_many` and `set_position`.

    Raises: as `BigArray`, and ConfigError when `path` holds a plain queue.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[ArrayOptions]) -> None:
        self._fronts_lock = threading.Lock()
        self._fronts: dict[str, Front] = {}
        super().__init__(path, **options)
        self._folder = self.path / FRONTS_FOLDER
        self._opened.callback(self._close_fronts)
        try:
            self._open_fronts()
        except BaseException:
            self.close()
            raise

    enqueue = BigArray.append
    enqueue_many = BigArray.append_many

    # -- fronts -----------------------------------------------------------------------------

    def fronts(self) -> list[str]:
        """Return the names of all fronts, sorted."""
        files = self._folder.glob("*" + FRONT_SUFFIX)
        return sorted(unquote(file.name.removesuffix(FRONT_SUFFIX)) for file in files)

    def create_front(self, name: str, position: int | None = None) -> None:
        """Make a front at `position`, by default at the start of the array.

        Raises:
            InvalidRequestError: the front exists, or the name is empty or too long, or there are
                256 fronts, or the queue is open read-only.
            OffsetOutOfRangeError: the array does not reach to `position`; no front was made.
            QueueError: the file system refused.
        """
        file = self._file(name)
        with self._fronts_lock:
            self._check_writable()
            if name in self._fronts:
                raise InvalidRequestError(f"front {name!r} exists; move it with set_position")
            if len(self._fronts) >= MAX_FRONTS:
                raise InvalidRequestError(
                    f"there are {MAX_FRONTS} fronts; delete one before adding {name!r}"
                )
            self._remove(file)  # what is left when making or deleting it failed before
            self._fronts[name] = Front(self, file, position)

    def delete_front(self, name: str) -> None:
        """Remove a front and its position.

        Raises:
            InvalidRequestError: there is no such front, or the queue is open read-only.
            QueueError: the file system refused.
        """
        with self._fronts_lock:
            self._check_writable()
            front = self._front(name)
            self._remove(self._file(name))
            del self._fronts[name]
            front.close()

    def position(self, name: str) -> int:
        """Return the index of the item that the front takes next.

        Raises:
            InvalidRequestError: there is no such front.
        """
        return self._front(name).position

    def set_position(self, name: str, index: int) -> None:
        """Move a front to `index`: commit what was processed, or rewind or skip.

        Raises:
            InvalidRequestError: there is no such front, or the queue is open read-only.
            OffsetOutOfRangeError: `index` is outside `[start, end]`.
            QueueError: the position could not be flushed (unless sync="none"); it is unchanged.
        """
        self._front(name).seek(index)

    def reset_front(self, name: str) -> None:
        """Move a front back to the start of the array. Raises: as `set_position`."""
        self._front(name).seek(self.start)

    def dequeue(self, name: str) -> bytes | None:
        """Take the next item of a front; None when it has taken all.

        Raises:
            InvalidRequestError: there is no such front, or the queue is open read-only.
            CorruptDataError: the item is damaged; the front stays before it. `set_position`
                passes it.
            QueueError: the position could not be flushed (sync="each"); nothing was taken.
        """
        return self._front(name).take()

    def dequeue_many(self, name: str, count: int, max_bytes: int | None = None) -> list[bytes]:
        """Take up to `count` next items of a front, with `max_bytes` as many as fit, but one.

        Raises: as `dequeue`.
        """
        return self._front(name).take_many(count, max_bytes)

    def peek(self, name: str) -> bytes | None:
        """Read the next item of a front without taking it; None when it has taken all.

        Raises: InvalidRequestError and CorruptDataError as `dequeue`.
        """
        return self._front(name).peek()

    # -- upkeep -----------------------------------------------------------------------------

    def gc(self) -> None:
        """Drop the items that every front has taken; with no fronts, nothing.

        Raises: as `BigArray.truncate_front`.
        """
        with self._fronts_lock:
            positions = [front.position for front in self._fronts.values()]
            if positions:
                super().truncate_front(min(positions))

    def truncate_front(self, index: int) -> None:
        """Drop the items below `index`; fronts that are before it move there.

        Raises: as `BigArray.truncate_front`.
        """
        with self._fronts_lock:
            if index <= self.end:
                for front in self._fronts.values():
                    front.pass_to(index)
            super().truncate_front(index)

    def sync(self) -> None:
        """Flush everything enqueued, and all positions, to the device.

        Raises: as `BigArray.sync`, and QueueError when a position could not be flushed.
        """
        super().sync()
        with self._fronts_lock:
            for front in self._fronts.values():
                front.sync()

    def _front(self, name: str) -> Front:
        front = self._fronts.get(name)
        if front is not None:
            return front
        # A reader opens the file each time: the writer may delete the front and recreate it.
        if self.read_only and self._file(name).exists():
            return Front(self, self._file(name))
        raise InvalidRequestError(f"{self.path} has no front {name!r}; make it with create_front")

    def _file(self, name: str) -> Path:
        stem = quote(name, safe="")
        if not 0 < len(stem) <= MAX_NAME_BYTES:
            raise InvalidRequestError(
                f"front name {name!r} takes {len(stem)} bytes in a file name; "
                f"use 1 to {MAX_NAME_BYTES} (letters and digits take one each, others three)"
            )
        return self._folder / (stem + FRONT_SUFFIX)

    def _check_writable(self) -> None:
        if self.read_only:
            raise InvalidRequestError(
                f"{self.path} is open read-only; open it without read_only=True"
            )

    def _remove(self, file: Path) -> None:
        with translated("delete", file):
            file.unlink(missing_ok=True)
            sync_folder(self._folder)

    def _open_fronts(self) -> None:
        if (self.path / HEAD_FILE).exists():
            raise ConfigError(f"{self.path} holds a plain queue; open it with BigQueue")
        if self.read_only:
            return
        with translated("make", self._folder):
            make_folders(self._folder)
        for name in self.fronts():
            self._fronts[name] = Front(self, self._file(name))

    def _close_fronts(self) -> None:
        for front in self._fronts.values():
            front.close()

    def __repr__(self) -> str:
        return f"<FanOutQueue {len(self._fronts)} fronts of {super().__repr__()}>"
