"""Fatal errors: where errors that nothing expected come together, whatever they were raised in.

An error in a coroutine goes to the code that awaits its task; tasks that none awaits are made by
`spawn`. Callbacks have nobody: asyncio takes what a callback of a timer, a future or a protocol
raises to the loop's exception handler, which by itself only logs it; a thread's pool or a weak
reference only logs it, too. Acks are made in such callbacks. So while a broker serves, the handler
of its loop is here, and the few callbacks that other threads call are wrapped by `guarded`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    LoopContext = dict[str, Any]
    Handler = Callable[[asyncio.AbstractEventLoop, LoopContext], object]
    _Arguments = ParamSpec("_Arguments")

_Result = TypeVar("_Result")

log = logging.getLogger(__name__)


class FatalErrors:
    """The first error that no part of the broker expected, and the net that catches it.

    It belongs to the running event loop.

    Attributes:
        failure: done with the first such error; the broker then stops, for a state machine that
            was interrupted half-way must not go on acking.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._foreign: Callable[[object], bool] | None = None
        self._before: Handler | None = None
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()

    def __repr__(self) -> str:
        found = repr(self.failure.result()) if self.failure.done() else "none"
        return f"<FatalErrors [{found}]>"

    def report(self, where: object, error: BaseException) -> None:
        """Log an error that nothing expected, whole, and stop the broker. From any thread."""
        log.critical("%s: unexpected error, stopping", where, exc_info=error)
        try:
            self._loop.call_soon_threadsafe(self._fail, error)
        except RuntimeError:
            log.debug("the event loop is closed: the broker has stopped before")

    def spawn(
        self,
        where: object,
        coroutine: Coroutine[Any, Any, _Result],
        *,
        expected: type[BaseException] | tuple[()] = (),
    ) -> asyncio.Task[_Result]:
        """Start a task; errors that its caller does not expect stop the broker."""

        def done(task: asyncio.Task[_Result]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, expected):
                self.report(where, error)

        task = self._loop.create_task(coroutine)
        task.add_done_callback(done)
        return task

    def guarded(
        self, where: str, callback: Callable[_Arguments, None]
    ) -> Callable[_Arguments, None]:
        """Wrap a callback so that its errors are reported; asyncio does not call it."""

        @wraps(callback)
        def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as exc:  # noqa: BLE001 - whatever it is, it stops the broker
                self.report(where, exc)

        return run

    def watch(self, foreign: Callable[[object], bool]) -> None:
        """Take what asyncio cannot give to anybody, from now on.

        Args:
            foreign: whether a protocol is of other code that shares the event loop.
        """
        self._before = self._loop.get_exception_handler()
        self._foreign = foreign
        self._loop.set_exception_handler(self._caught)

    def unwatch(self) -> None:
        """Leave the event loop to others again."""
        self._foreign = None
        if self._loop.get_exception_handler() == self._caught:
            self._loop.set_exception_handler(self._before)

    def _caught(self, loop: asyncio.AbstractEventLoop, context: LoopContext) -> None:
        error = context.get("exception")
        reported = error is not None and self._is_unexpected(error, context)
        if error is not None and reported:
            self.report(context["message"], error)
        if self._before is not None:
            self._before(loop, context)
        elif not reported:
            loop.default_exception_handler(context)

    def _is_unexpected(self, error: BaseException, context: LoopContext) -> bool:
        if self._foreign is None:
            return False
        if "socket" in context:  # what cannot be accepted, asyncio tries again later
            return False
        if "future" in context and isinstance(error, MemqError):
            return False  # its waiter has just given up, and its outcome was a typed error
        return not self._foreign(context.get("protocol"))

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
