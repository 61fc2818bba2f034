"""Keeps a consumer in its group: heartbeats in the background, whatever the application does.

The heartbeats only say and learn who holds what; the consumer acts on it when it is polled. An
application that does not poll for `max_poll_interval_s` is taken to be stuck: the session leaves
the group, so that others take over, and joins again with the next poll.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.core.wire.messages import GroupHeartbeatAnswer, LeaveGroup
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.consumer.membership import Membership
    from memq.client.topic import TopicClient

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0  # a newcomer waits about this long for its partitions; costs next to nothing
MOVING_HEARTBEAT_S = 0.25  # while partitions move, so that each step follows the one before
LEAVE_TIMEOUT_S = 2.0  # leaving is a courtesy: the session would end by itself


class GroupSession:
    """The background half of a group member.

    Args:
        queue: of the topic.
        membership: the state machine to keep going.
        session_timeout_s: as the membership has it.
        max_poll_interval_s: longest time between polls.
        wake: called when there is something for the consumer to do.
    """

    def __init__(
        self,
        queue: TopicClient,
        membership: Membership,
        *,
        session_timeout_s: float,
        max_poll_interval_s: float,
        wake: Callable[[], None],
    ) -> None:
        self.membership = membership
        self._queue = queue
        self._attempt_s = session_timeout_s / 3  # three chances before the session is over
        self._max_poll_interval_s = max_poll_interval_s
        self._wake = wake
        self._clock = asyncio.get_running_loop().time
        self._polling = 0
        self._last_poll_s = self._clock()
        self._nudged = asyncio.Event()
        self._failing_since_s: float | None = None
        self._error: MemqError | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(lambda _: wake())

    def __repr__(self) -> str:
        state = "ended" if self._task.done() else "failing" if self._error else "running"
        return f"<GroupSession [{state}] {self.membership!r}>"

    def now_ms(self) -> int:
        """The clock of the membership."""
        return int(self._clock() * 1000)

    def nudge(self) -> None:
        """Send the next heartbeat now."""
        self._nudged.set()

    def poll_begins(self) -> None:
        """The application waits for a Batch from now on."""
        self._polling += 1
        if not self.membership.joined:
            self.nudge()

    def poll_ends(self) -> None:
        """The application works by itself from now on."""
        self._polling -= 1
        self._last_poll_s = self._clock()

    def check(self) -> None:
        """Raise what keeps this member out of its group, once it has for the request timeout.

        Raises:
            MemqError: the last error.
        """
        if self._task.done() and not self._task.cancelled():
            self._task.result()
        if self._error is None or self._failing_since_s is None:
            return
        failing_s = self._clock() - self._failing_since_s
        if not self._error.retriable or failing_s >= self._queue.cluster.request_timeout_s:
            error, self._error = self._error, None
            self._failing_since_s = None
            raise error

    async def close(self) -> None:
        """Leave the group, so that others take over at once, and stop."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._leave()

    async def _run(self) -> None:
        while True:
            self._nudged.clear()
            if self._stuck():
                log.warning(
                    "group %s of %s: no poll for %g s, partitions %s go to other members",
                    self.membership.group,
                    self.membership.topic,
                    self._max_poll_interval_s,
                    sorted(self.membership.held),
                )
                await self._leave()
                self._wake()
                await self._nudged.wait()
            else:
                await self._beat()
                await self._pause()

    def _stuck(self) -> bool:
        idle_s = 0.0 if self._polling else self._clock() - self._last_poll_s
        return idle_s > self._max_poll_interval_s

    async def _beat(self) -> None:
        heartbeat = self.membership.heartbeat(self.now_ms())
        answer: GroupHeartbeatAnswer
        try:
            answer, _ = await self._queue.ask(heartbeat, timeout_s=self._attempt_s)
        except MemqError as exc:
            self._error = exc
            if self._failing_since_s is None:
                self._failing_since_s = self._clock()
        else:
            self._error = self._failing_since_s = None
            self.membership.answered(heartbeat, answer, self.now_ms())
        self._wake()

    async def _pause(self) -> None:
        calm = self.membership.settled or not self.membership.joined
        limit_s = min(HEARTBEAT_S, self._attempt_s) if calm else MOVING_HEARTBEAT_S
        try:
            async with asyncio.timeout(limit_s):
                await self._nudged.wait()
        except TimeoutError:
            return

    async def _leave(self) -> None:
        if not self.membership.joined:
            return
        self.membership.lose()
        request = LeaveGroup(
            group=self.membership.group,
            topic=self.membership.topic,
            member_id=self.membership.member_id,
        )
        try:
            await self._queue.ask(request, timeout_s=LEAVE_TIMEOUT_S)
        except MemqError as exc:
            log.warning("%r could not leave; its session will end by itself: %s", self, exc)
