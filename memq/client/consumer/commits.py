"""The commits of how far the application has come.

What is committed is the next offset to read, the consumer's position: after a restart the group
goes on after the last Batch that was committed, and whatever was handed out after it is handed out
again. Where a group begins is committed before it has read anything: what is published while it has
no member is for its next one, and is lag.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from memq.errors import InvalidRequestError, NotOwnerError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memq.client.consumer.membership import GroupMembership
    from memq.client.topic import TopicClient

log = logging.getLogger(__name__)

NAME_BYTES = 8  # random; no two consumers commit under one name


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

        What is beyond the end is not stored: whoever reads there is told.

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
