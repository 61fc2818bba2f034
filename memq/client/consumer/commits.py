"""How far the application has come, and the commits of it.

Progress moves when a Batch is handed out, or by an explicit seek. What is committed is the next
offset to read: after a restart the group goes on after the last Batch that was committed, and
whatever was handed out after it is handed out again. Where a group begins is committed before it
has read anything: what is published while it has no member is for its next one, and is lag.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.errors import InvalidRequestError, NotOwnerError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memq.client.consumer.membership import GroupMembership
    from memq.client.topic import TopicClient

log = logging.getLogger(__name__)

BEGIN_RETRY_S = 5.0
NAME_BYTES = 8  # random; no two consumers commit under one name


class Commits:
    """The progress of one consumer.

    Args:
        topic: the topic.
        group: to commit for; None for a consumer that cannot commit.
        membership: as whose member to commit now; None while the consumer is no group member.
        auto_interval_s: how often to commit by itself; None for not at all.
        on_stored: told the next offsets of a commit that is stored.
    """

    def __init__(
        self,
        topic: TopicClient,
        group: str | None,
        *,
        membership: Callable[[], GroupMembership | None],
        auto_interval_s: float | None,
        on_stored: Callable[[Mapping[int, int]], None] = lambda _: None,
    ) -> None:
        self._topic = topic
        self._group = group
        self._membership = membership
        self._auto_interval_s = auto_interval_s
        self._on_stored = on_stored
        self._clock = asyncio.get_running_loop().time
        self._last_auto_s = self._clock()
        self._one_at_a_time = asyncio.Lock()
        self._name = topic.cluster.runtime.token_hex(NAME_BYTES)
        self._sequence = 0  # of the latest commit
        self._running: asyncio.Task[None] | None = None
        self._begun: dict[int, int] = {}  # not stored yet
        self._progress: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Commits {self._group or 'no group'} [{len(self.pending())} pending]>"

    def moved(self, partition: int, next_offset: int) -> None:
        """The application has come this far."""
        self._progress[partition] = next_offset

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are not this consumer's any more."""
        for partition in partitions:
            self._begun.pop(partition, None)
            self._progress.pop(partition, None)
            self._committed.pop(partition, None)

    def pending(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Next offsets that are not committed yet, of these partitions or of all."""
        wanted = self._progress if partitions is None else partitions
        return {
            partition: offset
            for partition, offset in self._progress.items()
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
        if offsets:
            await self._store(lambda: offsets)

    async def _store(self, what: Callable[[], Mapping[int, int]]) -> None:
        """Commit what there is to store when its turn comes."""
        assert self._group is not None  # noqa: S101 - without one nothing is stored
        member = self._membership()
        # As of now: before its turn comes a partition may be lost, and taken up once more.
        heartbeat = member.sequence if member else 0
        async with self._one_at_a_time:  # and numbered: an attempt that was given up may come last
            offsets = what()
            if not offsets:
                return
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
            for partition in offsets:
                self._begun.pop(partition, None)

    async def begin(self, positions: Mapping[int, int]) -> None:
        """Store where a group begins, in partitions of which it had committed nothing.

        What has been committed meanwhile stays.

        Raises:
            MemqError: the broker failed until the deadline; it is tried again (`auto_commit`).
        """
        self._begun |= {p: at for p, at in positions.items() if p not in self._committed}
        await self._store_begun()

    async def _store_begun(self) -> None:
        if not self._begun:
            return
        try:
            try:
                await self._store(lambda: self._still_begun(self._begun))
            except OffsetOutOfRangeError:
                for partition in list(self._begun):
                    await self._store_begun_in(partition)
        except NotOwnerError as exc:
            log.warning("where the group begins is not stored: %s", exc)

    async def _store_begun_in(self, partition: int) -> None:
        try:
            await self._store(lambda: self._still_begun([partition]))
        except OffsetOutOfRangeError:  # beyond the end: whoever reads there is told
            self._begun.pop(partition, None)

    def _still_begun(self, partitions: Iterable[int]) -> dict[int, int]:
        """Where the group begins, where nothing is stored yet."""
        return {
            partition: offset
            for partition, offset in self._begun.items()
            if partition in partitions
        }

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

        Where the group begins is stored this way as well, whoever else commits.

        Raises:
            MemqError: the commit before failed.
        """
        if self._running is not None:
            if not self._running.done():
                return
            finished, self._running = self._running, None
            finished.result()
        now_s = self._clock()
        interval_s = BEGIN_RETRY_S if self._auto_interval_s is None else self._auto_interval_s
        if now_s - self._last_auto_s < interval_s:
            return
        self._last_auto_s = now_s
        offsets = self.pending() if self.auto else {}  # now: what this poll hands out is not done
        if offsets or self._begun:
            self._running = asyncio.get_running_loop().create_task(self._commit_due(offsets))

    async def _commit_due(self, offsets: Mapping[int, int]) -> None:
        await self.commit_if_owner(offsets)
        await self._store_begun()

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
