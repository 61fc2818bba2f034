"""Retries: one call's attempts until its deadline, with full jitter between them.

A `Retry` measures and decides, and does nothing: its caller makes the attempts, and sleeps as it
likes, in a task or in a thread. A call within a call is given what is left of the deadline, so
nested calls share it.

    retry = Retry(timeout_s, runtime)
    while True:
        try:
            return await attempt(timeout_s=retry.left_s)
        except MemqError as error:
            delay_s = retry.after(error)
        await asyncio.sleep(delay_s)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memq.errors import RequestTimeoutError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from memq.errors import MemqError
    from memq.runtime.system import Runtime

_MAX_DOUBLINGS = 32  # beyond any cap; keeps the power small
TELL_AFTER_S = 3.0  # a call that has tried for so long says so in the log,
TELL_EVERY_S = 30.0  # but its client does no more often than this


class Backoff(NamedTuple):
    """How long to wait between attempts.

    Attributes:
        base_s: bound of the first wait, in seconds; it doubles with each failure.
        cap_s: and goes no further than this.
    """

    base_s: float
    cap_s: float

    def full_jitter_s(self, failures: int, randomness: Callable[[], float]) -> float:
        """Seconds to wait when so many attempts before the last one had failed, from 0.

        Anything between nothing and the bound is equally likely, so that clients which failed
        together do not come back together
        (https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
        """
        return randomness() * self._bound_s(failures)

    def equal_jitter_s(self, failures: int, randomness: Callable[[], float]) -> float:
        """Return a delay like `full_jitter_s`, but half of the bound at least.

        For an attempt that fails at once, and is made again and again for hours: no try follows
        directly on the one that failed.
        """
        return (0.5 + 0.5 * randomness()) * self._bound_s(failures)

    def _bound_s(self, failures: int) -> float:
        return min(self.cap_s, self.base_s * 2.0 ** min(failures, _MAX_DOUBLINGS))


BROKER_BACKOFF = Backoff(0.05, 2.0)
"""A hand-over between brokers takes about the base; one that comes back is found within the cap."""
STORAGE_BACKOFF = Backoff(0.1, 5.0)
"""An object store that slows down wants fewer requests, not the same ones sooner."""


class Retry:
    """The attempts of one call.

    Args:
        timeout_s: from now to the deadline.
        runtime: its monotonic clock and its randomness.
        backoff: between attempts.
        log: told once the call has tried for `TELL_AFTER_S`; None for no word.

    Attributes:
        failures: attempts that failed so far.
    """

    def __init__(
        self,
        timeout_s: float,
        runtime: Runtime,
        backoff: Backoff = BROKER_BACKOFF,
        log: RetryLog | None = None,
    ) -> None:
        self.failures = 0
        self._clock = runtime.mono_s
        self._randomness = runtime.random
        self._backoff = backoff
        self._log = log
        self._started_s = self._clock()
        self._deadline_s = self._started_s + timeout_s
        self._last: MemqError | None = None

    def __repr__(self) -> str:
        return f"<Retry [{self.failures} failures | {self.left_s:.3g} s left]>"

    @property
    def left_s(self) -> float:
        """Seconds to the deadline, no less than 0."""
        return max(0.0, self._deadline_s - self._clock())

    def after(
        self, error: MemqError, *, at_once: bool = False, retriable: bool | None = None
    ) -> float:
        """Seconds to wait before the next attempt.

        Args:
            error: of the last attempt.
            at_once: the next one goes elsewhere, and need not wait.
            retriable: whether the error may pass; None for what it says itself.

        Raises:
            MemqError: there is no next attempt: the error will not pass, or its deadline comes
                first. Then it is the last one that tells something: that the time is up says less
                than what used it up.
        """
        if not (error.retriable if retriable is None else retriable):
            raise error
        if self._last is None or not isinstance(error, RequestTimeoutError):
            self._last = error
        delay_s = 0.0 if at_once else self._backoff.full_jitter_s(self.failures, self._randomness)
        self.failures += 1
        now_s = self._clock()
        if now_s + delay_s >= self._deadline_s:
            raise self._last
        if self._log is not None and now_s - self._started_s >= TELL_AFTER_S:
            self._log.tell(self._last, now_s, self._deadline_s)
        return delay_s


class RetryLog:
    """Says that calls of one client are being tried again, `TELL_EVERY_S` apart at least."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told_s: float | None = None

    def __repr__(self) -> str:
        return f"<RetryLog {self._log.name}>"

    def tell(self, error: MemqError, now_s: float, deadline_s: float) -> None:
        """Log that a call failed with `error` and is tried again until its deadline."""
        if self._told_s is None or now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            self._log.warning("%s; trying again for up to %.0f s", error, deadline_s - now_s)
