"""Looking again and again, through outages, holding nothing meanwhile.

The connection is read for each look, so that a new token is taken. Of every look-up that fails,
also by an outage of a secrets backend or of its own API, Airflow says that the connection is not
defined. So that is an answer while the connection was never read, and an outage afterwards.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow._shared.logging.types import Logger

    from airflow_provider_memq.conditions import Condition, Outcome
    from airflow_provider_memq.hooks.memq import MemqHook

BACKOFF_BASE_S = 1.0  # a broker that is restarted is back within about this time
BACKOFF_CAP_S = 60.0  # an outage of hours costs one try a minute, and ends within one
_MAX_DOUBLINGS = 16  # beyond the cap anyway; keeps the power small
PASSING = (MemqError, AirflowNotFoundException, AirflowRuntimeError)  # a look's, see `may_pass`
JITTER = 0.1  # of an interval, so that triggers which began together spread out


def backoff_s(failures: int, randomness: Callable[[], float]) -> float:
    """Seconds to wait after so many failures in a row, from 1: doubled each time, with jitter.

    Half of it stays fixed, so that no try follows at once on the one that failed.
    """
    bound_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return bound_s * (0.5 + 0.5 * randomness())


def interval_s(poll_interval_s: float, randomness: Callable[[], float]) -> float:
    """Seconds to the next look, a little more or less than asked for."""
    return poll_interval_s * (1.0 - JITTER + 2.0 * JITTER * randomness())


def grown_interval_s(
    poll_interval_s: float,
    look: int,
    max_wait_s: float | None,
    randomness: Callable[[], float],
) -> float:
    """Seconds to wait after a look, counted from 1, with `exponential_backoff`.

    It is the law of Airflow's sensors: half of the interval after the first look, doubled each
    time, and up to as much again at random; but `max_wait_s` at most.
    """
    least_s = max(float(int(poll_interval_s * 2.0 ** min(look - 2, _MAX_DOUBLINGS))), 1.0)
    grown_s = least_s * (1.0 + randomness())
    return grown_s if max_wait_s is None else min(grown_s, max_wait_s)


class Pace(NamedTuple):
    """How a sensor looks: what Airflow calls so.

    Attributes:
        poll_interval_s: between looks.
        exponential_backoff: the interval grows.
        max_wait_s: and up to this.
        silent_fail: an error that nothing expected is logged, and looked past.
    """

    poll_interval_s: float
    exponential_backoff: bool = False
    max_wait_s: float | None = None
    silent_fail: bool = False

    def wait_s(self, look: int, randomness: Callable[[], float]) -> float:
        """Seconds to wait after a look, counted from 1."""
        if self.exponential_backoff:
            return grown_interval_s(self.poll_interval_s, look, self.max_wait_s, randomness)
        return interval_s(self.poll_interval_s, randomness)


def may_pass(error: Exception, *, known: bool) -> bool:
    """Whether an error may go away by itself: an outage of brokers, or of what Airflow asks.

    Args:
        error: of a look.
        known: an earlier look has read the connection.
    """
    if isinstance(error, MemqError):
        return error.retriable
    return known or not isinstance(error, AirflowNotFoundException)


async def wait_until(
    hook: MemqHook,
    condition: Condition,
    *,
    pace: Pace,
    log: Logger,
    sleep: Callable[[float], Awaitable[None]],
    randomness: Callable[[], float],
) -> Outcome:
    """Look until the condition holds.

    A look opens a connection and closes it. While brokers do not answer, the waits grow up to
    `BACKOFF_CAP_S`; the log says when that began and when it ended.

    Args:
        hook: names the connection.
        condition: what is waited for.
        pace: of the looks.
        log: of the task.
        sleep: waits for seconds.
        randomness: evenly spread over [0, 1).

    Raises:
        MemqError: what no waiting mends: a refused token, an unknown topic, a wrong value.
        AirflowNotFoundException: there is no such connection, and was none before.
    """
    known = False
    failures = 0
    last_note = ""
    for look in count(1):
        try:
            async with hook.session() as session:
                outcome = await condition.look(session)
        except PASSING as exc:
            if not may_pass(exc, known=known):
                raise
            known = known or isinstance(exc, MemqError)  # of a broker that the connection named
            failures += 1
            delay_s = backoff_s(failures, randomness)
            log.warning("no answer (%d in a row), next try in %.1f s: %s", failures, delay_s, exc)
        except Exception:
            if not pace.silent_fail:
                raise
            delay_s = pace.wait_s(look, randomness)
            log.exception("a look failed; silent_fail is set, so it is made again")
        else:
            known = True
            if failures:
                log.info("brokers answer again after %d failures", failures)
            failures = 0
            if outcome.note != last_note:
                log.info("%s", outcome.note)
            last_note = outcome.note
            if outcome.done:
                return outcome
            delay_s = pace.wait_s(look, randomness)
        await sleep(delay_s)
    raise AssertionError("unreachable")
