"""The big queue: first in, first out, on a big array and one front.

Both ends have locks of their own, so producers and consumers do not wait for each other. A page
file goes as soon as the queue has moved past it. An item counts as consumed when `dequeue` returns
it; to process before consuming, use `peek`, or a fan-out queue with explicit positions.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, Unpack

from memq.bigqueue.array import BigArray
from memq.bigqueue.front import Front
from memq.bigqueue.layout import FRONTS_FOLDER, HEAD_FILE
from memq.errors import ConfigError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memq.bigqueue.array import ArrayOptions
    from memq.bigqueue.recovery import Recovery
    from memq.bigqueue.tail import BytesLike


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
        """The oldest item, which stays; None when the queue is empty.

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
