"""A member's side of a consumer group: what it holds, and when it must stop by itself.

`memq.core.group` says how groups work and what it expects of members; this is the state machine
that keeps to it. It does no I/O: a background task sends the heartbeats, and the consumer takes up
and gives up partitions when the application polls, since only then is the application done with
what it was handed.

    wanted   what the last answer assigned
    held     what the consumer works on: taken up from `wanted`, and not given up yet

A heartbeat reports both as owned. Without an answer for the session timeout, counted from when the
last answered heartbeat was made, the session is over here, before it is over at the broker: all
that was held is lost, and the next heartbeat joins afresh. Every call that is told the time looks
at that first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.wire.messages import GroupHeartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.wire.messages import GroupHeartbeatAnswer


class Membership:
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
        self._client = client
        self._session_timeout_ms = session_timeout_ms
        self._wanted: set[int] = set()
        self._sequence = 0
        self._sent_ms = 0  # when the heartbeat was made whose answer is awaited
        self._expires_ms: int | None = None  # end of the session, while there is one

    def __repr__(self) -> str:
        state = "out" if self._expires_ms is None else "settled" if self.settled else "moving"
        return (
            f"<Membership {self.member_id} of {self.group} [{state} | holds {sorted(self.held)}"
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
        """The next heartbeat; an answer to any earlier one counts no more."""
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
            session_timeout_ms=self._session_timeout_ms,
        )

    def answered(
        self, heartbeat: GroupHeartbeat, answer: GroupHeartbeatAnswer, now_ms: int
    ) -> None:
        """Take in the answer to a heartbeat, unless it comes too late."""
        self.expire(now_ms)
        if heartbeat.sequence == self._sequence:
            self._wanted = set(answer.assigned)
            self.settled = answer.settled
            self._expires_ms = self._sent_ms + self._session_timeout_ms

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
        """The consumer does not work on these any more."""
        self.held.difference_update(partitions)

    def started(self, partitions: Iterable[int]) -> None:
        """The consumer works on these from now on."""
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
