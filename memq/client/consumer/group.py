"""A member's side of a consumer group: what it holds, when it must stop by itself, its heartbeats
and its commits.

`memq.core.group` says how groups work and what it expects of members. `GroupMembership` is the
state machine that keeps to it, without I/O. `GroupSession` sends its heartbeats in the background,
whatever the application does. The consumer takes up and gives up partitions when the application
polls, since only then is the application done with what it was handed.

    wanted   what the last answer assigned
    held     what the consumer works on: taken up from `wanted`, and not given up yet

A heartbeat reports both as owned. Without an answer for the session timeout, counted from when the
last answered heartbeat was made, the session is over here, before it is over at the broker: all
that was held is lost, and the next heartbeat joins afresh. Every call that is told the time looks
at that first.

An application that does not poll for `max_poll_interval_s` is taken to be stuck: the session leaves
the group, so that others take over, and joins again with the next poll.

Commits. What is committed is the next offset to read, the consumer's position: after a restart the
group goes on after the last Batch that was committed, and whatever was handed out after it is
handed out again. Where a group begins is committed before it has read anything: what is published
while it has no member is for its next one, and is lag.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from memq.core.wire.messages import GroupHeartbeat, GroupHeartbeatAnswer, LeaveGroup
from memq.errors import InvalidRequestError, MemqError, NotOwnerError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memq.client.topic import TopicClient

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0  # a newcomer waits about this long for its partitions; costs next to nothing
MOVING_HEARTBEAT_S = 0.25  # while partitions move, so that each step follows the one before
LEAVE_TIMEOUT_S = 5.0  # leaving is a courtesy; brokers let a client of small quotas wait for 2 s
NAME_BYTES = 8  # random; no two consumers commit under one name


class GroupMembership:
    """One member of one group.

    Args:
        group: the group.
        topic: its topic.
        member_id: unique in the group.
        client: free text that names the member.
        session_timeout_ms: without an answered heartbeat for this long the session is over.

    Attributes:
        held: partitions that the consumer works on.
        lost: partitions that were held when a session ended and must be stopped without a commit;
            the consumer clears it when it has done so.
        settled: the last answer said that nothing is left to move.
    """

    def __init__(
        self, *, group: str, topic: str, member_id: str, client: str, session_timeout_ms: int
    ) -> None:
        self.group = group
        self.topic = topic
        self.member_id = member_id
        self.held: set[int] = set()
        self.lost: set[int] = set()
        self.settled = False
        self.session_timeout_ms = session_timeout_ms
        self._client = client
        self._wanted: set[int] = set()
        self._sequence = 0
        self._sent_ms = 0  # when the heartbeat was made whose answer is awaited
        self._expires_ms: int | None = None  # end of the session, while there is one

    def __repr__(self) -> str:
        state = "out" if self._expires_ms is None else "settled" if self.settled else "moving"
        return (
            f"<GroupMembership {self.member_id} of {self.group} "
            f"[{state} | holds {sorted(self.held)}"
            f"{f' of {sorted(self._wanted)}' if self._wanted != self.held else ''}]>"
        )

    @property
    def sequence(self) -> int:
        """Number of the latest heartbeat; a commit carries it."""
        return self._sequence

    @property
    def joined(self) -> bool:
        """True while there is a session."""
        return self._expires_ms is not None

    def heartbeat(self, now_ms: int) -> GroupHeartbeat:
        """Make the next heartbeat; an answer to any earlier one counts no more."""
        self.expire(now_ms)
        self._sequence += 1
        self._sent_ms = now_ms
        return GroupHeartbeat(
            group=self.group,
            topic=self.topic,
            member_id=self.member_id,
            sequence=self._sequence,
            client=self._client,
            owned=sorted(self.held | self._wanted),
            session_timeout_ms=self.session_timeout_ms,
        )

    def answered(
        self, heartbeat: GroupHeartbeat, answer: GroupHeartbeatAnswer, now_ms: int
    ) -> None:
        """Take in the answer to a heartbeat, unless it comes too late."""
        self.expire(now_ms)
        if heartbeat.sequence == self._sequence:
            self._wanted = set(answer.assigned)
            self.settled = answer.settled
            self._expires_ms = self._sent_ms + self.session_timeout_ms

    @property
    def to_release(self) -> set[int]:
        """Partitions to give up: stop, commit, then call `released`."""
        return self.held - self._wanted

    @property
    def to_start(self) -> set[int]:
        """Partitions to take up: call `started`, then work on them."""
        return self._wanted - self.held

    @property
    def must_move(self) -> bool:
        """Whether there is something lost, to release or to start."""
        return bool(self.lost or self._wanted != self.held)

    def released(self, partitions: Iterable[int]) -> None:
        """Record that the consumer stopped working on these."""
        self.held.difference_update(partitions)

    def started(self, partitions: Iterable[int]) -> None:
        """Record that the consumer works on these from now on."""
        self.held.update(partitions)

    def expire(self, now_ms: int) -> None:
        """Lose what is held if the session is over by the clock."""
        if self._expires_ms is not None and now_ms >= self._expires_ms:
            self.lose()

    def lose(self) -> None:
        """End the session here, without a word to the broker."""
        self.lost |= self.held
        self.held = set()
        self._wanted = set()
        self._expires_ms = None
        self.settled = False
        self._sequence += 1  # an answer that is still on its way speaks of a session that is over


class GroupSession:
    """The background half of a group member.

    Args:
        topic: the topic.
        membership: the state machine to keep going.
        max_poll_interval_s: longest time between polls.
        wake: called when there is something for the consumer to do.
    """

    def __init__(
        self,
        topic: TopicClient,
        membership: GroupMembership,
        *,
        max_poll_interval_s: float,
        wake: Callable[[], None],
    ) -> None:
        self.membership = membership
        self._topic = topic
        # Three chances before the session is over.
        self._attempt_s = membership.session_timeout_ms / 3_000
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
        """Read the clock of the membership."""
        return int(self._clock() * 1000)

    def nudge(self) -> None:
        """Send the next heartbeat now."""
        self._nudged.set()

    def poll_begins(self) -> None:
        """Record that the application waits for a Batch from now on."""
        self._polling += 1
        if not self.membership.joined:
            self.nudge()

    def poll_ends(self) -> None:
        """Record that the application works by itself from now on."""
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
        if not self._error.retriable or failing_s >= self._topic.cluster.request_timeout_s:
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
            answer, _ = await self._topic.ask(heartbeat, timeout_s=self._attempt_s)
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
            await self._topic.ask(request, timeout_s=LEAVE_TIMEOUT_S)
        except MemqError as exc:
            log.warning("%r could not leave; its session will end by itself: %s", self, exc)


class Commits:
    """The commits of one consumer.

    Args:
        topic: the topic.
        group: to commit for; None for a consumer that cannot commit.
        positions: next offset of each partition that is read.
        membership: as whose member to commit now; None while the consumer is no group member.
        auto_interval_s: how often to commit by itself; None for not at all.
        on_stored: told the next offsets of a commit that is stored.
    """

    def __init__(
        self,
        topic: TopicClient,
        group: str | None,
        *,
        positions: Callable[[], Mapping[int, int]],
        membership: Callable[[], GroupMembership | None],
        auto_interval_s: float | None,
        on_stored: Callable[[Mapping[int, int]], None] = lambda _: None,
    ) -> None:
        self._topic = topic
        self._group = group
        self._positions = positions
        self._membership = membership
        self._auto_interval_s = auto_interval_s
        self._on_stored = on_stored
        self._clock = asyncio.get_running_loop().time
        self._last_auto_s = self._clock()
        self._one_at_a_time = asyncio.Lock()
        self._name = topic.cluster.runtime.token_hex(NAME_BYTES)
        self._sequence = 0  # of the latest commit
        self._running: asyncio.Task[None] | None = None
        self._committed: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Commits {self._group or 'no group'} [{len(self.pending())} pending]>"

    def begin_at(self, committed: Mapping[int, int]) -> None:
        """Take these next offsets for committed, before their partitions are read."""
        self._committed |= committed

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget partitions that are not this consumer's any more."""
        for partition in partitions:
            self._committed.pop(partition, None)

    def pending(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return next offsets that are not committed yet, of these partitions or of all."""
        positions = self._positions()
        wanted = positions if partitions is None else partitions
        return {
            partition: offset
            for partition, offset in positions.items()
            if partition in wanted and self._committed.get(partition) != offset
        }

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Store next offsets; nothing to store is fine.

        Raises:
            InvalidRequestError: the consumer has no group, or is no member and the group has some.
            NotOwnerError: another member holds one of the partitions.
            MemqError: the broker failed until the deadline.
        """
        if self._group is None:
            raise InvalidRequestError("commit needs a group; give the consumer one")
        if not offsets:
            return
        member = self._membership()
        # As of now: before its turn comes a partition may be lost, and taken up once more.
        heartbeat = member.sequence if member else 0
        async with self._one_at_a_time:  # and numbered: an attempt that was given up may come last
            self._check_not_lost(member, offsets)
            self._sequence += 1
            await self._topic.commit(
                self._group,
                member.member_id if member else "",
                offsets,
                committer=self._name,
                sequence=self._sequence,
                heartbeat=heartbeat,
            )
            self._on_stored(offsets)
            self._committed.update(offsets)

    async def begin(self, partitions: Iterable[int]) -> None:
        """Store where the group begins, in those of some partitions where it has committed nothing.

        What is beyond the end is not stored: readers there are told.

        Raises:
            MemqError: the broker failed until the deadline; the next commit stores it.
        """
        new = [each for each in partitions if each not in self._committed]
        with suppress(OffsetOutOfRangeError):
            await self.commit_if_owner(self.pending(new))

    @staticmethod
    def _check_not_lost(member: GroupMembership | None, offsets: Mapping[int, int]) -> None:
        """Refuse what was handed out in a session that is over.

        The member may be in its group again, and hold the partition again: then the broker would
        take the offset for one of now, though others may have come further meanwhile.
        """
        lost = sorted(member.lost & offsets.keys()) if member else []
        if lost:
            raise NotOwnerError(
                f"this consumer does not hold partition {lost[0]} as it did: its session ended "
                "meanwhile. Poll, and it goes on where the group has committed"
            )

    # -- auto-commit ------------------------------------------------------------------------

    @property
    def auto(self) -> bool:
        """Whether commits are made without being asked for."""
        return self._auto_interval_s is not None

    def auto_commit(self) -> None:
        """Start a commit when one is due; nobody waits for it, but its error is raised here later.

        Raises:
            MemqError: the commit before failed.
        """
        if self._running is not None:
            if not self._running.done():
                return
            finished, self._running = self._running, None
            finished.result()
        now_s = self._clock()
        if self._auto_interval_s is None or now_s - self._last_auto_s < self._auto_interval_s:
            return
        self._last_auto_s = now_s
        if offsets := self.pending():  # of now: what this poll hands out is not done
            self._running = asyncio.get_running_loop().create_task(self.commit_if_owner(offsets))

    async def commit_if_owner(self, offsets: Mapping[int, int]) -> None:
        """Commit; that a partition was lost to another member is only logged.

        Raises:
            MemqError: the broker failed until the deadline.
        """
        try:
            await self.commit(offsets)
        except NotOwnerError as exc:
            # Ordinary in a group: the next poll gives the partitions up.
            log.warning("auto-commit: %s", exc)

    async def settle(self) -> None:
        """Wait for a commit that is under way.

        Raises:
            MemqError: it failed.
        """
        if self._running is not None:
            await self._running

    async def close(self) -> None:
        """Give up a commit that is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
