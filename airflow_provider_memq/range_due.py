"""What the planner waits for: that ranges which may still grow are due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_provider_memq.values import iso, parse_count, parse_offsets
from airflow_provider_memq.waiting import Condition, Outcome, check_partitions

if TYPE_CHECKING:
    from airflow_provider_memq.values import Offsets
    from memq.client.topic import TopicClient


class RangeDue(Condition):
    """A read partition has so many bytes since some offsets, or a time has come.

    Args:
        topic: the topic.
        since: first offset that counts, by read partition; from 0 for those not named.
        min_bytes: of one read partition.
        until_ms: the time, milliseconds since 1970 UTC.
        incarnation: as `Condition`.
    """

    def __init__(
        self, topic: str, since: Offsets, min_bytes: int, until_ms: int, incarnation: str = ""
    ) -> None:
        super().__init__(topic, incarnation)
        self._since = parse_offsets("since", since)
        self._least = parse_count("min_bytes", min_bytes)
        self._until_ms = parse_count("until_ms", until_ms)

    async def look(self, client: TopicClient) -> Outcome:
        """Whether one is due; see `Condition`. The note is the same at each look, for the log."""
        state = await self._state(client)
        check_partitions(state, self._since)
        found = await client.lag({p: self._since.get(p, 0) for p in state.ends})
        most = max((each.size_bytes for each in found.values()), default=0)
        done = most >= self._least or time.time() * 1000 >= self._until_ms
        note = f"the next ranges of {self.topic} wait for more until {iso(self._until_ms)}"
        return Outcome(done, state.to_json(), note)
