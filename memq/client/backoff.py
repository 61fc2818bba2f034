"""How long to wait before trying again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.runtime import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

BACKOFF_BASE_S = 0.05  # a hand-over between brokers takes about this long
BACKOFF_CAP_S = 2.0  # a broker that comes back is found within this time
_MAX_DOUBLINGS = 32  # beyond the cap anyway; keeps the power small

system_randomness: Callable[[], float] = SYSTEM.random


def full_jitter_s(attempt: int, randomness: Callable[[], float]) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 0): exponential, full jitter.

    Anything between nothing and the doubled bound is equally likely, so that clients which failed
    together do not come back together.
    """
    bound_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return randomness() * bound_s
