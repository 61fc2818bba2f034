from collections import Counter
from contextlib import suppress
from itertools import chain
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.consumer.group import GroupMembership
from memq.core import group as group_module
from memq.core.group import MAX_SESSION_TIMEOUT_MS, MIN_SESSION_TIMEOUT_MS, GroupCoordinator, assign
from memq.core.queue import Holding
from memq.core.wire.messages import CommitOffsets, GroupHeartbeat, PartitionOffset
from memq.errors import InvalidRequestError, NotOwnerError, UnavailableError

SESSION_MS = 10_000


class Member:
    """A member that is driven by hand: it takes up what it is given and says what it holds."""

    def __init__(self, coordinator, name, partitions=4, group="g", topic="t"):
        self.coordinator, self.partitions = coordinator, partitions
        self.membership = GroupMembership(
            group=group, topic=topic, member_id=name, client="", session_timeout_ms=SESSION_MS
        )

    def beat(self, now_ms=0):
        """Send a heartbeat, and do what the answer says."""
        heartbeat = self.membership.heartbeat(now_ms)
        answer = self.coordinator.heartbeat(heartbeat, self.partitions, now_ms)
        self.membership.answered(heartbeat, answer, now_ms)
        self.membership.released(self.membership.to_release)
        self.membership.started(self.membership.to_start)
        return answer

    @property
    def held(self):
        """What it works on."""
        return sorted(self.membership.held)


def settle(*members, now_ms=0):
    """Heartbeats of all until nothing moves."""
    for _ in range(10):
        answers = [member.beat(now_ms) for member in members]
        if all(answer.settled for answer in answers):
            return
    raise AssertionError("the group does not settle")


def commit(member_id, *partitions, group="g", topic="t"):
    """A commit for some partitions."""
    offsets = [PartitionOffset(partition=p, offset=1) for p in partitions]
    return CommitOffsets(
        group=group, topic=topic, member_id=member_id, offsets=offsets, heartbeat=1_000
    )


def heartbeat(**changes):
    """A valid heartbeat but for the changes."""
    fields = {"group": "g", "topic": "t", "member_id": "a", "sequence": 1, "owned": []} | changes
    return GroupHeartbeat(**fields)


def test_a_slow_answer_makes_no_session_longer():
    """However late the answer: a member stops by the time its partitions may go to others."""
    coordinator = GroupCoordinator()
    a, b = Member(coordinator, "a"), Member(coordinator, "b")
    half_ms = SESSION_MS // 2
    for sent_ms in (0, half_ms):
        heartbeat = a.membership.heartbeat(sent_ms)
        answer = coordinator.heartbeat(heartbeat, a.partitions, sent_ms)
        a.membership.answered(heartbeat, answer, sent_ms + half_ms - 1)
        a.membership.started(a.membership.to_start)
    over_ms = half_ms + SESSION_MS
    a.membership.expire(over_ms - 1)
    assert a.held == [0, 1, 2, 3]
    a.membership.expire(over_ms)
    assert b.beat(over_ms).assigned == [0, 1, 2, 3]
    assert (a.held, a.membership.lost) == ([], {0, 1, 2, 3})


def test_what_cannot_be_read_may_be_held_for_the_longest_session():
    """When nobody knows who held what, nothing is granted until nobody can hold it any more."""
    coordinator = GroupCoordinator()
    coordinator.restore("g", "t", 4, None, 0)
    with pytest.raises(InvalidRequestError, match="1 live member"):
        coordinator.check_commit(commit(""), MAX_SESSION_TIMEOUT_MS - 1)
    a = Member(coordinator, "a")
    assert a.beat(MAX_SESSION_TIMEOUT_MS - 1).assigned == []
    assert a.beat(MAX_SESSION_TIMEOUT_MS).assigned == [0, 1, 2, 3]


def test_only_what_is_gained_must_be_stored():
    """What a member gets, and a longer session, must be stored; nothing else."""
    coordinator = GroupCoordinator()
    a = Member(coordinator, "a")
    assert coordinator.unsaved("g", "t") is None
    a.beat()
    everything = {"a": Holding(SESSION_MS, [0, 1, 2, 3])}
    assert coordinator.unsaved("g", "t") == everything
    coordinator.saved("g", "t", everything)
    a.beat()
    assert coordinator.unsaved("g", "t") is None
    a.membership.session_timeout_ms = 2 * SESSION_MS
    a.beat()
    assert coordinator.unsaved("g", "t") == {"a": Holding(2 * SESSION_MS, [0, 1, 2, 3])}


def test_what_may_have_been_stored_is_stored_anew():
    """An attempt to store that failed may have taken effect: what was stored before is in doubt."""
    coordinator = GroupCoordinator()
    a, b = Member(coordinator, "a", partitions=1), Member(coordinator, "b", partitions=1)
    a.beat()
    coordinator.saved("g", "t", coordinator.unsaved("g", "t"))
    b.beat()
    coordinator.leave("g", "t", "a", 0)
    b.beat()
    coordinator.storing("g", "t")  # that b holds it; and the disk says no
    a.beat()
    coordinator.leave("g", "t", "b", 0)
    a.beat()
    assert coordinator.unsaved("g", "t") == {"a": Holding(SESSION_MS, [0])}
    coordinator.saved("g", "t", coordinator.unsaved("g", "t"))
    assert coordinator.unsaved("g", "t") is None


@pytest.mark.parametrize("who", [{"member_id": "a"}, {"member_id": "", "committer": "x"}])
def test_commits_of_one_consumer_keep_their_order(who):
    """A commit that was sent again and comes late changes nothing, whatever came in between."""
    coordinator = GroupCoordinator()
    if who["member_id"]:
        Member(coordinator, "a").beat()

    def numbered(sequence):
        position = PartitionOffset(partition=0, offset=sequence)
        return CommitOffsets(
            group="g", topic="t", offsets=[position], sequence=sequence, heartbeat=1, **who
        )

    assert coordinator.check_commit(numbered(1), 0)
    assert coordinator.check_commit(numbered(1), 0), "the first attempt is not known to be stored"
    coordinator.committed(numbered(1), 0)
    assert not coordinator.check_commit(numbered(1), 0)
    assert coordinator.check_commit(numbered(2), 0)
    with pytest.raises(InvalidRequestError, match="commit 1 of group 'g' came after commit 2"):
        coordinator.check_commit(numbered(1), 0)
    coordinator.committed(numbered(1), 0)
    assert coordinator.check_commit(numbered(2), 0)
    assert coordinator.check_commit(numbered(0), 0), "who does not count is not counted"


@pytest.mark.parametrize("ends", ["it leaves", "its session is over"])
def test_heartbeat_of_a_member_that_has_left_is_refused(ends):
    """A heartbeat that was on its way when its member left does not bring it back; nor does its
    last one that comes once more. Members of other groups, topics and names are not concerned.
    """
    coordinator = GroupCoordinator()
    a = Member(coordinator, "a")
    a.beat()
    late = a.membership.heartbeat(0)
    last = a.membership.heartbeat(0)
    coordinator.heartbeat(last, 4, 0)
    now_ms = 0
    if ends == "it leaves":
        coordinator.leave("g", "t", "a", 0)
    else:
        now_ms = SESSION_MS
    for beat in (late, last):
        with pytest.raises(InvalidRequestError, match="came when the member had left"):
            coordinator.heartbeat(beat, 4, now_ms)
    assert coordinator.groups(now_ms) == {}
    for other in (heartbeat(group="h"), heartbeat(topic="u"), heartbeat(member_id="b", group="k")):
        assert coordinator.heartbeat(other, 4, now_ms).assigned == [0, 1, 2, 3]
    a.membership.lose()
    assert a.beat(now_ms).assigned == [0, 1, 2, 3]


def test_a_topic_that_is_deleted_takes_all_of_it_along():
    """Who left, who committed and what is left over: its next topic of the name begins afresh, and
    other topics keep theirs.
    """
    coordinator = GroupCoordinator()
    for topic in "tu":
        coordinator.heartbeat(heartbeat(topic=topic, sequence=9), 1, 0)
        coordinator.saved("g", topic, coordinator.unsaved("g", topic))
        later = commit("a", 0, topic=topic)
        later.sequence = 7
        assert coordinator.check_commit(later, 0)
        coordinator.leave("g", topic, "a", 0)
    coordinator.forget_topic("t")
    assert list(coordinator.left_over()) == [("g", "u")]
    assert coordinator.heartbeat(heartbeat(sequence=9), 1, 0).assigned == [0]
    with pytest.raises(InvalidRequestError, match="had left"):
        coordinator.heartbeat(heartbeat(topic="u", sequence=9), 1, 0)
    coordinator.heartbeat(heartbeat(topic="u", sequence=10), 1, 0)
    first = {topic: commit("a", 0, topic=topic) for topic in "tu"}
    first["t"].sequence = first["u"].sequence = 1
    assert coordinator.check_commit(first["t"], 0)
    with pytest.raises(InvalidRequestError, match="came after commit 7"):
        coordinator.check_commit(first["u"], 0)


def test_a_commit_names_each_partition_that_is_not_held():
    """One that is not held refuses all, wherever it stands; so does one held anew."""
    coordinator = GroupCoordinator()
    a, b = Member(coordinator, "a"), Member(coordinator, "b")
    settle(a, b)
    for partitions, named in (((0, 2), 2), ((2, 0), 2), ((0, 1, 3), 3)):
        with pytest.raises(NotOwnerError, match=f"does not hold partition {named}"):
            coordinator.check_commit(commit("a", *partitions), 0)
    coordinator.check_commit(commit("a", 0, 1), 0)
    coordinator.leave("g", "t", "b", 0)
    sent = a.membership.sequence
    a.beat()
    late = commit("a", 0, 3)
    late.heartbeat = sent
    with pytest.raises(NotOwnerError, match="partition 3 of 't' comes from before"):
        coordinator.check_commit(late, 0)
    late.heartbeat = a.membership.sequence
    coordinator.check_commit(late, 0)


def test_an_administrator_waits_for_the_last_of_the_sessions():
    """The error says how long that may take."""
    coordinator = GroupCoordinator()
    coordinator.heartbeat(heartbeat(session_timeout_ms=30_000), 4, 0)
    coordinator.heartbeat(heartbeat(member_id="b", session_timeout_ms=5_000), 4, 1_000)
    with pytest.raises(InvalidRequestError, match=r"2 live members: .* within 28000 ms"):
        coordinator.check_idle("g", "t", 2_000)
    with pytest.raises(InvalidRequestError, match=r"1 live member: .* within 24000 ms"):
        coordinator.check_idle("g", "t", 6_000)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict.fromkeys(("group", "member_id", "client"), "x" * 200), None),
        ({"session_timeout_ms": MIN_SESSION_TIMEOUT_MS}, None),
        ({"session_timeout_ms": MAX_SESSION_TIMEOUT_MS, "owned": [0, 3]}, None),
        ({"group": ""}, "group ''"),
        ({"group": "a/b"}, "group 'a/b'"),
        ({"group": "g" * 201}, "group 'ggg"),
        ({"member_id": ""}, "member id ''"),
        ({"client": "c" * 201}, "201 characters"),
        ({"session_timeout_ms": MIN_SESSION_TIMEOUT_MS - 1}, "999 ms"),
        ({"session_timeout_ms": MAX_SESSION_TIMEOUT_MS + 1}, "300001 ms"),
        ({"owned": [4]}, "partition 4 of 't', which has 4"),
        ({"owned": [-1]}, "partition -1"),
    ],
)
def test_heartbeats_are_checked(changes, named):
    """One with a field out of its limits is refused by an error that names the value."""
    coordinator = GroupCoordinator()
    if named is None:
        assert coordinator.heartbeat(heartbeat(**changes), 4, 0).assigned == [0, 1, 2, 3]
        return
    with pytest.raises(InvalidRequestError, match=named):
        coordinator.heartbeat(heartbeat(**changes), 4, 0)
    assert coordinator.groups(0) == {}


def test_bounds(monkeypatch):
    """Members and groups beyond the limit are refused, and those that live are not harmed."""
    monkeypatch.setattr(group_module, "MAX_GROUPS", 1)
    monkeypatch.setattr(group_module, "MAX_MEMBERS", 1)
    coordinator = GroupCoordinator()
    a = Member(coordinator, "a")
    a.beat()
    with pytest.raises(UnavailableError, match="most of 1 members"):
        Member(coordinator, "b").beat()
    with pytest.raises(UnavailableError, match="most of 1 groups"):
        Member(coordinator, "a", group="h").beat()
    assert a.beat().assigned == [0, 1, 2, 3]


names = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(
    partitions=st.integers(0, 20),
    current=st.dictionaries(st.integers(0, 19), st.sampled_from("abcdefgh")),
    members=names,
)
def test_assignment_is_balanced_and_moves_little(partitions, current, members):
    """An assignment is balanced, moves no more than balance asks for, and then moves nothing."""
    current = {p: name for p, name in current.items() if p < partitions}
    target = assign(partitions, members, current)
    if not members:
        assert target == {}
        return
    loads = Counter(target.values())
    shares = [loads[name] for name in members]
    assert sorted(target) == list(range(partitions))
    assert max(shares) - min(shares) <= 1
    share, extra = divmod(partitions, len(members))
    held = sorted((Counter(current.values())[name] for name in members), reverse=True)
    kept = sum(min(have, share + (at < extra)) for at, have in enumerate(held))
    assert sum(target[p] == name for p, name in current.items()) == kept
    assert assign(partitions, members, target) == target


class World:
    """Members, a coordinator and a network that loses, delays, repeats and reorders."""

    PARTITIONS = 5
    NAMES = "abc"
    WEIGHTS: ClassVar = {
        "exchange": 40,
        "send": 20,
        "deliver": 30,
        "repeat": 10,
        "answer": 30,
        "lose_one": 5,
        "poll": 60,
        "time_passes": 20,
        "leave": 3,
        "restart": 3,
        "restart_while_storing": 4,
        "work": 40,
        "commit": 30,
        "deliver_commit": 30,
    }

    def __init__(self, seed):
        self.random = Random(seed)
        self.now_ms = 0
        self.coordinator = GroupCoordinator()
        self.stored = {}  # on the disk: who holds what,
        self.committed = dict.fromkeys(range(self.PARTITIONS), 0)  # and how far the group has come
        self.progress = {}  # by member and partition
        self.made = dict.fromkeys(self.NAMES, 0)  # commits of each member
        self.commits = []  # on their way to the coordinator; some come twice
        self.members = {
            name: GroupMembership(
                group="g", topic="t", member_id=name, client="", session_timeout_ms=SESSION_MS
            )
            for name in self.NAMES
        }
        self.beats = []  # on their way to the coordinator
        self.answers = []  # with their heartbeats, on their way back

    def step(self):
        """Let something happen."""
        action = self.random.choices([*self.WEIGHTS], [*self.WEIGHTS.values()])[0]
        getattr(self, action)(self.random.choice([*self.members.values()]))
        self.check()

    def send(self, member):
        """A heartbeat goes out; the member does not wait for the ones before any more."""
        self.beats.append(member.heartbeat(self.now_ms))

    def ask(self, beat):
        """The coordinator gets a heartbeat; its answer with it, when what it says is stored."""
        try:
            answer = self.coordinator.heartbeat(beat, self.PARTITIONS, self.now_ms)
        except InvalidRequestError:  # it comes too late
            return beat, None
        holdings = self.coordinator.unsaved("g", "t")
        if holdings is not None:
            self.stored = holdings
            self.coordinator.saved("g", "t", holdings)
        for key in list(self.coordinator.left_over()):
            self.stored = {}
            self.coordinator.saved(*key, {})
        return beat, answer

    def take(self, beat, answer):
        """A member gets an answer; it may be one that it does not wait for any more."""
        if answer is not None:
            self.members[beat.member_id].answered(beat, answer, self.now_ms)

    def exchange(self, member):
        """A heartbeat goes out, arrives, and is answered."""
        self.take(*self.ask(member.heartbeat(self.now_ms)))

    def pick(self, waiting):
        """One of those on their way, taken out."""
        self.random.shuffle(waiting)
        return waiting.pop()

    def deliver(self, _):
        """Some heartbeat reaches the coordinator."""
        if self.beats:
            self.answers.append(self.ask(self.pick(self.beats)))

    def repeat(self, _):
        """Some heartbeat reaches the coordinator, and will do so again."""
        if self.beats:
            self.answers.append(self.ask(self.random.choice(self.beats)))

    def answer(self, _):
        """Some answer reaches its member."""
        if self.answers:
            self.take(*self.pick(self.answers))

    def lose_one(self, _):
        """Something is lost on its way."""
        on_the_way = self.random.choice([self.beats, self.answers])
        if on_the_way:
            self.pick(on_the_way)

    def poll(self, member):
        """The application polls: partitions are given up and taken up, or all is lost."""
        member.expire(self.now_ms)
        member.released(member.to_release)
        for partition in member.to_start:
            self.progress[member.member_id, partition] = self.committed[partition]
        member.started(member.to_start)

    def work(self, member):
        """A member comes a step further with what it holds."""
        for partition in self.working(member):
            self.progress[member.member_id, partition] += 1

    def commit(self, member):
        """A member commits, perhaps twice, and goes on whether or not that comes through."""
        name = member.member_id
        offsets = [PartitionOffset(p, self.progress[name, p]) for p in sorted(self.working(member))]
        self.made[name] += 1
        request = CommitOffsets(
            group="g",
            topic="t",
            member_id=name,
            offsets=offsets,
            sequence=self.made[name],
            heartbeat=member.sequence,
        )
        self.commits += [request] * self.random.choice([1, 1, 2])

    def deliver_commit(self, _):
        """Some commit reaches the coordinator, perhaps long after others; none goes back."""
        if not self.commits:
            return
        request = self.pick(self.commits)
        try:
            if not self.coordinator.check_commit(request, self.now_ms):
                return
        except (NotOwnerError, InvalidRequestError):
            return
        for partition, offset in ((p.partition, p.offset) for p in request.offsets):
            assert offset >= self.committed[partition]
            self.committed[partition] = offset
        self.coordinator.committed(request, self.now_ms)

    def leave(self, member):
        """A member stops and says so; what it sent before is through or lost."""
        member.lose()
        self.beats = [beat for beat in self.beats if beat.member_id != member.member_id]
        self.coordinator.leave("g", "t", member.member_id, self.now_ms)

    def time_passes(self, _):
        """The clock moves on for everybody; seldom so far that sessions end."""
        self.now_ms += self.random.choice([1, 500, 500, 3_000, SESSION_MS])

    def restart(self, _):
        """The broker is restarted: it knows what was stored, and connections end."""
        self.beats.clear()
        self.answers.clear()
        self.commits.clear()
        self.coordinator = GroupCoordinator()
        self.coordinator.restore("g", "t", self.PARTITIONS, self.stored, self.now_ms)

    def restart_while_storing(self, member):
        """The broker is restarted before an answer leaves; what it grants may be forgotten."""
        beat = member.heartbeat(self.now_ms)
        answer = self.coordinator.heartbeat(beat, self.PARTITIONS, self.now_ms)
        holdings = self.coordinator.unsaved("g", "t")
        if holdings is not None:
            self.stored = self.random.choice([self.stored, holdings])
        self.restart(member)
        with suppress(UnavailableError):
            self.coordinator.check_granted(beat, answer)
            self.take(beat, answer)

    def working(self, member):
        """What a member works on: nothing once its session is over by its own clock."""
        over = member._expires_ms is not None and self.now_ms >= member._expires_ms
        return set() if over else member.held

    def check(self):
        """Nobody shares a partition, and who works on one may commit for it."""
        held = [p for member in self.members.values() for p in self.working(member)]
        assert len(held) == len(set(held))
        for shown in self.coordinator.members("g", "t", self.now_ms):
            assert self.working(self.members[shown.member_id]) <= set(shown.partitions)

    def come_to_rest(self):
        """The network works again, and everybody polls."""
        self.beats.clear()
        self.now_ms += 2 * SESSION_MS
        for _ in range(5):
            for member in self.members.values():
                self.poll(member)
                self.exchange(member)
                self.poll(member)
                self.check()


@given(seed=st.integers(0, 2**32))
def test_no_two_members_share_a_partition(seed):
    """Whatever network and restarts do, no partition has two workers, and no commit goes back.

    At rest all is shared out evenly.
    """
    world = World(seed)
    for _ in range(300):
        world.step()
    world.come_to_rest()
    held = [sorted(member.held) for member in world.members.values()]
    assert sorted(chain(*held)) == list(range(World.PARTITIONS))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert all(member.settled for member in world.members.values())
