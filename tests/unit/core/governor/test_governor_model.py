"""Two Governors at a time, with answers that get lost and transactions that arrive late."""

from collections import deque

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memq.core.governor.assignment import BrokerResources
from memq.core.governor.governor import (
    MAX_MOVING,
    REBALANCE_INTERVAL_MS,
    SETTLE_MS,
    ClusterSnapshot,
    Governor,
    ReadAgain,
    TopicPartitions,
)
from memq.core.governor.nodes import ASSIGNMENTS
from tests.unit.core.governor.store import Store

BROKERS = st.sampled_from(["a", "b", "c", "d"])
TOPICS = st.sampled_from(["t", "u", "v"])


class Candidate:
    """A broker process that may be the Governor, with what is on its way to it and from it."""

    def __init__(self, name):
        self.name, self.governor = name, Governor()
        self.registered_ms = 0
        self.check = None
        self.events: deque = deque()
        self.sent = None
        self.read_wanted = False


class Governing(RuleBasedStateMachine):
    """Whatever fails: only the Governor of the last election writes, and it ends well."""

    @initialize()
    def start(self):
        self.store = Store()
        self.now_ms = 0
        self.candidates = {name: Candidate(name) for name in "gh"}
        self.brokers: dict[str, BrokerResources] = {}
        self.topics: dict[str, TopicPartitions] = {}
        self.draining: dict[str, None] = {}
        self.late: list = []
        self.topic_ids = 0
        self.moves: dict = {}  # by transaction: what it moves for balance, by its sender's account
        self.may_move: dict = {}  # write partitions of which an owner was lost or did not accept
        self.newest: dict = {}  # epoch by topic and topic_id
        self.loads: dict = {}
        for name, zone in (("a", "x"), ("b", "y"), ("c", "x")):
            self.brokers[name] = BrokerResources(name, 1.0, zone)
        for name, write_partitions in (("t", 5), ("u", 3)):
            self.topic_is_created_or_grows(name, write_partitions)
        self.elect("g")
        self.work(2, 0)

    # -- the cluster ------------------------------------------------------------------------

    def tell(self, event, *arguments):
        """An event is on its way to whoever thinks that it is the Governor."""
        for each in self.candidates.values():
            if each.check is not None:
                each.events.append((event, arguments))

    def note_reasons(self):
        """Owners that do not live or do not accept lose what they own, sooner or later."""
        for key, owner in self.store.owners().items():
            if owner and not self.accepts(owner):
                self.may_move[key] = None

    def accepts(self, name):
        found = self.brokers.get(name)
        return found is not None and found.accepting and name not in self.draining

    @rule(
        name=BROKERS,
        capacity=st.sampled_from([1.0, 2.0]),
        zone=st.sampled_from(["x", "y"]),
        accepting=st.sampled_from([True, True, False]),
    )
    def broker_registers(self, name, capacity, zone, accepting):
        self.brokers[name] = BrokerResources(name, capacity, zone, "", accepting)
        self.tell("broker_registered", self.brokers[name])
        self.note_reasons()

    @precondition(lambda self: len(self.brokers) > 1)
    @rule(data=st.data())
    def broker_dies(self, data):
        name = data.draw(st.sampled_from(sorted(self.brokers)))
        del self.brokers[name]
        self.tell("broker_gone", name)
        self.note_reasons()

    @rule(name=BROKERS)
    def drain(self, name):
        if name in self.draining:
            del self.draining[name]
            self.tell("drain_withdrawn", name)
        else:
            self.draining[name] = None
            self.tell("drain_requested", name)
        self.note_reasons()

    @rule(name=TOPICS, write_partitions=st.integers(1, 6))
    def topic_is_created_or_grows(self, name, write_partitions):
        old = self.topics.get(name)
        if old is None:
            self.topic_ids += 1
            topic = TopicPartitions(name, f"i{self.topic_ids}", write_partitions)
        else:
            topic = old._replace(write_partitions=max(write_partitions, old.write_partitions))
        self.topics[name] = topic
        self.tell("topic_changed", topic)

    @precondition(lambda self: len(self.topics) > 1)
    @rule(data=st.data(), anew=st.booleans())
    def topic_is_deleted(self, data, anew):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        old = self.topics.pop(name)
        if not anew:
            self.tell("topic_deleted", name)
            return
        self.topic_ids += 1
        self.topics[name] = old._replace(topic_id=f"i{self.topic_ids}")
        self.tell("topic_changed", self.topics[name])

    @rule(data=st.data(), load=st.sampled_from([0.0, 1.0, 10.0, 30.0]))
    def traffic_changes(self, data, load):
        if owners := self.store.owners():
            self.loads[data.draw(st.sampled_from(sorted(owners)))] = load

    @rule()
    def brokers_report(self):
        owned: dict[str, dict] = {}
        for key, owner in self.store.owners().items():
            owned.setdefault(owner, {})[key] = self.loads.get(key, 5.0)
        for owner in sorted(owned.keys() & self.brokers.keys()):
            self.tell("loads_reported", owner, owned[owner])

    @rule()
    def rebalance_is_requested(self):
        self.tell("rebalance_requested")

    @rule(ms=st.sampled_from([100, SETTLE_MS, REBALANCE_INTERVAL_MS]))
    def time_passes(self, ms):
        self.now_ms += ms

    # -- the Governors ----------------------------------------------------------------------

    @precondition(lambda self: self.steps >= 8)
    @rule(name=st.sampled_from("gh"), anew=st.booleans())
    def elect_again(self, name, anew):
        """Its broker has been there for long, or has just registered anew."""
        if anew:
            self.candidates[name].registered_ms = self.now_ms
        self.elect(name)

    def elect(self, name):
        """The one before is not told."""
        self.steps = 0  # since the election
        self.leader = name
        each = self.candidates[name]
        each.events.clear()
        each.sent, each.read_wanted = None, False
        each.check = self.store.elect()
        snapshot = ClusterSnapshot(
            tuple(self.brokers.values()),
            tuple(self.topics.values()),
            dict(self.store.nodes),
            tuple(self.draining),
        )
        each.governor.elected(snapshot, each.check, self.now_ms, registered_ms=each.registered_ms)

    @rule(name=st.sampled_from("gh"))
    def depose(self, name):
        each = self.candidates[name]
        if each.check is not None and each.check != self.store.election:
            each.governor.deposed()
            each.check = each.sent = None
            each.events.clear()

    @rule(name=st.sampled_from("gh"), count=st.integers(1, 5))
    def events_arrive(self, name, count):
        each = self.candidates[name]
        for _ in range(min(count, len(each.events))):
            event, arguments = each.events.popleft()
            getattr(each.governor, event)(*arguments)

    @rule(name=st.sampled_from("gh"))
    def tick(self, name):
        self.let_decide(name)

    def let_decide(self, name):
        each = self.candidates[name]
        waiting = each.sent is not None
        found = each.governor.tick(self.now_ms)
        assert found is None or not waiting, "one transaction at a time"
        if isinstance(found, ReadAgain):
            each.read_wanted = True
        elif found is not None:
            assert each.check is not None, "only who was elected writes"
            assert len({change.topic for change in found.changes}) == len(found.changes)
            each.sent = found
            self.moves[found] = self.moves_for_balance(each.governor, found)
        return found

    def moves_for_balance(self, governor, transaction):
        """What moves though its owner accepts, as its sender knows; at most so many."""
        known = governor._present()
        after = dict(known)
        for change in transaction.changes:
            if change.data is not None:
                found = ASSIGNMENTS.decode(change.topic, change.data)
                for number, owner in enumerate(found.owners):
                    after[change.topic, number] = owner
        moved = [key for key in known if known[key] != after[key] and governor._accepts(known[key])]
        assert len(moved) <= MAX_MOVING
        return moved

    @rule(name=st.sampled_from("gh"), how=st.sampled_from(["answered", "lost", "late"]))
    def transaction_arrives(self, name, how):
        """It may be carried out with the answer lost, or long after its sender has given it up."""
        each = self.candidates[name]
        transaction, each.sent = each.sent, None
        if transaction is None:
            return
        if how == "late":
            self.late.append((name, each.check, transaction))
            done = False
        else:
            done = self.carry_out(each.check, transaction) and how == "answered"
        if done:
            each.governor.written(transaction.number, self.now_ms)
        else:
            each.governor.refused(transaction.number)

    @precondition(lambda self: self.late)
    @rule()
    def late_transaction_arrives(self):
        name, check, transaction = self.late.pop(0)
        done = self.carry_out(check, transaction)
        if done:  # the answer comes as well, and is too late
            self.candidates[name].governor.written(transaction.number, self.now_ms)

    @rule(times=st.integers(1, 4), ms=st.sampled_from([0, 1_000, SETTLE_MS]))
    def work(self, times, ms):
        """Nothing is lost for a while."""
        self.now_ms += ms
        for _ in range(times):
            self.events_arrive(self.leader, 1_000)
            self.read(self.leader)
            self.let_decide(self.leader)
            self.transaction_arrives(self.leader, "answered")

    @rule()
    def work_on_traffic(self):
        """The brokers report, and the Governor has time to even out."""
        for _ in range(4):
            self.brokers_report()
            self.work(2, REBALANCE_INTERVAL_MS // 3)

    @rule(name=st.sampled_from("gh"))
    def read(self, name):
        each = self.candidates[name]
        if each.read_wanted:
            each.read_wanted = False
            each.governor.read(dict(self.store.nodes))

    def carry_out(self, check, transaction):
        """Let the store do it; whatever it does must be right."""
        before, old = self.store.assignments(), self.store.owners()
        done = self.store.apply(transaction)
        after = self.store.assignments()
        assert after == before or done
        assert not done or check == self.store.election, "a deposed Governor has written"
        for topic, found in after.items():
            if before.get(topic) != found:
                life = topic, found.topic_id
                assert found.epoch > self.newest.get(life, 0)
                if topic in before:
                    assert found.epoch > before[topic].epoch
                self.newest[life] = found.epoch
                self.check_moves(before.get(topic), found, topic, old, self.moves[transaction])
        self.note_reasons()
        return done

    def check_moves(self, before, after, topic, old, balance):
        if before is None or before.topic_id != after.topic_id:
            return
        for number, owner in enumerate(after.owners):
            key = topic, number
            if old.get(key) and old[key] != owner:
                assert key in self.may_move or key in balance, "moved without a reason"
                self.may_move.pop(key, None)

    @invariant()
    def they_can_be_described(self):
        self.steps = getattr(self, "steps", 0) + 1
        for each in getattr(self, "candidates", {}).values():
            msgspec.json.encode(each.governor.describe())

    # -- the end ----------------------------------------------------------------------------

    def teardown(self):
        """When nothing fails any more, all have one owner, and nothing goes on moving."""
        if not hasattr(self, "store"):
            return
        while self.late:
            self.late_transaction_arrives()
        leader = self.leader
        self.depose("h" if leader == "g" else "g")
        self.transaction_arrives(leader, "answered")
        quiet = 0
        for _ in range(1_000):
            if quiet > 3 * REBALANCE_INTERVAL_MS // SETTLE_MS:
                break
            self.events_arrive(leader, 1_000)
            self.read(leader)
            found = self.let_decide(leader)
            self.transaction_arrives(leader, "answered")
            self.brokers_report()
            quiet = quiet + 1 if found is None else 0
            self.now_ms += SETTLE_MS
        else:
            raise AssertionError("it does not come to rest")
        self.check_end(self.candidates[leader].governor.describe())

    def check_end(self, description):
        found = self.store.assignments()
        assert found.keys() == self.topics.keys()
        somebody = any(self.accepts(name) for name in self.brokers)
        for name, topic in self.topics.items():
            assert found[name].topic_id == topic.topic_id
            assert len(found[name].owners) == topic.write_partitions
            for owner in found[name].owners:
                assert self.accepts(owner) if somebody else owner in (*self.brokers, "")
        shown = {
            (topic, number): broker.id
            for broker in description.brokers
            for topic, numbers in broker.write_partitions.items()
            for number in numbers
        }
        assert shown == {key: owner for key, owner in self.store.owners().items() if owner}
        assert description.moving == []


Governing.TestCase.settings = settings(stateful_step_count=80)
TestGoverning = Governing.TestCase
