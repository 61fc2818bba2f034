"""Memory stays below what was said, and every call ends when it said."""

from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import STARTED


def memory_exceeded(log: Log) -> Iterator[Violation]:
    """A process held more than it said it would."""
    for each in log.history.memory:
        if each.used_bytes > each.bound_bytes:
            yield Violation(
                "memory",
                f"{each.process}: {each.what} is {each.used_bytes} bytes at {each.time_us}, and "
                f"bounded by {each.bound_bytes}",
            )


def late_calls(log: Log) -> Iterator[Violation]:
    """A call was not over by its deadline, and its process lived on."""
    ends: dict[str, list[int]] = defaultdict(list)
    for life in log.history.lives:
        if life.event != STARTED:
            ends[life.process].append(life.time_us)
    for each in log.history.calls:
        end_us = each.end_us
        if end_us is not None and end_us <= each.deadline_us:
            continue
        if end_us is None and log.history.end_us <= each.deadline_us:
            continue
        if any(each.start_us <= ended_us <= each.deadline_us for ended_us in ends[each.process]):
            continue
        took = "never ended" if end_us is None else f"ended {end_us - each.deadline_us} us late"
        yield Violation("late call", f"{each.process}: {each.what}, begun {each.start_us}, {took}")
