"""What can be waited for, and the loop that waits: it polls a topic, through outages.

A condition is made from the values that a user wrote, or that a template became, and looks at a
topic through a client of it. Sensors look in a worker, triggers in the triggerer; both look with
the same condition. A wrong value is a `ConfigError` when the condition is made, at the first
look: before it, templates are not rendered.

Nothing is open between two looks. The connection is read for each, so that a new token is taken. Of
every look-up that fails, also by an outage of a secrets backend or of its own API, Airflow says
that the connection is not defined. So that is an answer while the connection was never read, and an
outage afterwards.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from airflow_provider_memq.planning.topics import topic_state
from airflow_provider_memq.values import iso, parse_count, parse_offsets, parse_time_ms
from memq.core.ranges import OffsetRange
from memq.core.units import counted
from memq.errors import ConfigError, InvalidRequestError, MemqError
from memq.runtime.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from airflow._shared.logging.types import Logger

    from airflow_provider_memq.hooks.memq import MemqHook
    from airflow_provider_memq.planning.topics import TopicState
    from airflow_provider_memq.values import Offsets
    from memq.client.topic import TopicClient

OUTAGE_BACKOFF = Backoff(1.0, 60.0)
"""A broker that is restarted is back within about the base; an outage of hours costs little more
than one try a minute, and ends within one."""
PASSING = (MemqError, AirflowNotFoundException, AirflowRuntimeError)  # a look's, see `may_pass`
JITTER = 0.1  # of an interval, so that triggers which began together spread out


# -- what is waited for ---------------------------------------------------------------------


class WaitOutcome(NamedTuple):
    """What one look found.

    Attributes:
        done: the condition holds.
        value: where the topic stands, as plain JSON; the XCom of a sensor.
        note: how far it is, in words, for the log.
    """

    done: bool
    value: dict[str, Any]
    note: str


class Condition(ABC):
    """Something about a topic that will hold at some time.

    Args:
        topic: the topic.
        topic_id: of it; empty for whichever there is at the first look. Another one is a
            `TopicRecreatedError`: offsets and times of the one mean nothing in the other.

    Attributes:
        topic: the topic.
        topic_id: of it, from the first look on.
    """

    def __init__(self, topic: str, topic_id: str = "") -> None:
        self.topic = topic
        self.topic_id = topic_id

    @abstractmethod
    async def look(self, client: TopicClient) -> WaitOutcome:
        """Check whether it holds now.

        Args:
            client: of this topic id.

        Raises:
            MemqError: the cluster did not answer, or the condition can never hold.
        """

    async def _state(self, client: TopicClient) -> TopicState:
        state = await topic_state(client)
        self.topic_id = state.topic_id
        return state


class OffsetsReached(Condition):
    """Every read partition named has published all offsets before the one given."""

    def __init__(self, topic: str, offsets: Offsets, topic_id: str = "") -> None:
        super().__init__(topic, topic_id)
        self._targets = parse_offsets("offsets", offsets)
        if not self._targets:
            raise ConfigError('offsets names no read partition; write it like {"0": 5}')

    async def look(self, client: TopicClient) -> WaitOutcome:
        """Check whether all are reached; see `Condition`."""
        state = await self._state(client)
        check_partitions(state, self._targets)
        short = {p: end for p, end in self._targets.items() if state.ends[p] < end}
        reached = len(self._targets) - len(short)
        note = (
            f"{reached} of {counted(len(self._targets), 'read partition')} of {self.topic} reached"
        )
        if short:
            partition = min(short)
            note += f"; partition {partition} is at {state.ends[partition]} of {short[partition]}"
        return WaitOutcome(not short, state.to_json(), note)


class WatermarkPassed(Condition):
    """All that was received and acked before a time is published."""

    def __init__(self, topic: str, at: datetime | str, topic_id: str = "") -> None:
        super().__init__(topic, topic_id)
        self._at_ms = parse_time_ms("at", at)

    async def look(self, client: TopicClient) -> WaitOutcome:
        """Check whether the watermark passed the time; see `Condition`."""
        state = await self._state(client)
        note = (
            f"{self.topic} is stored through {iso(state.watermark_ms)}, awaited is "
            f"{iso(self._at_ms)}"
        )
        return WaitOutcome(state.watermark_ms >= self._at_ms, state.to_json(), note)


class NewData(Condition):
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
        topic_id: str = "",
    ) -> None:
        super().__init__(topic, topic_id)
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

    async def look(self, client: TopicClient) -> WaitOutcome:
        """Check whether there is enough; see `Condition`."""
        state = await self._state(client)
        check_partitions(state, self._since)
        for partition, end in state.ends.items():
            first = self._next.get(partition, self._since.get(partition, 0))
            start = max(first, state.starts[partition])
            async for batch in client.batches([OffsetRange(partition, start, end)]):
                self._counted["notifications"] += 1
                self._counted["bytes"] += batch.notification.size_bytes
                self._counted["records"] += batch.notification.records
                # After each: a look that fails half-way goes on from here.
                self._next[partition] = batch.offset + 1
        new = self._counted[self._unit]
        note = f"{new} of {self._least} {self._unit} are new in {self.topic}"
        return WaitOutcome(new >= self._least, state.to_json() | {"new": dict(self._counted)}, note)


class LagBelow(Condition):
    """A consumer group has at most so many Batches left to read."""

    def __init__(self, topic: str, group: str, max_lag: int | str = 0, topic_id: str = "") -> None:
        super().__init__(topic, topic_id)
        self._group = group
        self._max_lag = parse_count("max_lag", max_lag)

    async def look(self, client: TopicClient) -> WaitOutcome:
        """Check whether the group is near enough; see `Condition`."""
        # First the offsets of the group: it may go on meanwhile, and is then only nearer.
        committed = await client.committed(self._group)
        state = await self._state(client)
        # What retention removed is not left to read, for groups that committed before it.
        found = await client.lag({p: committed.get(p, 0) for p in state.ends})
        batches = sum(each.batches for each in found.values())
        records = sum(each.records for each in found.values())
        size_bytes = sum(each.size_bytes for each in found.values())
        # Not the seconds: they change with every look, and each new note is a line in the log.
        note = (
            f"group {self._group} has a lag of {counted(batches, 'Batch')} in {self.topic}: "
            f"{counted(records, 'record')}, {size_bytes} bytes"
        )
        if not committed:
            note += ", and has committed nothing yet"
        lags = {
            "lag": {str(p): each.batches for p, each in found.items()},
            "lag_records": {str(p): each.records for p, each in found.items()},
            "lag_bytes": {str(p): each.size_bytes for p, each in found.items()},
            "lag_seconds": {str(p): each.seconds for p, each in found.items()},
        }
        return WaitOutcome(batches <= self._max_lag, state.to_json() | lags, note)


class RangeDue(Condition):
    """A read partition has so many bytes since some offsets, or a time has come: the planner waits.

    Args:
        topic: the topic.
        since: first offset that counts, by read partition; from 0 for those not named.
        min_bytes: of one read partition.
        until_ms: the time, milliseconds since 1970 UTC.
        topic_id: as `Condition`.
    """

    def __init__(
        self, topic: str, since: Offsets, min_bytes: int, until_ms: int, topic_id: str = ""
    ) -> None:
        super().__init__(topic, topic_id)
        self._since = parse_offsets("since", since)
        self._least = parse_count("min_bytes", min_bytes)
        self._until_ms = parse_count("until_ms", until_ms)

    async def look(self, client: TopicClient) -> WaitOutcome:
        """Check whether a range is due; see `Condition`. The note is the same at each check, for
        the log.
        """
        state = await self._state(client)
        check_partitions(state, self._since)
        found = await client.lag({p: self._since.get(p, 0) for p in state.ends})
        most = max((each.size_bytes for each in found.values()), default=0)
        done = most >= self._least or time.time() * 1000 >= self._until_ms
        note = f"the next ranges of {self.topic} wait for more until {iso(self._until_ms)}"
        return WaitOutcome(done, state.to_json(), note)


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


# -- how it is waited for -------------------------------------------------------------------


def interval_s(poll_interval_s: float, randomness: Callable[[], float]) -> float:
    """Seconds to the next look, a little more or less than asked for."""
    return poll_interval_s * (1.0 - JITTER + 2.0 * JITTER * randomness())


def may_pass(error: Exception, *, known: bool) -> bool:
    """Return whether an error may go away by itself: an outage of brokers, or of what Airflow asks.

    Args:
        error: of a look.
        known: an earlier look has read the connection.
    """
    if isinstance(error, MemqError):
        return error.retriable
    return known or not isinstance(error, AirflowNotFoundException)


async def wait_until(
    hook: MemqHook,
    condition: Condition,
    *,
    poll_interval_s: float,
    log: Logger,
    sleep: Callable[[float], Awaitable[None]],
    randomness: Callable[[], float],
) -> WaitOutcome:
    """Look until the condition holds.

    A look opens a connection and closes it. While brokers do not answer, the waits grow as
    `OUTAGE_BACKOFF` says; the log says when that began and when it ended. Each look tries for the
    request timeout of the connection, and this loop has no deadline of its own.

    Args:
        hook: names the connection.
        condition: what is waited for.
        poll_interval_s: seconds between two looks.
        log: of the task.
        sleep: waits for seconds.
        randomness: evenly spread over [0, 1).

    Raises:
        MemqError: what waiting cannot mend: a refused token, an unknown topic, a wrong value.
        AirflowNotFoundException: there is no such connection, and was none before.
    """
    known = False
    failures = 0
    last_note = ""
    while True:
        try:
            async with await hook.atopic(condition.topic, condition.topic_id) as client:
                outcome = await condition.look(client)
        except PASSING as exc:
            if not may_pass(exc, known=known):
                raise
            known = known or isinstance(exc, MemqError)  # of a broker that the connection named
            delay_s = OUTAGE_BACKOFF.equal_jitter_s(failures, randomness)
            failures += 1
            log.warning("no answer (%d in a row), next try in %.1f s: %s", failures, delay_s, exc)
        else:
            known = True
            if failures:
                log.info("brokers answer again after %s", counted(failures, "failure"))
            failures = 0
            if outcome.note != last_note:
                log.info("%s", outcome.note)
            last_note = outcome.note
            if outcome.done:
                return outcome
            delay_s = interval_s(poll_interval_s, randomness)
        await sleep(delay_s)
