"""The lag of consumer groups for /metrics: looked up when somebody scrapes, and never waited for.

A scrape begins to look at all groups, unless that is under way already, and is answered with what
is known when `SCRAPE_WAIT_S` have passed: nearly always with the groups as they are now, and only
while a large backlog is counted for the first time with what an earlier scrape has found. A group
or a topic that is deleted is not found any more, and so has gone from the next answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.broker.metrics import GroupLag
from memq.core.wire.messages import PartitionOffset
from memq.errors import CorruptDataError, MemqError

if TYPE_CHECKING:
    from memq.broker.context import BrokerContext
    from memq.broker.lag import LagCounter
    from memq.broker.topics import Topics
    from memq.core.governor.topics import Topic

log = logging.getLogger(__name__)

SCRAPE_WAIT_S = 1.0  # Prometheus gives up after 10 s by default
MAX_LAG_ROWS = 1_000  # groups times read partitions that are shown: five series each


class GroupLags:
    """Looks up how far every group is from the end.

    Args:
        context: of the broker.
        topics: that it hosts.
        counter: counts what is published after offsets.
    """

    def __init__(self, context: BrokerContext, topics: Topics, counter: LagCounter) -> None:
        self._context = context
        self._topics = topics
        self._counter = counter
        self._looking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        shown = self._context.metrics.lag
        return f"<GroupLags [{len(shown.rows)} shown | {shown.left_out} groups left out]>"

    async def refresh(self) -> None:
        """Look anew, and wait for what is found, but not for long."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        await asyncio.wait([self._looking], timeout=SCRAPE_WAIT_S)

    async def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        """Find the lag of all groups, as many as are shown."""
        try:
            rows: list[GroupLag] = []
            left_out = 0
            for hosted in self._topics.hosted():
                if not hosted.coordinated:
                    continue  # another broker shows them
                try:
                    left_out += await self._look_at(hosted.topic, rows)
                except MemqError as exc:
                    if hosted in self._topics.hosted():  # else it was deleted meanwhile
                        self._context.warn("lag", f"{hosted.topic.name}: lag is not known: {exc}")
            shown = self._context.metrics.lag
            shown.rows, shown.left_out = rows, left_out
        except Exception:  # it only reads: a bug here costs these metrics and no more
            log.exception("unexpected error looking up the lag of groups")

    async def _look_at(self, topic: Topic, rows: list[GroupLag]) -> int:
        """Add the groups of a topic; returns how many of them there is no room for."""
        queue = self._context.queue
        groups = await queue.groups(topic.queue_topic)
        for done, group in enumerate(groups):
            try:
                offsets = await queue.committed(group, topic.queue_topic)
            except CorruptDataError as exc:
                self._context.warn("lag", f"{topic.name}: lag of {group} is not known: {exc}")
                continue
            if len(rows) + len(offsets) > MAX_LAG_ROWS:
                return len(groups) - done
            positions = [PartitionOffset(*each) for each in sorted(offsets.items())]
            for lag in await self._counter.lags(topic, positions):
                if lag.error:
                    self._context.warn("lag", f"{topic.name}: lag is not known: {lag.error}")
                else:
                    rows.append(GroupLag(group, topic.name, lag))
        return 0
