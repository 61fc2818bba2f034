"""When the faults have stopped and some time has passed, everything works."""

from collections.abc import Iterator

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import OK

UNDER_WAY_US = 20_000_000  # what was begun so shortly before the end of the recording may be open


def failures_in_quiet(log: Log) -> Iterator[Violation]:
    """Something that was begun after the faults had stopped did not succeed."""
    if not log.history.quiet:
        return
    settled_us = max(each.settled_us for each in log.history.quiet)
    history = log.history
    for kind in (
        history.sends,
        history.polls,
        history.offsets,
        history.watermarks,
        history.commits,
        history.committed,
        history.audits,
        history.topics,
    ):
        for each in kind:
            if each.end_us is None and each.start_us > history.end_us - UNDER_WAY_US:
                continue
            if each.start_us >= settled_us and each.outcome != OK:
                name = type(each).__name__.lower()
                text = f"{name} of {each.process} at {each.start_us} on {each.topic}: "
                yield Violation("not live", text + each.outcome)
