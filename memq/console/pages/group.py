"""One group: its members, where it stands, how its lag went, and a reset in two steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from memq.client.resets import How
from memq.console.graph import graph
from memq.core.units import parse_time
from memq.errors import InvalidRequestError, UnknownGroupError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.client.lag import GroupLag
    from memq.client.resets import PlannedReset
    from memq.console.graph import Graph
    from memq.console.visit import Visit


@dataclass(frozen=True)
class OneGroup:
    """See above.

    Attributes:
        lag: where it stands, and its members.
        records: its lag of six hours, in LogMessages.
        seconds: the same, in seconds.
        is_kept: the broker keeps the history of this group.
    """

    lag: GroupLag
    records: Graph
    seconds: Graph
    is_kept: bool


@dataclass(frozen=True)
class Reset:
    """A reset that was planned, or made.

    Attributes:
        group, topic: which.
        asked: fields of the form, to send again.
        planned: where it goes on.
        done: it was made.
    """

    group: str
    topic: str
    asked: Mapping[str, str]
    planned: Sequence[PlannedReset]
    done: bool


async def page(visit: Visit) -> OneGroup:
    """Look at a group of a topic."""
    group, topic = visit.path["group"], visit.path["topic"]
    found = await visit.admin.lag(topic, group)
    if not found:
        raise UnknownGroupError(f"no group {group[:250]!r} reads topic {topic[:250]!r}")
    history = await visit.admin.lag_history(group, topic)
    now_s = visit.runtime.wall_ms() // 1000
    ages_s = [
        each // 1000 if known >= 0 else -1
        for each, known in zip(history.ages_ms, history.records, strict=True)
    ]
    return OneGroup(
        found[0],
        graph(history.times_s, history.records, now_s),
        graph(history.times_s, ages_s, now_s),
        history.kept,
    )


async def reset(visit: Visit) -> Reset:
    """Plan a reset; make it where the form says so, exactly as it was shown.

    Raises:
        InvalidRequestError: the form says no target; or the group has live members.
        MemqError: as `AsyncAdminClient.reset_offsets`.
    """
    group, topic, form = visit.path["group"], visit.path["topic"], visit.query
    how, at = form.get("to", ""), None
    if how not in get_args(How):
        raise InvalidRequestError(f"to = {how[:50]!r}: choose one of {', '.join(get_args(How))}")
    if how == "datetime":
        now = datetime.fromtimestamp(visit.runtime.wall_ms() / 1000, UTC)
        at = parse_time(form.get("value", "").strip(), now)
    number = _number(form.get("value", "")) if how in ("offset", "shift") else 0
    partition = visit.number("only")
    only = () if partition is None else (partition,)
    planned = await visit.admin.plan_reset(group, topic, (how, number), only, at=at)  # type: ignore[arg-type] # it is one of them
    asked = {name: form.get(name, "") for name in ("to", "value", "only")}
    done = form.get("execute") == "yes"
    if done:
        shown = _offsets(form.get("shown", ""))
        planned = [
            each._replace(new_offset=shown.get(each.partition, each.new_offset)) for each in planned
        ]
        offsets = {each.partition: each.new_offset for each in planned}
        await visit.admin.reset_offsets(group, topic, offsets)
    asked["shown"] = ",".join(f"{each.partition}:{each.new_offset}" for each in planned)
    return Reset(group, topic, asked, planned, done)


def _number(text: str) -> int:
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise InvalidRequestError(f"value = {text[:50]!r}: give a number, such as 1200 or -10")
    return int(text)


def _offsets(text: str) -> dict[int, int]:
    """Read the offsets that the plan showed: what was seen is what is done."""
    pairs = [each.partition(":") for each in text.split(",") if each]
    return {_number(partition): _number(offset) for partition, _, offset in pairs}
