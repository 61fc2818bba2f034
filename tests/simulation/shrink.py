"""Make a plan that fails smaller, as long as it fails.

What is left out is tried in halves, quarters and at last one by one, so that few runs are needed.
It counts as the same failure when the first words of a violation are the same; a smaller plan that
fails in another way is another finding.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.plan import Plan
    from tests.simulation.run import Result

MAX_RUNS = 120  # a few tenths of a second each

PARTS = ("deeds", "readers", "producers", "topics")


def kind_of(violation: str) -> str:
    """What a violation says, without names, numbers and times."""
    return " ".join(re.sub(r"[^\sa-zA-Z]*\d\S*|'[^']*'", "", violation).split()[:6])


def shrink(result: Result, run: Callable[[Plan], Result], *, most: int = MAX_RUNS) -> Result:
    """The smallest failing run that is found.

    Args:
        result: a run with violations.
        run: carries out a plan.
        most: how many runs may be tried.
    """
    kinds = {kind_of(violation) for violation in result.violations}
    left = [most]

    def fails(plan: Plan) -> Result | None:
        if left[0] <= 0:
            return None
        left[0] -= 1
        tried = run(plan)
        found = {kind_of(violation) for violation in tried.violations}
        return tried if found & kinds else None

    smaller = True
    while smaller and left[0] > 0:
        smaller = False
        for part in PARTS:
            for kept in _fewer(getattr(result.plan, part)):
                tried = fails(_with(result.plan, part, kept))
                if tried is not None:
                    result, smaller = tried, True
                    break
    return result


def _fewer(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The parts without some of them, the most left out first."""
    count, found = len(parts), []
    size = count
    while size >= 1:
        found += [(*parts[:at], *parts[at + size :]) for at in range(0, count, size)]
        size //= 2
    return found


def _with(plan: Plan, part: str, kept: tuple[Any, ...]) -> Plan:
    if part == "topics":
        names = {topic.name for topic in kept}
        rest = {
            other: tuple(each for each in getattr(plan, other) if each.topic in names)
            for other in ("producers", "readers")
        }
        deeds = tuple(d for d in plan.deeds if not d.who.startswith("t") or d.who in names)
        return msgspec.structs.replace(plan, topics=kept, deeds=deeds, **rest)
    if part in ("producers", "readers"):
        names = {each.name for each in kept}
        gone = {each.name for each in getattr(plan, part)} - names
        deeds = tuple(deed for deed in plan.deeds if deed.who not in gone)
        return msgspec.structs.replace(plan, deeds=deeds, **{part: kept})
    return msgspec.structs.replace(plan, **{part: kept})
