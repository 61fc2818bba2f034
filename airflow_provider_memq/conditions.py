"""What can be waited for, apart from how one waits.

A condition is made from the values that a user wrote, or that a template became, and looks at a
topic through a `Session`. Sensors look in a worker, triggers in the triggerer; both look with the
same condition. A value that makes no sense is a `ConfigError` at the first look: before it,
templates are not rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_provider_memq.values import iso, parse_count, parse_offsets, parse_time_ms
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_memq.session import Session, TopicState
    from airflow_provider_memq.values import Offsets


class Outcome(NamedTuple):
    """What one look found.

    Attributes:
        done: the condition holds.
        value: where the topic stands, as plain JSON; the XCom of a sensor.
        note: how far it is, in words, for the log.
    """

    done: bool
    value: dict[str, Any]
    note: str


class Condition(Protocol):
    """Something about a topic that will hold at some time."""

    async def look(self, session: Session) -> Outcome:
        """Whether it holds now.

        Raises:
            MemqError: the cluster did not answer, or the condition makes no sense.
        """


class _OfTopic:
    """What all conditions have: a topic, of one incarnation from the first look on.

    Args:
        topic: the topic.
        incarnation: of it; empty for whichever there is at the first look. Another one is a
            `TopicRecreatedError`: offsets and times of the one mean nothing in the other.
    """

    def __init__(self, topic: str, incarnation: str = "") -> None:
        self._topic = topic
        self._incarnation = incarnation

    async def _state(self, session: Session) -> TopicState:
        state = await session.state(self._topic, self._incarnation)
        self._incarnation = state.incarnation
        return state


class OffsetsReached(_OfTopic):
    """Every read partition named has published all offsets before the one given."""

    def __init__(self, topic: str, offsets: Offsets, incarnation: str = "") -> None:
        super().__init__(topic, incarnation)
        self._targets = parse_offsets("offsets", offsets)
        if not self._targets:
            raise ConfigError('offsets names no read partition; write it like {"0": 5}')

    async def look(self, session: Session) -> Outcome:
        """Whether all are reached; see `Condition`."""
        state = await self._state(session)
        check_partitions(state, self._targets)
        short = {p: end for p, end in self._targets.items() if state.ends[p] < end}
        reached = len(self._targets) - len(short)
        note = f"{reached} of {len(self._targets)} read partitions of {self._topic} reached"
        if short:
            partition = min(short)
            note += f"; partition {partition} is at {state.ends[partition]} of {short[partition]}"
        return Outcome(not short, state.as_json(), note)


class WatermarkPassed(_OfTopic):
    """All that was received and acked before a time is published."""

    def __init__(self, topic: str, at: datetime | str, incarnation: str = "") -> None:
        super().__init__(topic, incarnation)
        self._at_ms = parse_time_ms("at", at)

    async def look(self, session: Session) -> Outcome:
        """Whether the watermark passed the time; see `Condition`."""
        state = await self._state(session)
        note = (
            f"{self._topic} is stored through {iso(state.watermark_ms)}, awaited is "
            f"{iso(self._at_ms)}"
        )
        return Outcome(state.watermark_ms >= self._at_ms, state.as_json(), note)


class NewData(_OfTopic):
    """So much was published since some offsets: notifications, bytes or records.

    What was counted is kept, so that a look reads only the notifications since the last one.
    """

    def __init__(
        self,
        topic: str,
        since: Offsets,
        *,
        min_notifications: int | str | None = None,
        min_bytes: int | str | None = None,
        min_records: int | str | None = None,
        incarnation: str = "",
    ) -> None:
        super().__init__(topic, incarnation)
        given = {"notifications": min_notifications, "bytes": min_bytes, "records": min_records}
        asked = [(unit, least) for unit, least in given.items() if least is not None]
        if len(asked) != 1:
            raise ConfigError(
                "give one of min_notifications, min_bytes and min_records; two sensors wait for two"
            )
        self._unit, least = asked[0]
        self._least = parse_count(f"min_{self._unit}", least)
        self._since = parse_offsets("since", since)
        self._counted = {"notifications": 0, "bytes": 0, "records": 0}
        self._next: dict[int, int] = {}

    async def look(self, session: Session) -> Outcome:
        """Whether there is enough; see `Condition`."""
        state = await self._state(session)
        check_partitions(state, self._since)
        for partition, end in state.ends.items():
            first = self._next.get(partition, self._since.get(partition, 0))
            await self._count(session, partition, max(first, state.starts[partition]), end)
        seen = self._counted[self._unit]
        note = f"{seen} of {self._least} {self._unit} are new in {self._topic}"
        return Outcome(seen >= self._least, state.as_json() | {"new": dict(self._counted)}, note)

    async def _count(self, session: Session, partition: int, start: int, end: int) -> None:
        if start >= end:
            return
        async for page in session.pages(self._topic, partition, start, end):
            for found in page:
                self._counted["notifications"] += 1
                self._counted["bytes"] += found.notification.size_bytes
                self._counted["records"] += found.notification.records
            # After each page: a look that fails half-way goes on from here.
            self._next[partition] = page[-1].offset + 1 if page else end


class LagBelow(_OfTopic):
    """A consumer group has at most so many Batches left to read."""

    def __init__(
        self, topic: str, group: str, max_lag: int | str = 0, incarnation: str = ""
    ) -> None:
        super().__init__(topic, incarnation)
        self._group = group
        self._max_lag = parse_count("max_lag", max_lag)

    async def look(self, session: Session) -> Outcome:
        """Whether the group is near enough; see `Condition`."""
        # First the offsets of the group: it may go on meanwhile, and is then only nearer.
        committed = await session.committed(self._group, self._topic, self._incarnation)
        state = await self._state(session)
        # What retention removed is not left to read, for whoever committed before it.
        starts = {p: max(start, committed.get(p, 0)) for p, start in state.starts.items()}
        lag = {p: end - starts[p] for p, end in state.ends.items()}
        total = sum(lag.values())
        note = f"group {self._group} is {total} Batches behind in {self._topic}"
        if not committed:
            note += ", and has committed nothing yet"
        value = state.as_json() | {"lag": {str(p): each for p, each in lag.items()}}
        return Outcome(total <= self._max_lag, value, note)


def check_partitions(state: TopicState, named: Mapping[int, int]) -> None:
    """Refuse read partitions that a topic does not have: nothing would ever be published there.

    Raises:
        InvalidRequestError: naming the first of them.
    """
    unknown = sorted(set(named) - set(state.ends))
    if unknown:
        raise InvalidRequestError(
            f"topic {state.topic!r} has no read partition {unknown[0]}; it has 0 to "
            f"{len(state.ends) - 1}"
        )
