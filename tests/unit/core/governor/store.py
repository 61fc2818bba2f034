"""A model of what a Governor works on: assignment nodes with versions, and elections."""

from memq.core.governor.coordination import Check
from memq.core.governor.governor import (
    AssignmentTransaction,
    ClusterSnapshot,
    ReadAgain,
    StoredNode,
)
from memq.core.governor.nodes import ASSIGNMENTS


class Store:
    """Nodes and transactions as ZooKeeper has them.

    Attributes:
        nodes: assignment nodes by topic.
        elections: how many there were; the last one holds.
    """

    def __init__(self):
        self.nodes: dict[str, StoredNode] = {}
        self.elections = 0

    def elect(self):
        """Hold an election; what its winner must check."""
        self.elections += 1
        return self.election

    @property
    def election(self):
        """What holds now."""
        return Check(f"/election/{self.elections}", 0)

    def apply(self, transaction: AssignmentTransaction) -> bool:
        """Do all of a transaction, or nothing of it."""
        if transaction.check != self.election:
            return False
        for change in transaction.changes:
            node = self.nodes.get(change.topic)
            if change.version != (-1 if node is None else node.version):
                return False
        for change in transaction.changes:
            if change.data is None:
                del self.nodes[change.topic]
            else:
                self.nodes[change.topic] = StoredNode(change.data, change.version + 1)
        return True

    def assignments(self):
        """What the nodes say."""
        return {topic: ASSIGNMENTS.decode(topic, node.data) for topic, node in self.nodes.items()}

    def owners(self):
        """Owner by topic and write partition."""
        return {
            (topic, number): owner
            for topic, found in self.assignments().items()
            for number, owner in enumerate(found.owners)
        }


class Cluster:
    """One Governor with its store; everything is carried out at once."""

    def __init__(self, governor, brokers=(), topics=(), *, draining=(), store=None):
        self.governor, self.store, self.now_ms = governor, store or Store(), 0
        self.transactions: list[AssignmentTransaction] = []
        self.elect(brokers, topics, draining)

    def elect(self, brokers=(), topics=(), draining=(), *, registered_ms=None):
        """Let the Governor be elected, with what is there; its broker has just registered."""
        snapshot = ClusterSnapshot(brokers, topics, dict(self.store.nodes), draining)
        registered_ms = self.now_ms if registered_ms is None else registered_ms
        self.governor.elected(
            snapshot, self.store.elect(), self.now_ms, registered_ms=registered_ms
        )

    def step(self):
        """Carry out what it wants next; None when it wants nothing."""
        found = self.governor.tick(self.now_ms)
        if isinstance(found, ReadAgain):
            self.governor.read(dict(self.store.nodes))
        elif found is not None:
            self.transactions.append(found)
            if self.store.apply(found):
                self.governor.written(found.number, self.now_ms)
            else:
                self.governor.refused(found.number)
        return found

    def settle(self, pass_ms=0):
        """Let time pass, then carry out everything; the transactions that there were."""
        self.now_ms += pass_ms
        before = len(self.transactions)
        for _ in range(1_000):
            if self.step() is None:
                return self.transactions[before:]
        raise AssertionError("the Governor does not settle")

    def report(self, loads=None, *, without=()):
        """Every owner reports what it owns; 1,000 bytes/s each where nothing else is said."""
        owned: dict[str, dict] = {}
        for key, owner in self.store.owners().items():
            if owner and owner not in without:
                owned.setdefault(owner, {})[key] = (loads or {}).get(key, 1_000.0)
        for owner, found in owned.items():
            self.governor.loads_reported(owner, found)
