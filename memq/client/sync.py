"""Sync clients over async ones: an event loop in a background thread, and what runs calls on it.

A sync client is a `SyncClient` of its async twin, and each of its methods is `sync` of the twin's:
arguments, result, errors and docstring are the twin's.

The thread is a daemon, and whatever is still open when the interpreter exits is closed by an exit
handler, so that forgetting `close()` neither hangs a program nor kills the thread in mid-call.
Threads do not survive a fork: in a child process every call is a `ClosedError` that says so.

A Ctrl-C may fall between any two steps of a thread that waits, also between the taking of a lock
and the block that gives it back: a `threading.Condition` or `Event` then stays locked for ever, and
with it the event loop that wants to wake the thread. So threads wait for a `SimpleQueue` here,
whose steps are C, and each either happens or does not.

The event loop, in turn, waits for no lock that a thread of the application can hold: a signal's
handler may have interrupted that thread in the middle, and call the client. That includes locks of
logging handlers, one of which may write to MemQ: see `_LogWithoutWaiting`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import warnings
import weakref
from collections import deque
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial, wraps
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from memq.errors import ClosedError, InvalidRequestError, MemqError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
A = TypeVar("A")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any, None])
T = TypeVar("T")
F = TypeVar("F")

LOG_WAIT_S = 0.05  # for a handler that another thread uses; few lines are logged on a loop
MAX_LATE_LINES = 100  # each has a thread
CLOSE_TIMEOUT_S = 5.0  # cancelled tasks end at once, unless one does not let go of the loop


class EventLoopThread:
    """An event loop that runs in a background thread until `close`.

    Args:
        name: of the thread, as debuggers show it.

    Attributes:
        name: the same.
        owner: that must live as long as the loop.
        calls: that are made and have not ended. A task that waits for what only it refers to is
            garbage to Python, asyncio's own set of tasks being weak: these are kept. The end of the
            loop ends those that came too late to be begun.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner: object = None
        self.calls: set[Call[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._closed = self._stopped = False  # to calls, and the loop itself
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running"
        return f"<EventLoopThread {self.name} {state}>"

    @property
    def is_current(self) -> bool:
        """Whether this is called on the loop's own thread."""
        return threading.current_thread() is self._thread

    @property
    def inherited(self) -> bool:
        """Whether it belongs to a parent process: its thread does not run in this one."""
        return os.getpid() != self._pid

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, which keeps its own deadline, on the loop and wait for its result.

        It is cancelled when the wait is interrupted.

        Raises:
            ClosedError: the loop is closed, was closed meanwhile, or belongs to a parent process.
            InvalidRequestError: called on the loop's own thread, where waiting would never end.
        """
        return Call(self, work).result()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call a function soon; nobody waits for it.

        Raises:
            ClosedError: the loop is closed or belongs to a parent process.
        """
        if self.inherited:
            raise ClosedError(
                f"{self.name} was made before a fork; make the client in the child process"
            )
        if self._closed:
            raise ClosedError(f"{self.name} is closed")
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError as exc:
            if not self._loop.is_closed():
                raise
            raise ClosedError(f"{self.name} is closed") from exc

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel what still runs and end the thread; closing again is fine.

        Raises:
            RequestTimeoutError: the thread did not end in time.
        """
        if self.inherited:  # the thread is the parent's to end
            return
        self._closed = True
        if not self._stopped:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._stopped = True
        atexit.unregister(self.close)
        if self.is_current:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise RequestTimeoutError(f"{self.name} did not end within {timeout_s} s")

    def check_thread(self) -> None:
        """Refuse to wait on the loop's own thread, where waiting would never end.

        Raises:
            InvalidRequestError: this is that thread.
        """
        if self.is_current:
            raise InvalidRequestError(
                "a sync client was called from its own callback; use the async client there"
            )

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        _loop_threads.add(threading.current_thread())
        for name, logger in logging.Logger.manager.loggerDict.copy().items():
            if name.partition(".")[0] in {"memq", "asyncio"} and isinstance(logger, logging.Logger):
                logger.addFilter(_LOG_WITHOUT_WAITING)
        try:
            self._loop.run_forever()
        finally:
            # Also when nobody closed it: a task may have raised SystemExit.
            self._closed = self._stopped = True
            try:
                _finish(self._loop)
            finally:
                for call in tuple(self.calls):
                    call.give_up()


_loop_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class _LogWithoutWaiting(logging.Filter):
    """Logs what an event loop's thread says, or has another thread do so where it had to wait.

    A logging handler that writes to MemQ holds its lock while it waits for the very loop.
    """

    _free = threading.BoundedSemaphore(MAX_LATE_LINES)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the caller is to log the record: not on a loop's thread."""
        if threading.current_thread() not in _loop_threads:
            return True
        logger = logging.getLogger(record.name)
        others = logging.Filterer()
        others.filters = [each for each in logger.filters if each is not self]
        if not others.filter(record):
            return False
        locks: list[threading.RLock] = []
        at: logging.Logger | None = logger
        while at is not None:
            locks += [handler.lock for handler in at.handlers if handler.lock is not None]
            at = at.parent if at.propagate else None
        with ExitStack() as held:
            for lock in locks:
                if not lock.acquire(timeout=LOG_WAIT_S):
                    break
                held.callback(lock.release)
            else:
                logger.callHandlers(record)
                return False
        if self._free.acquire(blocking=False):  # else the line is dropped
            threading.Thread(target=self._wait, args=(logger, record), daemon=True).start()
        return False

    def _wait(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        try:
            logger.callHandlers(record)
        finally:
            self._free.release()


_LOG_WITHOUT_WAITING = _LogWithoutWaiting()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of a stopped loop, let them end, and close it."""
    _run(loop, asyncio.sleep(0))  # what was handed over last is a task then
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        _run(loop, asyncio.wait(tasks))
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                loop.call_exception_handler(
                    {"message": "error while a task was cancelled", "exception": task.exception()}
                )
    _run(loop, loop.shutdown_asyncgens())
    loop.close()


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, object]) -> None:
    """Run a loop until a coroutine has ended, or something wants the loop to end, as it does."""
    try:
        loop.run_until_complete(work)
    except (SystemExit, KeyboardInterrupt):
        pass  # raised by a task, whose `Call` has it
    except RuntimeError:
        if loop.is_closed():
            raise
        # `stop` came twice.


class Call(Generic[T]):
    """A coroutine on an event loop, and the thread that waits for it.

    Args:
        loop: where it runs.
        work: the coroutine.

    Attributes:
        done: whether it has ended.
    """

    _task: asyncio.Task[T] | None = None
    _value: T
    _error: BaseException | None = None

    def __init__(self, loop: EventLoopThread, work: Coroutine[Any, Any, T]) -> None:
        if not asyncio.iscoroutine(work):
            raise TypeError(f"a coroutine is required, and {work!r} is none")
        self.done = False
        self._loop = loop
        self._work = work
        self._woken: SimpleQueue[None] = SimpleQueue()

    def result(self, meanwhile: Callable[[], bool] = lambda: False) -> T:
        """Run it and wait for what it returns or raises; cancels it when the wait is interrupted.

        Args:
            meanwhile: called whenever the thread was woken, until there is no more to do.

        Raises:
            ClosedError: the loop is closed, was closed meanwhile, or belongs to a parent process.
            InvalidRequestError: called on the loop's own thread, where waiting would never end.
        """
        try:
            self._begin()
            while not self.done:
                if not meanwhile():
                    self._woken.get()
        except BaseException:
            with suppress(ClosedError):  # then it is cancelled already
                self._loop.call(self._cancel)
            raise
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            self._error = None  # whose traceback has this frame, and that has this call: a cycle

    def wake(self) -> None:
        """Make the thread that waits look whether there is something to do meanwhile."""
        self._woken.put(None)

    async def end(self) -> None:
        """Cancel it on the loop, and wait until it has ended."""
        if self._task is not None:
            if not self._task.cancelling():  # a second interrupt kept `result` from doing so
                self._task.cancel()  # never twice: that would cut short how it ends
            await asyncio.wait({self._task})

    def _begin(self) -> None:
        try:
            self._loop.check_thread()
            self._loop.calls.add(self)  # before it is seen to be open
            self._loop.call(self._start)
        except (ClosedError, InvalidRequestError):
            self._loop.calls.discard(self)
            self._work.close()
            raise

    def give_up(self) -> None:
        """End a call that the loop has not begun and never will."""
        self._loop.calls.discard(self)
        self._work.close()
        self._error = ClosedError(f"{self._loop.name} was closed during the call")
        self.done = True
        self.wake()

    def _start(self) -> None:
        self._loop.calls.add(self)
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        self._loop.calls.discard(self)
        if task.cancelled():
            self._error = ClosedError(f"{self._loop.name} was closed during the call")
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._value = task.result()
        # The task is to die here: its end calls Python, where the waiting thread's interrupt,
        # should it come then, would be ignored.
        self._task = None
        self.done = True
        self.wake()

    def _cancel(self) -> None:
        if self._task is None:
            self._work.close()  # it has ended, or an interrupt kept it from being begun
        else:  # after its first step, so that what closes a client can see to its end
            asyncio.get_running_loop().call_soon(self._task.cancel)


class _Turn(NamedTuple):
    """A callback that waits for its thread."""

    callback: Callable[[Any], object]
    argument: object
    outcome: asyncio.Future[None]


class Callbacks:
    """Callbacks of a sync client: they run in the thread that polls, not on the event loop.

    That is what users of Kafka rely on: while a callback runs the application does nothing else,
    and it may call the client, for a last commit say, which on the loop's own thread could only
    wait for itself. So the loop hands the call over to the thread that waits in `run`, and awaits
    its outcome.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: EventLoopThread) -> None:
        self._loop = loop
        self._turns: deque[_Turn] = deque()
        self._waiting: set[Call[Any]] = set()

    async def call(self, callback: Callable[[A], object], argument: A) -> None:
        """Have the waiting thread call it, and await the outcome; runs on the loop."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(_Turn(callback, argument, outcome))
        for call in tuple(self._waiting):
            call.wake()
        await outcome

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and meanwhile the callbacks here."""
        call = Call(self._loop, work)
        taken: list[asyncio.Future[None]] = []
        try:
            self._waiting.add(call)
            return call.result(partial(self._take_turn, taken))
        except BaseException:
            for outcome in taken:  # an interrupt may have ended what this thread had begun
                self._settle(outcome, None)
            raise
        finally:
            self._waiting.discard(call)

    def _take_turn(self, taken: list[asyncio.Future[None]]) -> bool:
        """Run a callback; whether there was one."""
        try:
            callback, argument, outcome = self._turns.popleft()
        except IndexError:
            return False
        taken.append(outcome)
        error: Exception | None = None
        try:
            callback(argument)
        except Exception as exc:  # noqa: BLE001 - raised where the loop awaits the callback
            error = exc
        self._settle(outcome, error)
        return True

    def _settle(self, outcome: asyncio.Future[None], error: Exception | None) -> None:
        with suppress(ClosedError):  # then nobody awaits it
            self._loop.call(_settle, outcome, error)


def _settle(outcome: asyncio.Future[None], exc: Exception | None) -> None:
    if outcome.done():
        return
    if exc is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(exc)


class SyncClient(Generic[C]):
    """An async client for threads; it is started when it is made. Its methods are made by `sync`.

    Use it with `with`, or `close` it; else there is a `ResourceWarning`. In a forked child process
    its calls raise `ClosedError` and closing it does nothing: the client is the parent's.

    Args:
        client: the async client, not started yet: it is started by entering it.
        loop: for it alone; it is closed with the client, or if the client does not start.
    """

    _closed = True  # until there is something to close
    _closing = False

    def __init__(self, client: C, loop: EventLoopThread) -> None:
        self._client = client
        self._loop = loop
        self._callbacks = Callbacks(loop)
        try:
            loop.run(client.__aenter__())
        except BaseException:
            loop.close()
            raise
        self._closed = False

    def __repr__(self) -> str:
        return repr(self._client).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._end(lambda: self._client.__aexit__(exc_type, exc, traceback))
        except MemqError as error:
            if exc is None:
                raise
            exc.add_note(f"closing failed as well: {error}")  # the body's own is raised

    def __del__(self) -> None:
        if not self._closed and not self._loop.inherited:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._loop.inherited:
            return
        if self._closed:
            if not self._closing:  # by another thread, or the call that a handler interrupts
                self._loop.close()  # once more: an interrupt may have fallen into the first close
            return
        self._closed = self._closing = True
        try:
            self._before_end()
            self._callbacks.run(work())
        finally:
            self._closing = False
            self._loop.close()

    def _before_end(self) -> None:
        """Do what the calling thread has to do before the client is closed."""


def sync(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], *, callbacks: bool = False
) -> Callable[Concatenate[SyncClient[C], P], T]:
    """Make a method of a `SyncClient` that runs its twin's method on the event loop.

    Args:
        method: of the async client.
        callbacks: run the client's callbacks in the calling thread meanwhile.
    """

    @wraps(method)
    def call(self: SyncClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        run = self._callbacks.run if callbacks else self._loop.run
        return run(method(self._client, *args, **kwargs))

    return call


def sync_close(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[SyncClient[C], P], None]:
    """Make a method like `sync` that closes the client: the event loop ends with it."""

    @wraps(method)
    def close(self: SyncClient[C], /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._end(lambda: method(self._client, *args, **kwargs))

    return close


def sync_iter(
    method: Callable[Concatenate[C, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[SyncClient[C], P], Generator[T, None, None]]:
    """Make a method like `sync` that yields: each item is one call to the event loop."""

    @wraps(method)
    def iterate(
        self: SyncClient[C], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        items = method(self._client, *args, **kwargs)
        step = None
        try:
            while True:
                step = Call(self._loop, _next(items))
                if (item := step.result()) is _END:
                    break
                yield item
        finally:
            with suppress(ClosedError):  # then the loop has closed it
                self._loop.run(_close(items, step))

    return iterate


_END: Any = object()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items, _END)


async def _close(items: AsyncGenerator[T, None], step: Call[T] | None) -> None:
    """Close what yields, after its last step, which may have been interrupted."""
    if step is not None:
        await step.end()
    await items.aclose()


def sync_property(twin: type, name: str) -> Any:
    """Make a property of a `SyncClient` from that of its twin."""
    return property(attrgetter(f"_client.{name}"), doc=getattr(twin, name, property()).__doc__)


def documented_by(twin: object) -> Callable[[F], F]:
    """Give the docstring of its async twin to what a sync client does in its own way."""

    def document(function: F) -> F:
        function.__doc__ = twin.__doc__
        return function

    return document
