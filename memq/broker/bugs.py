"""Bugs: where errors that nothing expected come together, whatever they were raised in.

An error in a coroutine goes to whoever awaits its task, and every task of the broker has an owner
that looks. Callbacks have nobody: asyncio takes what a callback of a timer, a future or a protocol
raises to the loop's exception handler, which by itself only logs it, and a thread's pool or a weak
reference does likewise. Acks are made in such callbacks. So while a broker serves, the handler of
its loop is here, and the few callbacks that other threads call are wrapped by `guarded`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable

    Context = dict[str, Any]
    Handler = Callable[[asyncio.AbstractEventLoop, Context], object]
    _Arguments = ParamSpec("_Arguments")

log = logging.getLogger(__name__)


class Bugs:
    """The first error that no part of the broker expected, and the net that catches it.

    It belongs to the running event loop.

    Args:
        foreign: whether a protocol is somebody else's, who shares the event loop.

    Attributes:
        failure: done with the first such error; the broker then stops, for a state machine that
            was interrupted half-way must not go on acking.
    """

    def __init__(self, foreign: Callable[[object], bool] = lambda _: False) -> None:
        self._loop = asyncio.get_running_loop()
        self._foreign = foreign
        self._watching = False
        self._before: Handler | None = None
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()

    def __repr__(self) -> str:
        found = repr(self.failure.result()) if self.failure.done() else "none"
        return f"<Bugs [{found}]>"

    def report(self, where: str, error: BaseException) -> None:
        """Log an error that nothing expected, whole, and stop the broker. From any thread."""
        log.critical("%s: unexpected error, stopping", where, exc_info=error)
        try:
            self._loop.call_soon_threadsafe(self._fail, error)
        except RuntimeError:
            log.debug("the event loop is closed: the broker has stopped before")

    def guarded(
        self, where: str, callback: Callable[_Arguments, None]
    ) -> Callable[_Arguments, None]:
        """A callback whose errors are reported; for those that asyncio does not call."""

        @wraps(callback)
        def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as exc:  # noqa: BLE001 - whatever it is, it stops the broker
                self.report(where, exc)

        return run

    def watch(self) -> None:
        """Take what asyncio cannot give to anybody, from now on."""
        self._before = self._loop.get_exception_handler()
        self._watching = True
        self._loop.set_exception_handler(self._caught)

    def unwatch(self) -> None:
        """Leave the event loop to others again."""
        self._watching = False
        if self._loop.get_exception_handler() == self._caught:
            self._loop.set_exception_handler(self._before)

    def _caught(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        error = context.get("exception")
        reported = error is not None and self._watching and self._is_bug(error, context)
        if error is not None and reported:
            self.report(context["message"], error)
        if self._before is not None:
            self._before(loop, context)
        elif not reported:
            loop.default_exception_handler(context)

    def _is_bug(self, error: BaseException, context: Context) -> bool:
        if "socket" in context:  # what cannot be accepted, asyncio tries again later
            return False
        if "future" in context and isinstance(error, MemqError):
            return False  # whoever waited has just given up, and its outcome was a typed error
        return not self._foreign(context.get("protocol"))

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
