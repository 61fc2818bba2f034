"""Consumer groups: who holds which partition of a topic.

Theory of operation
-------------------
A member joins by its first heartbeat and stays by the next ones; each answer says which partitions
are its own. Nothing stops while partitions move: a member keeps all that it may keep, and only
what has to move is given up by one and, after that, taken up by another.

Two maps describe a group:

- `holders` says who may be working on a partition *now*. A partition enters it when an answer
  grants it, or when a member that the coordinator does not remember says that it holds it (the
  broker was restarted). It leaves it when its holder says that it does not hold it, leaves, or has
  not been heard of for its session timeout.
- `target` says who *should* hold each partition. It is made anew when members come or go.

An answer names the partitions for which both maps name the member. A partition that should move is
left out of its holder's answers until a heartbeat no longer lists it as owned; only then may
another answer grant it. So no two members are ever told to hold one partition, provided that

- a member applies an answer before it sends its next heartbeat, lists as owned everything it was
  granted until it has stopped working on it, and ignores answers that come too late;
- a member that gets no answer for its session timeout, counted from when it sent the last heartbeat
  that was answered, stops by itself;
- heartbeats are numbered, so that one that was overtaken on the network changes nothing.

A restarted coordinator remembers nobody. Until `grants_from_ms` it grants nothing, it only lets
members keep what they say they hold.

The target is balanced (no member has two more than another) and sticky: of the partitions whose
holder lives, no more move than balance asks for. Members beyond the number of partitions stand by.

Time is given to every call in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.wire.messages import GroupHeartbeatAnswer, GroupMember
from memq.errors import InvalidRequestError, NotOwnerError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memq.core.wire.messages import CommitOffsets, GroupHeartbeat

MIN_SESSION_TIMEOUT_MS = 1_000  # shorter, a pause of the garbage collector ends sessions
MAX_SESSION_TIMEOUT_MS = 300_000  # longer, what a dead member held stands still for too long
MAX_GROUPS = 10_000  # groups with live members, over all topics; each costs about 1 KB + members
MAX_MEMBERS = 1_000  # of one group; a topic has at most 256 partitions, the others stand by
MAX_NAME = 200  # characters of a group or member id; a group's name becomes part of file names
MAX_CLIENT_TEXT = 200  # characters; it is only shown
RESTART_GRACE_MS = 3_000
"""How long a restarted broker should wait before it grants partitions: live members dial again at
once, and have sent a heartbeat by then."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def check_group_name(name: str) -> None:
    """Refuse a name that cannot be a consumer group.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    _check_name("group", name)


class GroupCoordinator:
    """Membership and partition ownership of all consumer groups of one broker.

    Args:
        grants_from_ms: until then nothing is granted that a member does not hold already; a
            broker that may have had members before it was started sets it to now plus
            `RESTART_GRACE_MS`.
    """

    def __init__(self, *, grants_from_ms: int = 0) -> None:
        self._grants_from_ms = grants_from_ms
        self._groups: dict[tuple[str, str], _Group] = {}

    def __repr__(self) -> str:
        members = sum(len(group.members) for group in self._groups.values())
        return f"<GroupCoordinator {len(self._groups)} groups, {members} members>"

    def heartbeat(
        self, request: GroupHeartbeat, partitions: int, now_ms: int
    ) -> GroupHeartbeatAnswer:
        """Join a group or stay in it, and learn what to hold.

        Args:
            request: the heartbeat.
            partitions: read partitions of its topic.
            now_ms: the clock.

        Raises:
            InvalidRequestError: a name, the session timeout or an owned partition is not valid.
            UnavailableError: there are as many groups or members as there may be.
        """
        _check_heartbeat(request, partitions)
        key = (request.group, request.topic)
        group = self._live(key, now_ms)
        if group is None or group.partitions != partitions:  # deleted and created anew
            if len(self._groups) >= MAX_GROUPS:
                raise UnavailableError(
                    f"group {request.group!r} cannot form: the broker has its most of "
                    f"{MAX_GROUPS} groups with live members"
                )
            group = _Group(partitions)
        answer = group.heartbeat(request, now_ms, may_grant=now_ms >= self._grants_from_ms)
        self._groups[key] = group
        return answer

    def leave(self, group: str, topic: str, member_id: str, now_ms: int) -> None:
        """Take a member out of its group; one that is not in it is fine."""
        found = self._live((group, topic), now_ms)
        if found is not None and member_id in found.members:
            found.remove([member_id])
            self._drop_if_empty((group, topic))

    def tick(self, now_ms: int) -> None:
        """End the sessions that are over, so that groups without members take no memory.

        What callers see does not depend on it: every other call looks at the clock as well.
        """
        for key in list(self._groups):
            self._live(key, now_ms)

    def check_commit(self, request: CommitOffsets, now_ms: int) -> None:
        """Accept a commit only from the holder of all its partitions, or from an administrator.

        Raises:
            NotOwnerError: the member does not hold one of the partitions now.
            UnavailableError: it may hold them, but has not been heard of since the restart.
            InvalidRequestError: an administrator commits while the group has live members.
        """
        if not request.member_id:
            self.check_idle(request.group, request.topic, now_ms)
            return
        group = self._live((request.group, request.topic), now_ms)
        holders = group.holders if group else {}
        for position in request.offsets:
            holder = holders.get(position.partition)
            if holder is None and now_ms < self._grants_from_ms:
                raise UnavailableError(
                    f"the broker was restarted and has not heard of member {request.member_id!r} "
                    f"of group {request.group!r} since; commit again after its next heartbeat"
                )
            if holder != request.member_id:
                raise NotOwnerError(
                    f"member {request.member_id!r} of group {request.group!r} does not hold "
                    f"partition {position.partition} of {request.topic!r}; "
                    f"{repr(holder) if holder else 'nobody'} does. Who holds it goes on behind "
                    "the last commit; to keep it, poll more often or raise max_poll_interval"
                )

    def check_idle(self, group: str, topic: str, now_ms: int) -> None:
        """Refuse what may only be done to a group without live members.

        Raises:
            InvalidRequestError: it has some; the message says how many and for how long.
            UnavailableError: it may have some that were not heard of since the restart.
        """
        found = self._live((group, topic), now_ms)
        if found is None and now_ms < self._grants_from_ms:
            raise UnavailableError(
                f"the broker was restarted and does not know yet whether group {group!r} of "
                f"{topic!r} has members; try again in {self._grants_from_ms - now_ms} ms"
            )
        if found is not None:
            wait_ms = max(member.deadline_ms for member in found.members.values()) - now_ms
            raise InvalidRequestError(
                f"group {group!r} of {topic!r} has {len(found.members)} live members: close them "
                f"first; the sessions of members that were killed end within {wait_ms} ms"
            )

    def members(self, group: str, topic: str, now_ms: int) -> list[GroupMember]:
        """The live members of a group, sorted, with what each holds."""
        found = self._live((group, topic), now_ms)
        return found.describe() if found else []

    def groups(self, now_ms: int) -> list[tuple[str, str]]:
        """Group and topic of every group with live members, sorted by topic, then group."""
        self.tick(now_ms)
        return sorted(self._groups, key=lambda key: (key[1], key[0]))

    def forget_topic(self, topic: str) -> None:
        """Forget the groups of a topic that was deleted."""
        for key in [key for key in self._groups if key[1] == topic]:
            del self._groups[key]

    def _live(self, key: tuple[str, str], now_ms: int) -> _Group | None:
        """The group, when it has members whose sessions are not over."""
        group = self._groups.get(key)
        if group is not None:
            group.expire(now_ms)
            self._drop_if_empty(key)
        return self._groups.get(key)

    def _drop_if_empty(self, key: tuple[str, str]) -> None:
        if not self._groups[key].members:
            del self._groups[key]


@dataclass
class _Member:
    """A live member: how it shows itself, its last heartbeat's number, when its session ends."""

    client: str
    sequence: int
    deadline_ms: int


@dataclass
class _Group:
    """One group of one topic; see the module's theory of operation."""

    partitions: int
    members: dict[str, _Member] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    target: dict[int, str] = field(default_factory=dict)

    def heartbeat(
        self, request: GroupHeartbeat, now_ms: int, *, may_grant: bool
    ) -> GroupHeartbeatAnswer:
        member_id = request.member_id
        known = self.members.get(member_id)
        if known is None and len(self.members) >= MAX_MEMBERS:
            raise UnavailableError(f"group {request.group!r} has its most of {MAX_MEMBERS} members")
        if known is None or request.sequence > known.sequence:
            self.members[member_id] = _Member(
                request.client, request.sequence, now_ms + request.session_timeout_ms
            )
            self._apply_owned(member_id, set(request.owned), joined=known is None)
            if may_grant:
                self._grant(member_id)
        return GroupHeartbeatAnswer(
            assigned=[
                p
                for p, holder in sorted(self.holders.items())
                if holder == member_id == self.target[p]
            ],
            members=len(self.members),
            settled=self.holders == self.target,
        )

    def _apply_owned(self, member_id: str, owned: set[int], *, joined: bool) -> None:
        """Take in what a member holds: what it let go of is free, what it claims is its own."""
        for partition, holder in list(self.holders.items()):
            if holder == member_id and partition not in owned:
                del self.holders[partition]
        claimed = owned - self.holders.keys()
        self.holders.update(dict.fromkeys(claimed, member_id))
        if joined:
            self._retarget()

    def _grant(self, member_id: str) -> None:
        for partition, wanted in self.target.items():
            if wanted == member_id:
                self.holders.setdefault(partition, member_id)

    def expire(self, now_ms: int) -> None:
        over = [name for name, member in self.members.items() if member.deadline_ms <= now_ms]
        if over:
            self.remove(over)

    def remove(self, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            del self.members[member_id]
        self.holders = {p: name for p, name in self.holders.items() if name in self.members}
        self._retarget()

    def _retarget(self) -> None:
        # A partition on its way to someone stays on that way; what is held counts first.
        self.target = assign(self.partitions, self.members, self.target | self.holders)

    def describe(self) -> list[GroupMember]:
        return [
            GroupMember(
                member_id=member_id,
                client=member.client,
                partitions=[p for p, holder in sorted(self.holders.items()) if holder == member_id],
            )
            for member_id, member in sorted(self.members.items())
        ]


def assign(partitions: int, members: Iterable[str], current: Mapping[int, str]) -> dict[int, str]:
    """Share partitions out to members: balanced within one, and with the fewest moves.

    Args:
        partitions: how many there are.
        members: who shares them.
        current: who has each partition now; names that are not members do not count.

    Returns:
        The member of each partition; nothing when there are no members.
    """
    names = sorted(members)
    if not names:
        return {}
    held = Counter(name for name in current.values())
    # Those who have most keep one more where the shares are not equal: that moves the fewest.
    by_load = sorted(names, key=lambda name: -held[name])
    share, extra = divmod(partitions, len(names))
    room = {name: share + (position < extra) for position, name in enumerate(by_load)}
    target: dict[int, str] = {}
    homeless: list[int] = []
    for partition in range(partitions):
        name = current.get(partition, "")
        if room.get(name, 0) > 0:
            target[partition] = name
            room[name] -= 1
        else:
            homeless.append(partition)
    places = [name for name in names for _ in range(room[name])]
    return target | dict(zip(homeless, places, strict=True))


def _check_heartbeat(request: GroupHeartbeat, partitions: int) -> None:
    check_group_name(request.group)
    _check_name("member id", request.member_id)
    if len(request.client) > MAX_CLIENT_TEXT:
        raise InvalidRequestError(
            f"client text of {len(request.client)} characters; the limit is {MAX_CLIENT_TEXT}"
        )
    if not MIN_SESSION_TIMEOUT_MS <= request.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        raise InvalidRequestError(
            f"session timeout of {request.session_timeout_ms} ms: must be between "
            f"{MIN_SESSION_TIMEOUT_MS} and {MAX_SESSION_TIMEOUT_MS} ms"
        )
    strange = [p for p in request.owned if not 0 <= p < partitions]
    if strange:
        raise InvalidRequestError(
            f"member {request.member_id!r} claims partition {strange[0]} of {request.topic!r}, "
            f"which has {partitions}"
        )


def _check_name(kind: str, name: str) -> None:
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{kind} {name[:250]!r} is not valid: use 1 to {MAX_NAME} of letters, digits, '.', "
            "'_' and '-', starting with a letter, digit or '_'"
        )
