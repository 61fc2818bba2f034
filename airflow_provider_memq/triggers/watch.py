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
`CONFIRM_S` after the event was handed over, not with it: Airflow stores the two apart, and a
triggerer that is killed in between must announce twice rather than never. While events follow each
other sooner than that, one at a time is waited for: `position` is half a minute old at most.

It never raises: Airflow would restart a watcher that failed every 2 s, forever, and show it
nowhere. Instead it backs off up to a minute, and says what is wrong in `last_error`.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import conf
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.settings import DEFAULT_CONN_ID, explain
from airflow_provider_memq.waiting import OUTAGE_BACKOFF, interval_s
from memq.core.units import counted
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DEFAULT_POLL_INTERVAL_S = 5.0
DEFAULT_LINGER_S = 1.0
DEFAULT_MAX_LINGER_S = 10.0
CONFIRM_S = 15.0  # Airflow stores an event about 1 s after it was handed over
REFRESH_S = 60.0  # how old `last_poll` may get while nothing happens: each write is a request

Ends = dict[int, int]


class TopicEnds(NamedTuple):
    """Incarnation of a topic, and one past the last offset of each read partition."""

    incarnation: str
    ends: Ends


class MemqWatchTrigger(BaseEventTrigger):
    """Fires when something was published to a topic, once for a burst. For `AssetWatcher`.

    Its event is `{"topic": "clicks", "incarnation": "0123456789abcdef", "offsets": {"0": 12},
    "new": 3}`: the ends of the read partitions, and how many notifications are new since the last
    event. In the asset's state store it keeps `position` (what it has announced) and of which
    `incarnation` of the topic that is, `head` (what it has seen), `last_poll` and `last_error`
    (empty when all is well).

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
        watch = _Watch(time.monotonic)
        failures = 0
        while True:
            try:
                await self._load(watch)
                seen = await self._settled(watch)
                if seen is not None:
                    new = watch.announce(seen)
                    payload = {
                        "topic": self.topic,
                        "incarnation": seen.incarnation,
                        "offsets": _to_json(seen.ends),
                        "new": new,
                    }
                    yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                failures = 0
                await self._save(watch)
                delay_s = interval_s(poll_s, SYSTEM.random)
            except Exception as exc:  # noqa: BLE001 - see the module: raising would be worse
                delay_s = OUTAGE_BACKOFF.equal_jitter_s(failures, SYSTEM.random)
                failures += 1
                await self._complain(watch, exc, failures, delay_s)
            await asyncio.sleep(delay_s)

    async def _settled(self, watch: _Watch) -> TopicEnds | None:
        """The ends once they rest, if they differ from what was announced."""
        seen = await self._look()
        watch.saw(seen)
        if not watch.news(seen):
            return None
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self.max_linger:
            await asyncio.sleep(self.linger)
            before, seen = seen, await self._look()
            watch.saw(seen)
            if seen == before:
                break
        return seen

    async def _look(self) -> TopicEnds:
        async with await MemqHook(self.memq_conn_id).atopic(self.topic) as client:
            offsets = await client.offsets()
            return TopicEnds(client.incarnation, {each.partition: each.end for each in offsets})

    # -- the asset's state store ------------------------------------------------------------

    async def _load(self, watch: _Watch) -> None:
        """What was announced before this triggerer."""
        if watch.loaded:
            return
        try:
            store = self.asset_state_store
            stored = None if store is None else await store.aget("position")
            known = None if store is None else await store.aget("incarnation")
        except ValueError as exc:  # the trigger serves several assets, or none
            self.log.warning("no state is kept: %s; give each asset its own watch_name", exc)
            self.asset_state_store = None
            stored = known = None
        watch.load(TopicEnds(known if isinstance(known, str) else "", _from_json(stored)))

    async def _save(self, watch: _Watch) -> None:
        """Store what changed."""
        if self.asset_state_store is None:
            return
        for key, value in watch.to_store(_now()).items():
            await self.asset_state_store.aset(key, value)
        watch.stored()

    async def _complain(
        self, watch: _Watch, error: Exception, failures: int, delay_s: float
    ) -> None:
        text = explain(self.memq_conn_id, error) if isinstance(error, MemqError) else repr(error)
        self.log.warning(
            "%s in a row, next try in %.1f s: %s", counted(failures, "failure"), delay_s, text
        )
        if self.asset_state_store is None:
            return
        watch.complained()
        try:
            await self.asset_state_store.aset("last_error", f"{_now()} {text}")
        except Exception as exc:  # noqa: BLE001 - Airflow's API is what fails; it was logged
            self.log.warning("last_error could not be stored: %r", exc)


class _Watch:
    """What a watcher knows: what it saw, what it announced, what of that is stored."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._announced = TopicEnds("", {})
        self._confirmed = self._announced
        self._awaited: TopicEnds | None = None  # is confirmed once it is `CONFIRM_S` old
        self._awaited_s = 0.0
        self._head = TopicEnds("", {})
        self._stored: dict[str, object] = {}
        self._stored_s = float("-inf")
        self._pending: dict[str, Any] = {}
        self.loaded = False

    def __repr__(self) -> str:
        return f"<_Watch announced {self._announced}, head {self._head}>"

    def load(self, announced: TopicEnds) -> None:
        """Begin with what an earlier triggerer announced."""
        self._announced = self._confirmed = announced
        self._stored = {
            "position": _to_json(announced.ends),
            "incarnation": announced.incarnation,
        }
        self.loaded = True

    def saw(self, ends: TopicEnds) -> None:
        """Take note of what there is."""
        self._head = ends

    def news(self, now: TopicEnds) -> int:
        """Notifications that were not announced. Of a topic that was recreated these are all, and
        one if it has none: that it was recreated is news, too.
        """
        known = self._announced
        if known.incarnation not in ("", now.incarnation):
            return max(1, sum(now.ends.values()))
        return sum(max(0, end - known.ends.get(p, 0)) for p, end in now.ends.items())

    def announce(self, ends: TopicEnds) -> int:
        """Take note that an event is fired; returns how many notifications are new in it."""
        new = self.news(ends)
        if self._awaited is None:
            self._awaited, self._awaited_s = ends, self._clock()
        self._announced = ends
        return new

    def to_store(self, now: str) -> dict[str, Any]:
        """What should be written to the state store now, by key."""
        if self._awaited is not None and self._clock() - self._awaited_s >= CONFIRM_S:
            self._confirmed, self._awaited_s = self._awaited, self._clock()
            self._awaited = None if self._confirmed == self._announced else self._announced
        wanted: dict[str, Any] = {
            "head": _to_json(self._head.ends),
            "last_error": "",
            "position": _to_json(self._confirmed.ends),
            # After it: where the second is not written any more, all is announced again.
            "incarnation": self._confirmed.incarnation,
        }
        changed = {key: value for key, value in wanted.items() if self._stored.get(key) != value}
        if changed or self._clock() - self._stored_s >= REFRESH_S:
            changed["last_poll"] = now
        self._pending = changed
        return changed

    def complained(self) -> None:
        """Take note that an error is in the store, to be cleared when all is well again."""
        self._stored.pop("last_error", None)

    def stored(self) -> None:
        """Take note that it was written."""
        if self._pending:
            self._stored_s = self._clock()
        self._stored |= self._pending


def _to_json(ends: Ends) -> dict[str, int]:
    return {str(partition): end for partition, end in sorted(ends.items())}


def _from_json(stored: object) -> Ends:
    """What `_to_json` made; nothing for what a person broke: then all is announced again."""
    if not isinstance(stored, dict):
        return {}
    return {
        int(partition): end
        for partition, end in stored.items()
        if str(partition).isdecimal() and isinstance(end, int)
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
