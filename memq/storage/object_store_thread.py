"""The thread in which requests to object stores are made, and threads that wait for them.

Callers of a storage block, in threads of their own. The requests themselves are made on one event
loop, in a thread that all storages of a process share, because only there can a request be
cancelled: then its connection is closed at once. So a wait ends in one of four ways:

- the request ends, and the wait with its result or its error;
- the time is up, or an exception such as KeyboardInterrupt comes into the wait: the request is
  cancelled;
- the storage is closed, from another thread: all its requests are cancelled, and their waits and
  later ones raise `ClosedError`;
- the interpreter ends. The loop cancels what is left and stops, and its thread is joined, before
  threads of obstore could meet an interpreter that is gone.

*Forks.* The thread, and those of obstore, are not there in a process that was forked after the
first request, and locks may be held by threads that are not there either. So such a process is
told so at its first request, before any lock is touched.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from concurrent.futures import CancelledError
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from memq.errors import ClosedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

END_TIMEOUT_S = 1.0  # for cancelled requests, when the process ends
REST_S = 0.05  # for what threads of obstore do after that; it takes them microseconds

_CLOSED = "the storage was closed"


class Waits:
    """Threads that wait for the requests of one storage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._under_way: set[Future[Any]] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._under_way)} under way"
        return f"<Waits [{state}]>"

    def close(self) -> None:
        """Give up what is waited for, and wait for no more."""
        with self._lock:
            self._closed = True
            under_way = list(self._under_way)
        for future in under_way:
            future.cancel()

    def until_done(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Do work on the loop; it is cancelled when the time is up, or its wait is interrupted.

        Raises:
            ClosedError: `close` was called.
            StorageError: this process was forked.
            TimeoutError: the time is up.
        """

        async def in_time() -> T:
            async with asyncio.timeout(timeout_s):
                return await work

        loop, process_id = _requests_loop()
        if process_id != os.getpid():  # whose locks may be held by threads that are not here
            work.close()
            raise _forked()
        with self._lock:
            if self._closed:
                work.close()
                raise ClosedError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(in_time(), loop)
            self._under_way.add(future)
        try:
            return future.result()
        except CancelledError as exc:
            raise ClosedError(_CLOSED) from exc
        except BaseException:
            future.cancel()
            raise
        finally:
            self._under_way.discard(future)


@cache
def _requests_loop() -> tuple[asyncio.AbstractEventLoop, int]:
    """Return the event loop of every request of this process, and the process's id."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="memq-object-store", daemon=True)
    thread.start()
    atexit.register(_end, loop, thread)
    return loop, os.getpid()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End the thread before the interpreter does, and let those of obstore come to rest.

    When a request has ended, a thread of obstore still lets go of what belongs to Python. Where the
    interpreter ends in that moment, the process is aborted: 1 in 12 that read once did.
    """
    if not thread.is_alive():  # this process was forked from the one that has the thread
        return

    def cancel_all() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon(loop.stop)

    loop.call_soon_threadsafe(cancel_all)
    thread.join(END_TIMEOUT_S)
    time.sleep(REST_S)


def _forked() -> StorageError:
    return StorageError(
        "this process was forked from one that used an object store, whose threads are not here; "
        "start it as a new process (multiprocessing: spawn)"
    )
