"""What the watermark says is true: nothing older comes after it; it goes back only with a clock.

It does so where the clock of its broker is set back, and where it comes from a broker whose clock
was set forward to one whose clock was not.
"""

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

import numpy as np

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.offsets import by_key, gone_back
from tests.simulation.checkers.violation import Violation


def untrue_watermarks(log: Log) -> Iterator[Violation]:
    """A Batch that was sealed before a watermark came behind the end that was seen after it."""
    cluster = log.history.clocks_differ_ms > 0
    steps = [step for step in log.history.steps if step.by_ms < 0 or cluster]
    offsets, batches = by_key(log.history.offsets), by_key(log.history.batches)
    for key, marks in by_key(log.history.watermarks).items():
        for most, each in gone_back(marks, attrgetter("stored_through_ms")):
            set_back_ms = sum(abs(step.by_ms) for step in steps if step.time_us <= each.end_us)
            if each.stored_through_ms < most - set_back_ms:
                text = f"watermark of {key} went from {most} to {each.stored_through_ms}"
                yield Violation("watermark", text)
        seen = sorted((each.start_us, each.end) for each in offsets.get(key, ()))
        begun = [start_us for start_us, _ in seen]
        found = batches.get(key, ())
        offset = np.array([batch.offset for batch in found], np.int64)
        stamps = np.array([batch.sealed_ms for batch in found], np.int64)
        order = np.argsort(offset)
        offset, stamps = offset[order], stamps[order]
        there = offset.tolist()
        least = np.minimum.accumulate(stamps[::-1])[::-1]
        for each in marks:
            at = bisect_left(begun, each.end_us)
            if at == len(seen):
                continue
            behind = bisect_left(there, seen[at][1])
            if behind < len(least) and least[behind] < each.stored_through_ms:
                yield Violation(
                    "watermark",
                    f"{key} was stored through {each.stored_through_ms} up to {seen[at][1]}, and "
                    f"behind it a Batch of {least[behind]} came",
                )
