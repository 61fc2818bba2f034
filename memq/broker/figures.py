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

from memq.core.wire.messages import (
    FetchLagHistoryAnswer,
    GroupFigures,
    PartitionOffset,
    TopicFigures,
)
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.broker.context import BrokerContext
    from memq.broker.hosted_topic import HostedTopic
    from memq.broker.lag import LagCounter
    from memq.broker.topics import Topics
    from memq.core.access.rules import Access
    from memq.core.governor.topics import Topic
    from memq.core.group import GroupCoordinator
    from memq.core.wire.messages import PartitionLag

log = logging.getLogger(__name__)

SAMPLE_S = 10.0
REST, MAX_REST_S = 19, 60.0  # times as long as a look took the next one is waited for; up to that
KEPT = 2_160  # looks of a group: six hours
MAX_HISTORIES = 300  # groups and topics; each takes up to 43 KB, all of them 13 MB
MAX_LISTED = 1_000  # groups of a topic in an answer: its size is bounded
MAX_GROUPS = 10_000  # groups and topics that are looked at; the lag of others is unknown


class _GroupLook(NamedTuple):
    """What a look has found of a group.

    Attributes:
        committed: its next offsets, by read partition.
        records: LogMessages to read; None where that is not known.
        oldest_us: timestamp of the oldest of them; None without any.
        records_out_s: LogMessages that it committed, per second; None at the first look.
    """

    committed: Mapping[int, int]
    records: int | None = None
    oldest_us: int | None = None
    records_out_s: float | None = None


class _TopicLook(NamedTuple):
    """What a look has found of a topic."""

    topic_id: str
    at_s: float
    published: tuple[int, int]
    figures: TopicFigures
    groups: Mapping[str, _GroupLook]


class _History:
    """The lag of one group over time."""

    def __init__(self) -> None:
        self.times_s, self.records, self.ages_ms = array("I"), array("q"), array("q")

    def add(self, time_s: int, records: int, age_ms: int) -> None:
        """Add a look, and drop the oldest one of too many."""
        self.times_s.append(time_s)
        self.records.append(records)
        self.ages_ms.append(age_ms)
        for values in (self.times_s, self.records, self.ages_ms):
            del values[:-KEPT]


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
        self._context = context
        self._topics = topics
        self._groups = groups
        self._counter = counter
        self._looks: dict[str, _TopicLook] = {}
        self._histories: dict[tuple[str, str], _History] = {}  # by topic id and group

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

    def of(self, name: str, access: Access, *, list_groups: bool = False) -> TopicFigures:
        """Return what is known of a topic, as far as a client may know of its groups."""
        look = self._looks.get(name)
        if look is None:
            return TopicFigures(topic=name)
        seen = {
            group: each
            for group, each in look.groups.items()
            if access.may("describe", "group", group)
        }
        found, figures = look.figures, TopicFigures(topic=name)
        figures.records_in_s, figures.bytes_in_s = found.records_in_s, found.bytes_in_s
        figures.coordinated = found.coordinated
        if not found.coordinated:
            return figures
        figures.batches, figures.records = found.batches, found.records
        figures.size_bytes, figures.groups = found.size_bytes, len(seen)
        out = [each.records_out_s for each in seen.values() if each.records_out_s is not None]
        figures.records_out_s = sum(out) if out or not seen else None
        known = [(each.records, one) for one, each in seen.items() if each.records is not None]
        if known:
            figures.lag_records, figures.worst_group = max(known)
            figures.lag_s = self._age_s(seen[figures.worst_group].oldest_us)
        if list_groups:
            most = nlargest(MAX_LISTED, seen, lambda group: seen[group].records or 0)
            figures.of_groups = [self._of_group(group, name, seen[group]) for group in most]
        return figures

    def _of_group(self, group: str, topic: str, look: _GroupLook) -> GroupFigures:
        return GroupFigures(
            group=group,
            members=len(self._groups.members(group, topic, self._context.now().mono_ms)),
            lag_records=look.records,
            lag_s=None if look.records is None else self._age_s(look.oldest_us),
            records_out_s=look.records_out_s,
        )

    def history(self, topic_id: str, group: str) -> FetchLagHistoryAnswer:
        """Return how the lag of a group went."""
        found = self._histories.get((topic_id, group))
        kept = found is not None or len(self._histories) < MAX_HISTORIES
        found = found or _History()
        return FetchLagHistoryAnswer(
            times_s=found.times_s.tolist(),
            records=found.records.tolist(),
            ages_ms=found.ages_ms.tolist(),
            kept=kept,
        )

    async def look(self) -> None:
        """Look at all topics once."""
        looks: dict[str, _TopicLook] = {}
        left = MAX_GROUPS
        live = self._groups.groups(self._context.now().mono_ms)
        for hosted in self._topics.hosted():
            name = hosted.topic.name
            try:
                look = await self._look_at(hosted, live.get(name, set()), left)
            except MemqError as exc:
                if hosted in self._topics.hosted():  # else it was deleted meanwhile
                    self._context.warn("figures", f"{name}: its figures are not known: {exc}")
                continue
            looks[name] = look
            left = max(0, left - len(look.groups))
            await asyncio.sleep(0)  # an idle topic is found as it was without waiting for anything
        self._looks = looks
        self._remember()

    async def _look_at(self, hosted: HostedTopic, live: set[str], left: int) -> _TopicLook:
        topic, now_s = hosted.topic, self._context.runtime.mono_s()
        before = self._looks.get(topic.name)
        if before is not None and before.topic_id != topic.topic_id:
            before = None
        published = self._context.metrics.totals.get(topic.name, (0, 0))
        figures = TopicFigures(topic=topic.name, coordinated=hosted.coordinated)
        if before is not None and now_s > before.at_s and hosted.partitions:
            records, size_bytes = (
                max(0, now - then) / (now_s - before.at_s)
                for now, then in zip(published, before.published, strict=True)
            )
            figures.records_in_s, figures.bytes_in_s = records, size_bytes
        groups: dict[str, _GroupLook] = {}
        if hosted.coordinated:
            await self._count_retained(topic, figures)
            stored = await self._context.queue.groups(topic.queue_topic)
            for group in sorted({*stored, *live}):
                then = before.groups.get(group) if before is not None else None
                elapsed_s = now_s - before.at_s if before is not None else 0.0
                known = len(groups) < left
                groups[group] = (
                    await self._group(group, topic, then, elapsed_s) if known else _GroupLook({})
                )
        return _TopicLook(topic.topic_id, now_s, published, figures, groups)

    async def _count_retained(self, topic: Topic, figures: TopicFigures) -> None:
        starts = [PartitionOffset(number, 0) for number in range(topic.config.read_partitions)]
        retained = await self._counter.lags(topic, starts)
        if not any(each.error for each in retained):
            figures.batches = sum(each.batches for each in retained)
            figures.records = sum(each.records for each in retained)
            figures.size_bytes = sum(each.size_bytes for each in retained)

    async def _group(
        self, group: str, topic: Topic, before: _GroupLook | None, elapsed_s: float
    ) -> _GroupLook:
        try:
            committed = await self._context.queue.committed(group, topic.queue_topic)
        except MemqError as exc:  # what is stored of one group tells nothing of the others
            self._context.warn("figures", f"{topic.name}: lag of {group} is not known: {exc}")
            return _GroupLook({})
        if not committed:
            return _GroupLook({})
        now = await self._lags(topic, committed)
        if now is None:
            return _GroupLook(committed)
        out_s = None
        if before is not None and before.committed and elapsed_s > 0:
            still = before.committed == committed
            then = now if still else await self._lags(topic, before.committed) or {}
            read = [
                max(0, each.records - now[number].records)
                for number, each in then.items()
                if number in now
            ]
            out_s = sum(read) / elapsed_s if read else None
        oldest_us = [each.oldest_us for each in now.values() if each.oldest_us is not None]
        records = sum(each.records for each in now.values())
        return _GroupLook(committed, records, min(oldest_us, default=None), out_s)

    async def _lags(
        self, topic: Topic, offsets: Mapping[int, int]
    ) -> dict[int, PartitionLag] | None:
        """Return what is published from some offsets on; None where that cannot be counted."""
        positions = [PartitionOffset(*each) for each in sorted(offsets.items())]
        found = await self._counter.lags(topic, positions)
        if any(each.error for each in found):
            return None
        return {each.partition: each for each in found}

    def _remember(self) -> None:
        """Add what was found to the histories; forget those of groups that are gone."""
        now_s = self._context.now().wall_ms // 1_000
        found = {
            (look.topic_id, group): each
            for look in self._looks.values()
            for group, each in look.groups.items()
        }
        self._histories = {key: each for key, each in self._histories.items() if key in found}
        for key, each in found.items():
            history = self._histories.get(key)
            if history is None:
                if len(self._histories) >= MAX_HISTORIES:
                    continue
                history = self._histories[key] = _History()
            records = -1 if each.records is None else each.records
            history.add(now_s, records, int(self._age_s(each.oldest_us) * 1_000))

    def _age_s(self, oldest_us: int | None) -> float:
        now_us = self._context.now().wall_ms * 1_000
        return 0.0 if oldest_us is None else max(0.0, (now_us - oldest_us) / 1e6)
