"""What a process takes from its machine: clocks, chance and threads.

It is one value that is handed down from the outermost object, a `Broker` or a client. Whatever
needs a clock, a random number or a thread gets it from there, so that a test, or a simulation of
many machines in one process, can give it others. Timers and sockets belong to the event loop.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from secrets import SystemRandom, token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


def _boot_s() -> float:
    # Where there is no such clock (macOS), the monotonic one of POSIX counts the time as well.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clocks, chance and threads.

    Attributes:
        mono_s: the monotonic clock, in seconds; durations are measured with it.
        wall_ns: the wall clock, nanoseconds since 1970 UTC; it may step.
        random: evenly spread over [0, 1), for jitter.
        token_hex: so many random bytes as hex digits, for names that nobody else has.
        threads: an executor of so many threads, with the beginning of their names.
        boot_s: as `mono_s`, but it goes on while the machine is suspended; for what others count on
            meanwhile, such as a session.
    """

    mono_s: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    random: Callable[[], float] = SystemRandom().random
    token_hex: Callable[[int], str] = token_hex
    threads: Callable[[int, str], Executor] = ThreadPoolExecutor
    boot_s: Callable[[], float] = _boot_s

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return self.wall_ns() // 1_000_000

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC."""
        return self.wall_ns() // 1_000


SYSTEM = Runtime()
"""That of the machine."""
