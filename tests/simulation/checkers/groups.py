"""At one time a read partition is one member's, by what the members know."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import CRASHED, GRANTED, RELEASED, RENEWED, History

_NEVER = float("inf")


class _Held(NamedTuple):
    """From when to when a member held a partition, by its own knowledge."""

    start_us: float
    end_us: float
    process: str
    member: str


def shared_partitions(log: Log) -> Iterator[Violation]:
    """Two members of a group were told to hold one read partition at the same time.

    A member holds it from when it is granted until it releases it, crashes, or its session is over
    by its own reckoning.
    """
    for key, held in _held(log.history).items():
        last: _Held | None = None
        for each in sorted(held):
            if last is not None and each.start_us < last.end_us:
                if (each.process, each.member) != (last.process, last.member):
                    until = "for ever" if last.end_us == _NEVER else f"until {last.end_us}"
                    yield Violation(
                        "partition shared",
                        f"{key}: {last.member} holds it {until}, and {each.member} from "
                        f"{each.start_us}",
                    )
                if each.end_us <= last.end_us:
                    continue
            last = each


def _held(history: History) -> dict[tuple, list[_Held]]:
    """All stretches of holding, by group, topic, topic id and partition."""
    crashes: dict[str, list[int]] = defaultdict(list)
    for life in history.lives:
        if life.event == CRASHED:
            crashes[life.process].append(life.time_us)
    events = [
        (each.time_us, number, each)
        for number, each in enumerate(history.assignments)
        if each.group and each.event in (GRANTED, RENEWED, RELEASED)
    ]
    stretches: dict[tuple, list[_Held]] = defaultdict(list)
    open_ones: dict[tuple, _Held] = {}
    for time_us, _, each in sorted(events):
        until_us = _NEVER if each.until_us is None else each.until_us
        for partition in each.partitions:
            key = each.group, each.topic, each.topic_id, partition
            whose = each.process, each.member, key
            held = open_ones.pop(whose, None)
            if each.event == RELEASED:
                if held is not None:
                    stretches[key].append(held._replace(end_us=min(held.end_us, time_us)))
                continue
            if held is not None and time_us <= held.end_us:
                open_ones[whose] = held._replace(end_us=max(until_us, held.end_us))
                continue
            if held is not None:
                stretches[key].append(held)
            open_ones[whose] = _Held(time_us, until_us, each.process, each.member)
    for (_, _, key), held in open_ones.items():
        stretches[key].append(held)
    return {
        key: [_until_crash(each, crashes[each.process]) for each in held]
        for key, held in stretches.items()
    }


def _until_crash(held: _Held, crashes: list[int]) -> _Held:
    end_us = min((each for each in crashes if each >= held.start_us), default=_NEVER)
    return held._replace(end_us=min(held.end_us, end_us))
