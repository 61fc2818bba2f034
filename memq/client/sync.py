"""The sync clients' way into the async ones: an event loop in a thread of its own.

The thread is a daemon, and whatever is still open when the interpreter exits is closed by an exit
handler, so that forgetting `close()` neither hangs a program nor kills the thread in mid-call.
Threads do not survive a fork: in a child process every call is a `ClosedError` that says so.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from memq.errors import ClosedError, InvalidRequestError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0  # cancelled tasks end at once, unless one does not let go of the loop


class EventLoopThread:
    """An event loop that runs in a background thread until `close`.

    Args:
        name: of the thread, as debuggers show it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        # A task that waits for what only it refers to is garbage to Python, asyncio's own set of
        # tasks being weak: what was submitted is kept here until it ends.
        self._submitted: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running"
        return f"<EventLoopThread {self._thread.name} {state}>"

    @property
    def closed(self) -> bool:
        """True when it was closed, or belongs to a parent process."""
        return self._closed or os.getpid() != self._pid

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Args:
            work: the coroutine; it is cancelled when the wait ends early.
            timeout_s: longest wait; None where the coroutine keeps its own deadline.

        Raises:
            RequestTimeoutError: there was no result in time.
            ClosedError: the loop is closed, was closed meanwhile, or belongs to a parent process.
            InvalidRequestError: called on the loop's own thread, where waiting would never end.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequestError(
                "a sync client was called from its own callback; use the async client there"
            )
        return self.result(self.submit(work), timeout_s)

    def result(self, future: concurrent.futures.Future[T], timeout_s: float | None = None) -> T:
        """Wait for what `submit` returned, as `run` does."""
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError as exc:
            raise ClosedError(f"{self._thread.name} was closed during the call") from exc
        except TimeoutError as exc:
            if future.done():  # the coroutine's own
                raise
            raise RequestTimeoutError(f"no result within {timeout_s} s") from exc
        finally:
            future.cancel()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop.

        Raises:
            ClosedError: the loop is closed or belongs to a parent process.
        """
        try:
            self._check_process()
            with self._lock:
                self._check_open()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except ClosedError:
            work.close()
            raise
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call a function soon; nobody waits for it.

        Raises:
            ClosedError: the loop is closed or belongs to a parent process.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self._loop.call_soon_threadsafe(function, *args)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel what still runs and end the thread; closing again is fine.

        Raises:
            RequestTimeoutError: the thread did not end in time.
        """
        if os.getpid() != self._pid:  # the thread is the parent's to end
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        atexit.unregister(self.close)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise RequestTimeoutError(f"{self._thread.name} did not end within {timeout_s} s")

    def _check_process(self) -> None:
        # Before the lock is touched: a fork may have copied it in its locked state.
        if os.getpid() != self._pid:
            raise ClosedError(
                f"{self._thread.name} was made before a fork; make the client in the child process"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._thread.name} is closed")

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._closed = True  # a task may have raised SystemExit, which ends the loop as well
            _finish(self._loop)


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of a stopped loop, let them end, and close it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            loop.call_exception_handler(
                {"message": "error while a task was cancelled", "exception": task.exception()}
            )
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
