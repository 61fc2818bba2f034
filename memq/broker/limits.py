"""Limits of the process: open files, and how often one kind of log line may appear."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING

from memq.core.runtime import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

FILES_BESIDE_CONNECTIONS = 2_000  # page files, objects being written, logs

ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "-1"}
"""Environment of a broker's process; it must be set before Arrow is loaded. Arrow's allocator gives
freed memory back to the system soon, only to ask for it again with the next Message. A broker needs
what it needed before, and `memory_bytes` bounds that."""


def raise_file_limit(connections: int) -> None:
    """Raise the soft limit of open files so that the connections fit, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDE_CONNECTIONS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable < wanted:
        log.warning(
            "the limit of open files is %d; %d connections want %d: raise `ulimit -Hn`",
            reachable,
            connections,
            wanted,
        )


class RateLimitedLog:
    """Warnings, at most one a second for each kind; the next one says how many were left out.

    Hostile clients can cause a warning for every frame they send. The log must stay readable and
    must not become the bottleneck.
    """

    def __init__(
        self, logger: logging.Logger, *, clock_s: Callable[[], float] = SYSTEM.mono_s
    ) -> None:
        self._logger = logger
        self._clock_s = clock_s
        self._next_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, text: str) -> None:
        """Log a warning of that kind, or count it."""
        now_s = self._clock_s()
        if now_s < self._next_s.get(kind, 0):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        left_out = self._left_out.pop(kind, 0)
        self._next_s[kind] = now_s + 1
        self._logger.warning("%s%s", text, f" ({left_out} more like it)" if left_out else "")
