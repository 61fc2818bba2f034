"""Consumer groups: who holds which partition of a topic.

Theory of operation
-------------------
A member joins by its first heartbeat and stays by the next ones; each answer says which partitions
are its own. Nothing stops while partitions move: a member keeps all that it may keep, and only
what has to move is given up by one and, after that, taken up by another.

Two maps describe a group:

- `holders` says who may be working on a partition *now*. A partition enters it when an answer
  grants it. It leaves it when its holder says that it does not hold it, leaves, or has not been
  heard of for its session timeout.
- `target` says who *should* hold each partition. It is computed again when members come or go.

An answer names the partitions for which both maps name the member. A partition that should move is
left out of its holder's answers until a heartbeat no longer lists it as owned; only then may
another answer grant it. So no two members are ever told to hold one partition, provided that

- a member applies an answer before it sends its next heartbeat, lists as owned everything it was
  granted until it has stopped working on it, and ignores answers that come too late;
- a member that gets no answer for its session timeout, counted from when it sent the last heartbeat
  that was answered, stops by itself;
- heartbeats are numbered, so that one that was overtaken on the network changes nothing, not even
  when the member is out meanwhile.

Restarts. `holders` outlives the coordinator: before an answer that grants something leaves, the
caller stores what `unsaved` gives, and then asks `check_granted`, for the coordinator may have been
restarted meanwhile. That is told by `restore` who held what, and with which session timeout, and
counts these sessions from then on: longer than the members do. So members go on as if nothing had
happened, and what one of them holds that does not come back goes to others when its session is
over. What was let go of need not be stored: at worst somebody is waited for who is gone.

Commits. One that was sent again may come twice, and the first one last. So they are numbered by
who makes them, and what was overtaken by a later one is refused. And they carry the number of the
member's latest heartbeat, so that one from before a partition was granted, when the member held it
an earlier time, is refused.

The target is balanced (no member has two more than another) and sticky: of the partitions whose
holder lives, no more move than balance asks for. Members beyond the number of partitions stand by.

Time is given to every call in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from memq.core.names import check_name
from memq.core.queue import Holding
from memq.core.units import counted
from memq.core.wire.messages import GroupHeartbeatAnswer, GroupMember
from memq.errors import InvalidRequestError, NotOwnerError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, KeysView, Mapping

    from memq.core.wire.messages import CommitOffsets, GroupHeartbeat

MIN_SESSION_TIMEOUT_MS = 1_000  # shorter, a pause of the garbage collector ends sessions
MAX_SESSION_TIMEOUT_MS = 300_000  # longer, what a dead member held stands still for too long
MAX_GROUPS = 10_000  # groups with live members, over all topics; each costs about 1 KB + members
MAX_MEMBERS = 1_000  # of one group; a topic has at most 256 partitions, the others stand by
MAX_NAME = 200  # characters of a group or member id; a group's name becomes part of file names
MAX_CLIENT_TEXT = 200  # characters; it is only shown
MAX_COMMITTERS = 100_000
"""Committers whose last commit is remembered; the one that has not committed for longest is
forgotten. A request is overtaken by seconds, and each commit goes to the disk."""
MAX_DEPARTED = 10_000  # members that left or ended and whose heartbeats may still come; as above
UNKNOWN_MEMBER = "?"  # no member can have this name

_Name: TypeAlias = tuple[str, str, str]  # group, topic, and member or committer
_Value = TypeVar("_Value")


def check_group_name(name: str) -> None:
    """Refuse a name that cannot be a consumer group.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    check_name("group", name, MAX_NAME)


class GroupCoordinator:
    """Membership and partition ownership of all consumer groups of one broker."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}
        self._left_over: dict[tuple[str, str], None] = {}  # ended, but stored as if they had not
        self._commits: dict[_Name, _Committed] = {}  # the latest last
        self._departed: dict[_Name, int] = {}  # number of the last heartbeat; the latest last

    def __repr__(self) -> str:
        members = sum(len(group.members) for group in self._groups.values())
        return f"<GroupCoordinator {len(self._groups)} groups, {members} members>"

    def heartbeat(
        self, request: GroupHeartbeat, partitions: int, now_ms: int, host: str = ""
    ) -> GroupHeartbeatAnswer:
        """Join a group or stay in it, and learn what to hold.

        Args:
            request: the heartbeat.
            partitions: read partitions of its topic.
            now_ms: the clock.
            host: address it came from, for people.

        Raises:
            InvalidRequestError: a name, the session timeout or an owned partition is not valid.
            UnavailableError: there are as many groups or members as there may be.
        """
        _check_heartbeat(request, partitions)
        key = (request.group, request.topic)
        group = self._live(key, now_ms)
        if request.sequence <= self._departed.get((*key, request.member_id), -1):
            raise InvalidRequestError(
                f"heartbeat {request.sequence} of member {request.member_id!r} came when the "
                "member had left the group"
            )
        if group is None or group.partitions != partitions:  # deleted and recreated
            if len(self._groups) >= MAX_GROUPS:
                raise UnavailableError(
                    f"group {request.group!r} cannot form: the broker has its most of "
                    f"{MAX_GROUPS} groups with live members"
                )
            group = _Group(partitions)
        answer = group.heartbeat(request, now_ms, host)
        self._groups[key] = group
        self._left_over.pop(key, None)
        return answer

    def check_granted(self, request: GroupHeartbeat, answer: GroupHeartbeatAnswer) -> None:
        """Let no answer leave that grants what is not held, when it was made before a restart.

        Raises:
            UnavailableError: what it grants was forgotten meanwhile.
        """
        group = self._groups.get((request.group, request.topic))
        holders = group.holders if group else {}
        if any(holders.get(partition) != request.member_id for partition in answer.assigned):
            raise UnavailableError(
                f"what member {request.member_id!r} of group {request.group!r} was to be given is "
                "not its own any more; ask again"
            )

    # -- what outlives a restart ------------------------------------------------------------

    def unsaved(self, group: str, topic: str) -> dict[str, Holding] | None:
        """Return what must be stored before a heartbeat's answer leaves; None when what is stored
        will do.

        Tell `saved` when it is.
        """
        found = self._groups.get((group, topic))
        return None if found is None or found.covered else found.holdings()

    def storing(self, group: str, topic: str) -> None:
        """Record that what is stored is unknown until `saved` is called."""
        self._groups[(group, topic)].uncertain = True

    def saved(self, group: str, topic: str, holdings: Mapping[str, Holding]) -> None:
        """Record that what members of a group hold is stored."""
        key = (group, topic)
        if key in self._groups:
            self._groups[key].saved = _by_partition(holdings)
            self._groups[key].uncertain = False
        elif holdings:
            self._left_over[key] = None
        else:
            self._left_over.pop(key, None)

    def left_over(self) -> KeysView[tuple[str, str]]:
        """Group and topic of groups that have ended: store of each that nobody holds anything."""
        return self._left_over.keys()

    def restore(
        self,
        group: str,
        topic: str,
        partitions: int,
        holdings: Mapping[str, Holding] | None,
        now_ms: int,
    ) -> None:
        """Restore what members of a group held when the broker ended; before any other call.

        Args:
            group: the group.
            topic: its topic.
            partitions: read partitions of the topic.
            holdings: as stored; None when that cannot be read. Then somebody may hold anything, for
                the longest session that there may be.
            now_ms: the clock.
        """
        if holdings is None:
            everything = Holding(MAX_SESSION_TIMEOUT_MS, list(range(partitions)))
            holdings = {UNKNOWN_MEMBER: everything}
        if holdings:
            self._groups[group, topic] = _Group.restored(partitions, holdings, now_ms)

    def leave(self, group: str, topic: str, member_id: str, now_ms: int) -> None:
        """Take a member out of its group; one that is not in it is fine."""
        found = self._live((group, topic), now_ms)
        if found is not None and member_id in found.members:
            self._remove((group, topic), [member_id])

    def tick(self, now_ms: int) -> None:
        """End the sessions that are over, so that groups without members take no memory.

        What callers see does not depend on it: every other call looks at the clock as well.
        """
        for key in list(self._groups):
            self._live(key, now_ms)

    def check_commit(self, request: CommitOffsets, now_ms: int) -> bool:
        """Accept a commit only from the holder of all its partitions, or from an administrator.

        Returns:
            Whether it is to be stored; False when it has been stored before. Tell `committed` when
            it is, and let nothing come between this and storing it.

        Raises:
            NotOwnerError: the member does not hold one of the partitions now.
            InvalidRequestError: an administrator commits while the group has live members; or a
                later commit of the same committer has come before.
        """
        if request.member_id:
            self._check_holder(request, now_ms)
        else:
            self.check_idle(request.group, request.topic, now_ms)
        if not request.sequence or not (request.member_id or request.committer):
            return True
        key = _committer(request)
        last = self._commits.pop(key, None) or _Committed(0)
        self._commits[key] = last
        _forget_oldest(self._commits, MAX_COMMITTERS)
        if request.sequence < last.begun:
            raise InvalidRequestError(
                f"commit {request.sequence} of group {request.group!r} came after commit "
                f"{last.begun} of the same consumer; it changes nothing"
            )
        last.begun = request.sequence
        return last.done < request.sequence

    def committed(self, request: CommitOffsets, now_ms: int) -> None:
        """Record that a commit is stored."""
        group = self._groups.get((request.group, request.topic))
        if group is not None and request.member_id in group.members:
            group.members[request.member_id].committed_ms = now_ms
        last = self._commits.get(_committer(request))
        if last is not None:
            last.done = max(last.done, request.sequence)

    def _check_holder(self, request: CommitOffsets, now_ms: int) -> None:
        group = self._live((request.group, request.topic), now_ms)
        holders = group.holders if group else {}
        for position in request.offsets:
            holder = holders.get(position.partition)
            before = group.granted.get(position.partition, 0) if group else 0
            if holder == request.member_id and request.heartbeat < before:
                raise NotOwnerError(
                    f"a commit of member {request.member_id!r} of group {request.group!r} for "
                    f"partition {position.partition} of {request.topic!r} comes from before it "
                    "was given the partition again"
                )
            if holder != request.member_id:
                raise NotOwnerError(
                    f"member {request.member_id!r} of group {request.group!r} does not hold "
                    f"partition {position.partition} of {request.topic!r}; "
                    f"{repr(holder) if holder else 'nobody'} does. Its holder goes on after "
                    "the last commit; to keep it, poll more often or raise max_poll_interval"
                )

    def check_idle(self, group: str, topic: str, now_ms: int) -> None:
        """Refuse what may only be done to a group without live members.

        Raises:
            InvalidRequestError: it has some; the message says how many and for how long.
        """
        found = self._live((group, topic), now_ms)
        if found is not None:
            wait_ms = max(member.deadline_ms for member in found.members.values()) - now_ms
            raise InvalidRequestError(
                f"group {group!r} of {topic!r} has {counted(len(found.members), 'live member')}: "
                "close all of them first; the session of one that was killed ends within "
                f"{wait_ms} ms"
            )

    def members(self, group: str, topic: str, now_ms: int) -> list[GroupMember]:
        """List the live members of a group, sorted, with what each holds."""
        found = self._live((group, topic), now_ms)
        return found.describe(now_ms) if found else []

    def groups(self, now_ms: int) -> dict[str, set[str]]:
        """List the groups with live members, by topic."""
        self.tick(now_ms)
        found: dict[str, set[str]] = {}
        for group, topic in self._groups:
            found.setdefault(topic, set()).add(group)
        return found

    def forget_topic(self, topic: str) -> None:
        """Forget the groups of a topic that was deleted."""
        self._groups = {k: group for k, group in self._groups.items() if k[1] != topic}
        self._left_over = {k: None for k in self._left_over if k[1] != topic}
        self._commits = {k: last for k, last in self._commits.items() if k[1] != topic}
        self._departed = {k: last for k, last in self._departed.items() if k[1] != topic}

    def _live(self, key: tuple[str, str], now_ms: int) -> _Group | None:
        """Return the group, when it has members whose sessions are not over."""
        group = self._groups.get(key)
        if group is not None and (over := group.over(now_ms)):
            self._remove(key, over)
        return self._groups.get(key)

    def _remove(self, key: tuple[str, str], names: list[str]) -> None:
        """Take members out, and drop a group that has none."""
        group = self._groups[key]
        for name in names:
            self._departed.pop((*key, name), None)
            self._departed[(*key, name)] = group.members[name].sequence
        _forget_oldest(self._departed, MAX_DEPARTED)
        group.remove(names)
        if not group.members:
            del self._groups[key]
            if group.saved or group.uncertain:
                self._left_over[key] = None


@dataclass
class _Member:
    """A live member: how it shows itself, its last heartbeat's number, when its session ends, and
    where it was heard from last, and when it was, and when it committed; -1 for not yet.
    """

    client: str
    sequence: int
    session_timeout_ms: int
    deadline_ms: int
    host: str = ""
    heard_ms: int = -1
    committed_ms: int = -1


@dataclass
class _Committed:
    """Numbers of a committer's latest commit that was begun, and that is stored."""

    begun: int
    done: int = 0


@dataclass
class _Group:
    """One group of one topic; see the module's theory of operation.

    `saved` is what is stored: who holds a partition, and that member's session timeout; `uncertain`
    says that an attempt to store something else may have taken effect.
    """

    partitions: int
    members: dict[str, _Member] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    target: dict[int, str] = field(default_factory=dict)
    saved: dict[int, tuple[str, int]] = field(default_factory=dict)
    uncertain: bool = False
    granted: dict[int, int] = field(default_factory=dict)  # by which of its holder's heartbeats

    @classmethod
    def restored(cls, partitions: int, holdings: Mapping[str, Holding], now_ms: int) -> _Group:
        """Restore the group as it was stored; the sessions of its members begin now."""
        members = {
            name: _Member("", 0, holding.session_timeout_ms, now_ms + holding.session_timeout_ms)
            for name, holding in holdings.items()
        }
        saved = _by_partition(holdings)
        group = cls(partitions, members, {p: name for p, (name, _) in saved.items()}, saved=saved)
        group._retarget()
        return group

    @property
    def covered(self) -> bool:
        """Whether all holders are stored as such, each for as long as its session."""
        if self.uncertain:
            return False
        for partition, name in self.holders.items():
            stored = self.saved.get(partition)
            if stored is None or stored[0] != name:
                return False
            if stored[1] < self.members[name].session_timeout_ms:
                return False
        return True

    def holdings(self) -> dict[str, Holding]:
        """Return what each member holds, of those that hold something."""
        held: dict[str, list[int]] = {}
        for partition, name in sorted(self.holders.items()):
            held.setdefault(name, []).append(partition)
        return {
            name: Holding(self.members[name].session_timeout_ms, partitions)
            for name, partitions in held.items()
        }

    def heartbeat(self, request: GroupHeartbeat, now_ms: int, host: str) -> GroupHeartbeatAnswer:
        member_id = request.member_id
        known = self.members.get(member_id)
        if known is None and len(self.members) >= MAX_MEMBERS:
            raise UnavailableError(f"group {request.group!r} has its most of {MAX_MEMBERS} members")
        if known is None or request.sequence > known.sequence:
            timeout_ms = request.session_timeout_ms
            self.members[member_id] = _Member(
                request.client,
                request.sequence,
                timeout_ms,
                now_ms + timeout_ms,
                host,
                now_ms,
                -1 if known is None else known.committed_ms,
            )
            self._let_go(member_id, set(request.owned))
            if known is None:
                self._retarget()
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

    def _let_go(self, member_id: str, owned: set[int]) -> None:
        """Free what a member does not hold any more."""
        for partition, holder in list(self.holders.items()):
            if holder == member_id and partition not in owned:
                del self.holders[partition]

    def _grant(self, member_id: str) -> None:
        for partition, wanted in self.target.items():
            if wanted == member_id and partition not in self.holders:
                self.holders[partition] = member_id
                self.granted[partition] = self.members[member_id].sequence

    def over(self, now_ms: int) -> list[str]:
        """Members whose sessions are over."""
        return [name for name, member in self.members.items() if member.deadline_ms <= now_ms]

    def remove(self, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            del self.members[member_id]
        self.holders = {p: name for p, name in self.holders.items() if name in self.members}
        self._retarget()

    def _retarget(self) -> None:
        # A partition on its way to someone stays on that way; what is held counts first.
        self.target = assign(self.partitions, self.members, self.target | self.holders)

    def describe(self, now_ms: int) -> list[GroupMember]:
        return [
            GroupMember(
                member_id=member_id,
                client=member.client,
                partitions=[p for p, holder in sorted(self.holders.items()) if holder == member_id],
                host=member.host,
                heard_ms=_since(member.heard_ms, now_ms),
                committed_ms=_since(member.committed_ms, now_ms),
            )
            for member_id, member in sorted(self.members.items())
        ]


def _since(then_ms: int, now_ms: int) -> int:
    return -1 if then_ms < 0 else max(0, now_ms - then_ms)


def _by_partition(holdings: Mapping[str, Holding]) -> dict[int, tuple[str, int]]:
    return {
        partition: (name, holding.session_timeout_ms)
        for name, holding in holdings.items()
        for partition in holding.partitions
    }


def _forget_oldest(known: dict[_Name, _Value], limit: int) -> None:
    while len(known) > limit:
        del known[next(iter(known))]


def _committer(request: CommitOffsets) -> _Name:
    return request.group, request.topic, request.member_id or request.committer


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
    check_name("member id", request.member_id, MAX_NAME)
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
