"""The trigger that wakes DAGs when something was published to a topic.

Theory of operation
-------------------
An asset event is a wake-up and nothing more. Airflow merges events, drops them for paused DAGs and
may lose one when a triggerer dies; so what there is to do is never taken from an event, but planned
by the DAG that is woken (`MemqPlanRangesOperator`). All that the watcher must do is fire an event
soon after something was published.

It looks at the ends of the read partitions. When they moved, it waits until they rest, so that a
burst is one event, but no longer than `max_linger`; then it fires. What was announced is kept in
the asset's state store, so that a restarted triggerer does not announce it again. It is stored
once no event was fired for `CONFIRM_S`, not with the event: Airflow stores the two apart, and a
triggerer that is killed in between must announce twice rather than never.

It never raises: Airflow would restart a watcher that failed every 2 s, forever, and show it
nowhere. Instead it backs off up to a minute, and says what is wrong in `last_error`.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from airflow.sdk import conf
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.settings import DEFAULT_CONN_ID, explain
from airflow_provider_memq.waiting import OUTAGE_BACKOFF, interval_s
from memq.core.units import counted
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEFAULT_POLL_INTERVAL_S = 5.0
DEFAULT_LINGER_S = 1.0
DEFAULT_MAX_LINGER_S = 10.0
CONFIRM_S = 15.0  # Airflow stores an event about 1 s after it was handed over
REFRESH_S = 60.0  # how old `last_poll` may get while nothing happens: each write is a request

Ends = dict[int, int]


class TopicEnds(NamedTuple):
    """TopicId of a topic, and one past the last offset of each read partition."""

    topic_id: str
    ends: Ends


class MemqWatchTrigger(BaseEventTrigger):
    """Fires when something was published to a topic, once for a burst. For `AssetWatcher`.

    Its event is `{"topic": "clicks", "topic_id": "0123456789abcdef", "offsets": {"0": 12},
    "new": 3}`: the ends of the read partitions, and how many notifications are new since the last
    event. In the asset's state store it keeps `position` (what it has announced) and of which
    `topic_id` of the topic that is, `last_poll` and `last_error` (empty when all is well).

    Args:
        topic: the topic.
        memq_conn_id: connection to the brokers.
        watch_name: must differ between assets: Airflow runs equal triggers as one, and such a one
            has no state. `watched_asset` gives it the asset's name.
        poll_interval: seconds between looks; None for `[memq] poll_interval`.
        linger: seconds that the topic must rest before it fires.
        max_linger: seconds after which it fires though the topic does not rest.
    """

    def __init__(
        self,
        *,
        topic: str,
        memq_conn_id: str = DEFAULT_CONN_ID,
        watch_name: str = "",
        poll_interval: float | None = None,
        linger: float = DEFAULT_LINGER_S,
        max_linger: float = DEFAULT_MAX_LINGER_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topic = topic
        self.memq_conn_id = memq_conn_id
        self.watch_name = watch_name
        self.poll_interval = poll_interval
        self.linger = linger
        self.max_linger = max_linger
        self._stored: dict[str, object] = {}
        self._polled_s = float("-inf")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which the triggerer makes it again."""
        names = ("topic", "memq_conn_id", "watch_name", "poll_interval", "linger", "max_linger")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until it is cancelled."""
        from memq.runtime.system import SYSTEM  # noqa: PLC0415 - loads the client

        poll_s = self.poll_interval
        if poll_s is None:
            poll_s = conf.getfloat("memq", "poll_interval", fallback=DEFAULT_POLL_INTERVAL_S)
        announced, fired_s, failures = None, float("-inf"), 0
        while True:
            try:
                if announced is None:
                    announced = await self._load()
                seen = await self._rested(announced)
                if new := news(announced, seen):
                    announced, fired_s = seen, time.monotonic()
                    yield self._event(seen, new)
                elif time.monotonic() - fired_s >= CONFIRM_S:
                    # The topic id after it: in between, all would be announced again.
                    await self._save(position=_to_json(announced.ends))
                    await self._save(topic_id=announced.topic_id)
                failures = 0
                await self._save(last_error="", last_poll=_now())
                delay_s = interval_s(poll_s, SYSTEM.random)
            except Exception as exc:  # noqa: BLE001 - see the module: raising would be worse
                delay_s = OUTAGE_BACKOFF.equal_jitter_s(failures, SYSTEM.random)
                failures += 1
                await self._complain(exc, failures, delay_s)
            await asyncio.sleep(delay_s)

    def _event(self, seen: TopicEnds, new: int) -> TriggerEvent:
        payload = {
            "topic": self.topic,
            "topic_id": seen.topic_id,
            "offsets": _to_json(seen.ends),
            "new": new,
        }
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _rested(self, announced: TopicEnds) -> TopicEnds:
        """Look at the ends; once more, until they rest, if they differ from what was announced."""
        seen = await self._look()
        if not news(announced, seen):
            return seen
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self.max_linger:
            await asyncio.sleep(self.linger)
            before, seen = seen, await self._look()
            if seen == before:
                break
        return seen

    async def _look(self) -> TopicEnds:
        async with await MemqHook(self.memq_conn_id).atopic(self.topic) as client:
            offsets = await client.offsets()
            return TopicEnds(client.topic_id, {each.partition: each.end for each in offsets})

    # -- the asset's state store ------------------------------------------------------------

    async def _load(self) -> TopicEnds:
        """Read what was announced before this triggerer."""
        store = self.asset_state_store
        if store is None:
            return TopicEnds("", {})
        try:
            position, topic_id = await store.aget("position"), await store.aget("topic_id")
        except ValueError as exc:  # the trigger serves several assets, or none
            self.log.warning("no state is kept: %s; give each asset its own watch_name", exc)
            self.asset_state_store = None
            return TopicEnds("", {})
        self._stored |= {"position": position, "topic_id": topic_id}
        known = topic_id if isinstance(topic_id, str) else ""
        return TopicEnds(known, _from_json(position))

    async def _save(self, **values: Any) -> None:
        """Store what differs from what is stored; a time alone once a minute."""
        if self.asset_state_store is None:
            return
        for key, value in values.items():
            old = self._stored.get(key)
            is_due = key != "last_poll" or time.monotonic() - self._polled_s >= REFRESH_S
            if value != old and is_due:
                await self.asset_state_store.aset(key, value)
                self._stored[key] = value
                self._polled_s = time.monotonic() if key == "last_poll" else self._polled_s

    async def _complain(self, error: Exception, failures: int, delay_s: float) -> None:
        text = explain(self.memq_conn_id, error) if isinstance(error, MemqError) else repr(error)
        self.log.warning(
            "%s in a row, next try in %.1f s: %s", counted(failures, "failure"), delay_s, text
        )
        try:
            await self._save(last_error=f"{_now()} {text}")
        except Exception as exc:  # noqa: BLE001 - Airflow's API is what fails; it was logged
            self.log.warning("last_error could not be stored: %r", exc)


def news(announced: TopicEnds, now: TopicEnds) -> int:
    """Count notifications that were not announced. Of a topic that was recreated these are all, and
    one if it has none: that it was recreated is news, too.
    """
    if announced.topic_id not in ("", now.topic_id):
        return max(1, sum(now.ends.values()))
    return sum(max(0, end - announced.ends.get(p, 0)) for p, end in now.ends.items())


def _to_json(ends: Ends) -> dict[str, int]:
    return {str(partition): end for partition, end in sorted(ends.items())}


def _from_json(stored: object) -> Ends:
    """Decode what `_to_json` made; nothing for what a person broke: then all is announced again."""
    try:
        return msgspec.convert(stored, Ends, strict=False, str_keys=True)
    except msgspec.ValidationError:
        return {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
