"""The notification queue of one topic, as a client sees it through the broker that serves it.

Which broker that is may change while a call is under way. So a call is made in attempts: when one
fails in a way that may pass, the topic is looked up again and its queue's broker of that moment is
asked, until the deadline of the call.

All calls are about one incarnation of the topic: the one given, or else the first that was met.
When the topic is deleted and made again, they fail with `TopicRecreatedError` from then on, for
offsets of the one mean nothing in the other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.client.backoff import full_jitter_s
from memq.core.wire.messages import (
    CommitOffsets,
    FetchCommitted,
    FetchNotifications,
    FetchOffsets,
    FetchWatermark,
    NotificationEntry,
    Position,
    TopicRequest,
)
from memq.errors import MemqError, ProtocolError, RequestTimeoutError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.client.cluster import Cluster
    from memq.core.wire.messages import (
        FetchCommittedAnswer,
        FetchNotificationsAnswer,
        FetchOffsetsAnswer,
        PartitionOffsets,
        Struct,
        WatermarkAnswer,
    )

ATTEMPT_S = 5.0  # a broker that does not answer for this long may not serve the queue any more

_entries = msgspec.msgpack.Decoder(list[NotificationEntry])


class Page(NamedTuple):
    """Notifications of some partitions.

    Attributes:
        entries: in the order of their offsets within each partition.
        ends: one past the last notification of each partition asked for.
    """

    entries: list[NotificationEntry]
    ends: dict[int, int]


class TopicClient:
    """Calls about one topic's notifications and groups.

    Args:
        cluster: the brokers.
        topic: the topic.
        incarnation: of the topic; empty for the one that is met first.

    Attributes:
        incarnation: of the topic; empty until one was met.
    """

    def __init__(self, cluster: Cluster, topic: str, incarnation: str = "") -> None:
        self.cluster = cluster
        self.topic = topic
        self.incarnation = incarnation

    def __repr__(self) -> str:
        return f"<TopicClient {self.topic} at {self.cluster!r}>"

    async def page(
        self,
        positions: Mapping[int, int],
        *,
        max_entries: int,
        max_wait_ms: int = 0,
        timeout_s: float | None = None,
    ) -> Page:
        """Notifications from some offsets on; waits up to `max_wait_ms` for the first.

        Raises:
            OffsetOutOfRangeError: an offset is not held.
            MemqError: as `ask`.
        """
        request = FetchNotifications(
            topic=self.topic,
            positions=_positions(positions),
            max_entries=max_entries,
            max_wait_ms=max_wait_ms,
        )
        answer: FetchNotificationsAnswer
        answer, body = await self.ask(request, timeout_s=timeout_s, wait_s=max_wait_ms / 1000)
        try:
            entries = _entries.decode(body)
        except msgspec.MsgspecError as exc:
            raise ProtocolError(f"the broker answered no list of notifications: {exc}") from exc
        return Page(entries, {end.partition: end.offset for end in answer.ends})

    async def offsets(
        self, at_ms: int | None = None, *, timeout_s: float | None = None
    ) -> list[PartitionOffsets]:
        """Start and end of every partition, and the first offset published at `at_ms` or later.

        Raises:
            MemqError: as `ask`.
        """
        request = FetchOffsets(topic=self.topic, at_ms=at_ms)
        answer: FetchOffsetsAnswer
        answer, _ = await self.ask(request, timeout_s=timeout_s)
        return answer.partitions

    async def starts(self) -> dict[int, int]:
        """The first offset that is held, by partition.

        Raises:
            MemqError: as `ask`.
        """
        return {held.partition: held.start for held in await self.offsets()}

    async def watermark(self) -> WatermarkAnswer:
        """How far the topic is stored.

        Raises:
            MemqError: as `ask`.
        """
        answer: WatermarkAnswer
        answer, _ = await self.ask(FetchWatermark(topic=self.topic))
        return answer

    async def committed(self, group: str, *, timeout_s: float | None = None) -> dict[int, int]:
        """Stored next offsets of a group; partitions without one are absent.

        Raises:
            MemqError: as `ask`.
        """
        request = FetchCommitted(group=group, topic=self.topic)
        answer: FetchCommittedAnswer
        answer, _ = await self.ask(request, timeout_s=timeout_s)
        return {position.partition: position.offset for position in answer.offsets}

    async def commit(
        self,
        group: str,
        member_id: str,
        offsets: Mapping[int, int],
        *,
        committer: str = "",
        sequence: int = 0,
        heartbeat: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Store next offsets of a group; an empty member id is that of an administrator.

        An attempt that was given up may arrive after later ones. With a sequence, which counts the
        commits of this member, or else of this committer, and with the number of the member's
        latest heartbeat, it then changes nothing.

        Raises:
            NotOwnerError: the member does not hold one of the partitions now.
            InvalidRequestError: an administrator commits while the group has members.
            OffsetOutOfRangeError: an offset is not held.
            MemqError: as `ask`.
        """
        request = CommitOffsets(
            group=group,
            topic=self.topic,
            member_id=member_id,
            offsets=_positions(offsets),
            committer=committer,
            sequence=sequence,
            heartbeat=heartbeat,
        )
        await self.ask(request, timeout_s=timeout_s)

    async def ask(
        self, request: Struct, *, timeout_s: float | None = None, wait_s: float = 0.0
    ) -> tuple[Any, memoryview]:
        """Ask the broker that serves the queue, whichever it is: header and body of the answer.

        Args:
            request: header to send.
            timeout_s: deadline of the call; None for that of the cluster.
            wait_s: how long the broker may take on purpose, on top of it.

        Raises:
            UnknownTopicError: there is no such topic.
            TopicRecreatedError: it was deleted and made again.
            RequestTimeoutError: no answer by the deadline.
            UnavailableError: no broker could be reached by the deadline.
            MemqError: the typed error that the broker named.
        """
        clock = asyncio.get_running_loop().time
        budget_s = self.cluster.request_timeout_s if timeout_s is None else timeout_s
        deadline_s = clock() + budget_s + wait_s
        attempt = 0
        last: MemqError | None = None
        while True:
            attempt_s = max(0.0, min(deadline_s - clock(), ATTEMPT_S + wait_s))
            try:
                topic = await self.cluster.topic(
                    self.topic, refresh=attempt > 0, timeout_s=attempt_s
                )
                if isinstance(request, TopicRequest):
                    request.incarnation = self.incarnation or topic.incarnation
                found = await self.cluster.call(topic.queue_address, request, timeout_s=attempt_s)
            except MemqError as exc:
                if last is None or not isinstance(exc, RequestTimeoutError):
                    last = exc  # as in `Cluster.call`: a last attempt may have had no time at all
                delay_s = full_jitter_s(attempt, self.cluster.runtime.random)
                # What the cluster remembers may be over; nobody has relied on it yet.
                passing = isinstance(exc, TopicRecreatedError) and not self.incarnation
                if not (exc.retriable or passing):
                    raise
            else:
                self.incarnation = self.incarnation or topic.incarnation
                return found
            if clock() + delay_s >= deadline_s:
                raise last
            await asyncio.sleep(delay_s)
            attempt += 1


def _positions(offsets: Mapping[int, int]) -> list[Position]:
    return [Position(partition, offset) for partition, offset in sorted(offsets.items())]
