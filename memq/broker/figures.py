"""Figures of topics for operators: rates, what is retained, how far groups are, lately and now.

Theory of operation
-------------------
Every `SAMPLE_S` all topics are looked at, one after the other. So a list of all topics is answered
from memory, and shows a state of the last seconds. Counts come from `LagCounter`, which keeps what
it has counted: a look costs what is new. A look that takes long makes the next one wait longer, so
that looking takes a twentieth of the time, once the counts are kept.

Of each group the lag of the last six hours is kept, for up to `MAX_HISTORIES` groups: the first
that are met have it until they are gone. What is kept is lost with the broker, and does not move
with the coordination of a topic.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.wire import messages as m
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memq.broker.context import BrokerContext
    from memq.broker.hosted_topic import HostedTopic
    from memq.broker.lag import LagCounter
    from memq.broker.topics import Topics
    from memq.core.access.rules import Access
    from memq.core.governor.topics import Topic
    from memq.core.group import GroupCoordinator

log = logging.getLogger(__name__)

SAMPLE_S = 10.0
REST, MAX_REST_S = 19, 60.0  # times as long as a look took the next one is waited for; up to that
KEPT = 2_160  # looks of a group: six hours
MAX_HISTORIES = 250  # groups and topics; each takes up to 52 KB, all of them 13 MB
MAX_LISTED = 1_000  # groups of a topic in an answer: its size is bounded
MAX_GROUPS = 10_000  # groups and topics that are looked at; the lag of others is unknown


class _Look(NamedTuple):
    """What a look has found of a topic: when, what was published since the start, and the rest.

    `committed` has the next offsets of its groups, by read partition.
    """

    topic_id: str
    at_s: float
    published: tuple[int, int]
    figures: m.TopicFigures
    committed: Mapping[str, Mapping[int, int]]


class FiguresKeeper:
    """Looks at all topics of a broker again and again, and keeps what it finds.

    Args:
        context: of the broker.
        topics: that it hosts.
        groups: with their live members.
        counter: counts what is published after offsets.
    """

    def __init__(
        self, context: BrokerContext, topics: Topics, groups: GroupCoordinator, counter: LagCounter
    ) -> None:
        self._context, self._topics = context, topics
        self._groups, self._counter = groups, counter
        self._looks: dict[str, _Look] = {}
        # By topic id and group: time in seconds, LogMessages and milliseconds, again and again.
        self._histories: dict[tuple[str, str], array[int]] = {}

    def __repr__(self) -> str:
        return f"<FiguresKeeper [{len(self._looks)} topics | {len(self._histories)} histories]>"

    async def run(self) -> None:
        """Look until the broker stops."""
        while True:
            started_s = self._context.runtime.mono_s()
            try:
                await self.look()
            except Exception:  # it only reads: a bug here costs these figures and no more
                log.exception("unexpected error looking at the figures of topics")
            took_s = self._context.runtime.mono_s() - started_s
            await asyncio.sleep(max(SAMPLE_S - took_s, min(REST * took_s, MAX_REST_S)))

    def of(self, name: str, access: Access, *, list_groups: bool = False) -> m.TopicFigures:
        """Return what is known of a topic, as far as a client may know of its groups."""
        look = self._looks.get(name)
        if look is None or not look.figures.coordinated:
            return look.figures if look else m.TopicFigures(topic=name)
        seen = [
            each for each in look.figures.of_groups if access.may("describe", "group", each.group)
        ]
        out = [each.records_out_s for each in seen if each.records_out_s is not None]
        found = msgspec.structs.replace(
            look.figures,
            groups=len(seen),
            records_out_s=sum(out) if out or not seen else None,
            of_groups=nlargest(MAX_LISTED, seen, _to_read) if list_groups else [],
        )
        known = [each for each in seen if each.lag_records is not None]
        if known:
            worst = max(known, key=_to_read)
            found.worst_group, found.lag_records = worst.group, worst.lag_records
            found.lag_s = worst.lag_s
        return found

    def history(self, topic_id: str, group: str) -> m.FetchLagHistoryAnswer:
        """Return how the lag of a group went."""
        kept = self._histories.get((topic_id, group))
        times_s, records, ages_ms = ((kept or array("q"))[start::3].tolist() for start in range(3))
        has_room = kept is not None or len(self._histories) < MAX_HISTORIES
        return m.FetchLagHistoryAnswer(
            times_s=times_s, records=records, ages_ms=ages_ms, kept=has_room
        )

    async def look(self) -> None:
        """Look at all topics once."""
        looks: dict[str, _Look] = {}
        left = MAX_GROUPS
        live = self._groups.groups(self._context.now().mono_ms)
        for hosted in self._topics.hosted():
            name = hosted.topic.name
            try:
                look = looks[name] = await self._look_at(hosted, live.get(name, ()), left)
                left = max(0, left - len(look.committed))
            except MemqError as exc:
                if hosted in self._topics.hosted():  # else it was deleted meanwhile
                    self._context.warn("figures", f"{name}: its figures are not known: {exc}")
            await asyncio.sleep(0)  # an idle topic is found as it was without waiting for anything
        self._looks = looks
        self._remember()

    async def _look_at(self, hosted: HostedTopic, live: Collection[str], left: int) -> _Look:
        topic, now_s = hosted.topic, self._context.runtime.mono_s()
        before = self._looks.get(topic.name)
        if before is not None and before.topic_id != topic.topic_id:
            before = None
        published = self._context.metrics.totals.get(topic.name, (0, 0))
        figures = m.TopicFigures(topic=topic.name, coordinated=hosted.coordinated)
        elapsed_s = now_s - before.at_s if before is not None else 0.0
        if before is not None and elapsed_s > 0 and hosted.partitions:
            figures.records_in_s, figures.bytes_in_s = (
                max(0, now - then) / elapsed_s
                for now, then in zip(published, before.published, strict=True)
            )
        committed: dict[str, Mapping[int, int]] = {}
        if hosted.coordinated:
            everything = dict.fromkeys(range(topic.config.read_partitions), 0)
            if (retained := await self._lags(topic, everything)) is not None:
                figures.records = sum(each.records for each in retained)
                figures.size_bytes = sum(each.size_bytes for each in retained)
            stored = await self._context.queue.groups(topic.queue_topic)
            for group in sorted({*stored, *live})[:left]:
                then = before.committed.get(group, {}) if before is not None else {}
                found, committed[group] = await self._group(group, topic, then, elapsed_s)
                figures.of_groups.append(found)
        return _Look(topic.topic_id, now_s, published, figures, committed)

    async def _group(
        self, group: str, topic: Topic, before: Mapping[int, int], elapsed_s: float
    ) -> tuple[m.GroupFigures, Mapping[int, int]]:
        """Return how far a group is, and its next offsets."""
        clock = self._context.now()
        members = len(self._groups.members(group, topic.name, clock.mono_ms))
        found = m.GroupFigures(group=group, topic=topic.name, members=members)
        try:
            committed = await self._context.queue.committed(group, topic.queue_topic)
        except MemqError as exc:  # what is stored of one group tells nothing of the others
            self._context.warn("figures", f"{topic.name}: lag of {group} is not known: {exc}")
            return found, {}
        lags = await self._lags(topic, committed) if committed else None
        if lags is None:
            return found, committed
        found.lag_records = sum(each.records for each in lags)
        found.lag_s = max(each.age_s(clock.wall_ms * 1_000) for each in lags)
        both = {each: offset for each, offset in before.items() if each in committed}
        then = lags if before == committed else await self._lags(topic, both) if both else None
        if then is not None:
            left = {each.partition: each.records for each in lags}
            read = sum(max(0, each.records - left[each.partition]) for each in then)
            found.records_out_s = read / elapsed_s
        return found, committed

    async def _lags(self, topic: Topic, offsets: Mapping[int, int]) -> list[m.PartitionLag] | None:
        """Return what is published from some offsets on; None where that cannot be counted."""
        positions = [m.PartitionOffset(*each) for each in sorted(offsets.items())]
        found = await self._counter.lags(topic, positions)
        return None if any(each.error for each in found) else found

    def _remember(self) -> None:
        """Add what was found to the histories; forget those of groups that are gone."""
        now_s = self._context.now().wall_ms // 1_000
        looks = self._looks.values()
        found = {
            (look.topic_id, one.group): one for look in looks for one in look.figures.of_groups
        }
        self._histories = {key: each for key, each in self._histories.items() if key in found}
        for key, each in found.items():
            if key not in self._histories and len(self._histories) >= MAX_HISTORIES:
                continue
            history = self._histories.setdefault(key, array("q"))
            records = -1 if each.lag_records is None else each.lag_records
            history.extend((now_s, records, int((each.lag_s or 0) * 1_000)))
            del history[: -3 * KEPT]


def _to_read(figures: m.GroupFigures) -> int:
    return figures.lag_records or 0
