"""The broker's time: one that only runs on, and a wall clock whose steps are not believed at once.

Theory of operation
-------------------
Wall clocks step: somebody sets them, a virtual machine is restored, a battery is flat. So two kinds
of time are kept apart, and each is used for what it is good for.

*Running time* (`ClockReading.mono_ms`) is how long brokers have had this queue open: the monotonic
clock, going on where the life before was saved. It never runs faster than real time, whatever the
wall clock does and whatever it showed at the start. All that is forgotten or deleted after some
time goes by it, in the process and across restarts: retention, orphans, the deduplication window.

*Wall time* (`ClockReading.wall_ms`) is what is written down for people and searched by: seal times,
the times of entries, the watermark. It is running time plus an offset, which follows the wall clock
so:

Rule 1. A difference of up to `DRIFT_MS` is drift, and taken over when it is seen.
Rule 2. A larger one is a step. It is believed when the clock has stood by it for `CONFIRM_MS` of
    the monotonic clock, and until then time runs on as before. A step that is taken back sooner
    leaves no trace.
Rule 3. So it is at a start as well: a clock that stands before the time that was saved last, or
    more than `MOST_DOWN_MS` after it, has stepped; time runs on from what was saved.

What a wrong clock that is believed leads to, `TopicProcessor` says.

*In a cluster* each broker has running time of its own, which begins where the furthest of them was
saved. They run on at the same rate, so they differ by what was not saved yet, and by what a machine
that was suspended has missed; a broker catches up whenever it joins (`catch_up`). Code that
compares times of several brokers leaves `CLOCKS_DIFFER_MS` of room.

*What is kept for the next life.* Running time is saved every so often, so that a topic to which
nobody writes grows old as well; what a crash loses of it only makes things be kept for longer.

A watermark that was told closes a stretch of time for good, so the next life must not write
anything down as earlier, whatever its wall clock shows. Therefore the wall time is saved before a
watermark is told, a little ahead, so that it costs one flush a second at most however many ask.
After a crash, what comes within that little is written down as that much later.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

DRIFT_MS = 500  # more than a clock drifts between two looks; what NTP corrects by slewing
CONFIRM_MS = 60_000  # a clock that was set by mistake, or a flat battery, is mended sooner
AHEAD_MS = 1_000  # how far ahead wall time is saved, so that many watermarks need one flush
CLOCKS_DIFFER_MS = 60_000  # running times of two brokers; they are saved more often than that
MOST_DOWN_MS = 86_400_000  # of what a broker is down for longer, the first minute has older times


class ClockReading(NamedTuple):
    """The time, twice; see the theory of operation.

    Attributes:
        mono_ms: never jumps, and goes on in the next life of the broker; ages and deadlines are
            measured with it.
        wall_ms: since 1970 UTC; what is written down.
    """

    mono_ms: int
    wall_ms: int


class SavedTimes(NamedTuple):
    """How far time has come, as a queue keeps it for the next life of its broker.

    Attributes:
        running_ms: running time.
        wall_ms: wall time; no watermark beyond it was ever told.
    """

    running_ms: int
    wall_ms: int


class BrokerClock:
    """Running time and wall time; see the theory of operation.

    Args:
        mono_s: the machine's monotonic clock, in seconds.
        wall_ms: its wall clock, in milliseconds since 1970 UTC.
        saved: from the life before; zeros when there was none.
    """

    def __init__(
        self, mono_s: Callable[[], float], wall_ms: Callable[[], int], saved: SavedTimes
    ) -> None:
        self._mono_s, self._wall_ms = mono_s, wall_ms
        self._ran_ms = saved.running_ms - int(mono_s() * 1000)
        shown_ms = wall_ms()
        begin_ms = saved.wall_ms - AHEAD_MS - DRIFT_MS
        expected = range(begin_ms, saved.wall_ms + MOST_DOWN_MS)
        trusted = saved.wall_ms == 0 or shown_ms in expected
        self._ahead_ms = (shown_ms if trusted else saved.wall_ms) - saved.running_ms
        self._doubt: tuple[int, int] | None = None  # the offset that is not believed, since when
        self.look()

    def __repr__(self) -> str:
        state = "in step" if self._doubt is None else f"doubts {self._doubt[0] - self._ahead_ms} ms"
        return f"<BrokerClock [{self()} | {state}]>"

    def __call__(self) -> ClockReading:
        """Read the time now."""
        running_ms = int(self._mono_s() * 1000) + self._ran_ms
        return ClockReading(running_ms, running_ms + self._ahead_ms)

    def catch_up(self, running_ms: int) -> None:
        """Let running time be at least this, which another broker of the cluster has reached.

        Only while nothing is measured by it: all that is under way would age at once.
        """
        behind_ms = max(0, running_ms - self().mono_ms)
        self._ran_ms += behind_ms
        self._ahead_ms -= behind_ms  # the wall time is what it was
        if self._doubt is not None:
            ahead_ms, since_ms = self._doubt
            self._doubt = ahead_ms - behind_ms, since_ms + behind_ms

    def look(self) -> None:
        """Follow the wall clock; to be called every second or so."""
        running_ms = int(self._mono_s() * 1000) + self._ran_ms
        ahead_ms = self._wall_ms() - running_ms
        step_ms = ahead_ms - self._ahead_ms
        if abs(step_ms) <= DRIFT_MS:
            self._ahead_ms, self._doubt = ahead_ms, None
        elif self._doubt is None or abs(ahead_ms - self._doubt[0]) > DRIFT_MS:
            if self._doubt is None:  # one that steps all the time is told of once
                log.warning(
                    "the wall clock has stepped by %+.1f s; it is adopted if it stays so for %d s",
                    step_ms / 1000,
                    CONFIRM_MS // 1000,
                )
            self._doubt = ahead_ms, running_ms
        elif running_ms - self._doubt[1] >= CONFIRM_MS:
            self._ahead_ms, self._doubt = ahead_ms, None
            log.warning("the wall clock's step of %+.1f s is adopted", step_ms / 1000)
