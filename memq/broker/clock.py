"""The broker's clock: the one place where it reads the time."""

from __future__ import annotations

import time

from memq.core.ring import Now


def system_now() -> Now:
    """The time now, by the monotonic and by the wall clock."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
