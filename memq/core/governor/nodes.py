"""What stands in the coordination service: paths below the cluster's root, and what the nodes hold.

    /cluster            what the brokers have in common (`memq.broker.identity`)
    /brokers/ID         ephemeral: a broker that lives, and what it has to offer
    /members/ID         a broker that is expected: it registered, and has not said goodbye
    /governor           ephemeral: id of the broker that governs
    /election           id of the broker that was elected last; its version grows with each election
    /topics/NAME        a topic
    /doomed/NAME.ID    a topic id of which something may be left to remove
    /assignments/NAME   which broker owns which write partition of a topic
    /draining/ID        is there while a drain of that broker is wanted
    /loads/ID           ephemeral: what a broker has taken over, and how much is written to it
    /rebalance          its version grows with each request to even out the loads
    /access/document    users and rules (`memq.core.access.document`)
    /features/active    the active feature level (`memq.core.features`)

All of it is JSON. A field that is not known is passed over, and one with a default may be missing,
so that brokers of two versions work side by side. What cannot be understood otherwise raises an
error that names the node; the reader decides whether it goes on without.

`/topics` has a version of its own, which grows with each deletion of a topic
(`memq.zookeeper.shared_catalog`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.features import ActiveLevel
from memq.core.governor.assignment import BrokerResources
from memq.core.governor.topics import Topic
from memq.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.core.governor.assignment import Partition

T = TypeVar("T")

GOVERNOR = "/governor"
ELECTION = "/election"
REBALANCE = "/rebalance"
DRAINING = "/draining"  # of its children only the names count
ACCESS = "/access"
ACCESS_DOCUMENT = "document"

ALL_ROLES = "all"
READ_ROLE = "read"


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """What made the cluster, and what the brokers of it must have.

    Attributes:
        cluster_id: of the cluster.
        queue: Kafka's own id of its cluster; empty when it has none.
        storage: the root of the storage, as its maker calls it.
        object: key of an object that lies there.
        broker: id of the broker that made it.
    """

    cluster_id: str
    queue: str
    storage: str
    object: str
    broker: str


class BrokerNode(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that lives.

    Attributes:
        id: its broker id.
        address: `host:port` at which clients and other brokers reach it.
        zone: availability zone; empty when it is not known.
        rack: within the zone; empty when it is not known.
        capacity: what it can carry, in relation to other brokers; above 0.
        role: `ALL_ROLES`; or `READ_ROLE`, and any other that is not known: it takes no write
            partitions.
        accepting: whether it takes more of them, such as not while it stops.
        listeners: `host:port` of its other listeners, by name, if it has others.
        lost_ms: of a member: when it was seen to be gone, milliseconds since 1970 UTC; 0 before.
        levels: lowest and highest feature level that it knows; versions that do not say know 1.
    """

    id: str
    address: str
    zone: str = ""
    rack: str = ""
    capacity: float = 1.0
    role: str = ALL_ROLES
    accepting: bool = True
    listeners: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    lost_ms: int = 0
    levels: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        self.resources()

    def resources(self) -> BrokerResources:
        """Return the broker's resources, which assignment needs.

        Raises:
            InvalidRequestError: the id is empty, or the capacity is not a number above 0.
        """
        accepting = self.accepting and self.role == ALL_ROLES
        return BrokerResources(self.id, self.capacity, self.zone, self.rack, accepting)


class DoomedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A topic id of which something may be left to remove.

    Attributes:
        topic: the topic, without its schemas.
        by: id of the broker that is making the topic right now; empty when it is to be removed.
    """

    topic: Topic
    by: str


class LoadsNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a broker has taken over.

    Attributes:
        loads: by topic and number of the write partition: bytes per second, over the last minute.
        unknown: those of which that is not known yet, by topic; older brokers take it for 0.
    """

    loads: dict[str, dict[int, float]]
    unknown: dict[str, list[int]] = {}

    @classmethod
    def create(cls, loads: Mapping[Partition, float | None]) -> LoadsNode:
        """Make what to store for these loads."""
        node = cls(loads={}, unknown={})
        for (topic, number), load in sorted(loads.items()):
            node.loads.setdefault(topic, {})[number] = load or 0.0
            if load is None:
                node.unknown.setdefault(topic, []).append(number)
        return node

    def by_partition(self) -> dict[Partition, float | None]:
        """Return what was given to `create`."""
        return {
            (topic, number): None if number in self.unknown.get(topic, ()) else load
            for topic, numbers in self.loads.items()
            for number, load in numbers.items()
        }


class TopicAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which broker owns which write partition of a topic.

    Attributes:
        topic_id: of the topic.
        epoch: grows with each change.
        owners: broker id by write partition; empty for one that nobody owns.
    """

    topic_id: str
    epoch: int
    owners: tuple[str, ...]


class Folder(NamedTuple, Generic[T]):
    """A node with children of one kind.

    Attributes:
        path: its own.
        holds: what a child holds.
        kind: what that is, in words.
        way_out: what a person does about a child that cannot be understood.
    """

    path: str
    holds: type[T]
    kind: str
    way_out: str

    def child(self, name: str) -> str:
        """Return the path of a child."""
        return f"{self.path}/{name}"

    def encode(self, value: T) -> bytes:
        """Return the bytes of a child that holds this."""
        return msgspec.json.encode(value)

    def decode(self, name: str, data: bytes) -> T:
        """Decode what the bytes of a child say.

        Raises:
            CorruptDataError: they are nothing of this kind, or belong to a child of another name.
        """
        try:
            value = msgspec.json.decode(data, type=self.holds)
        except (*UNDECODABLE, InvalidRequestError) as exc:
            raise self._corrupt(name, f"{data[:100]!r} ({exc})") from exc
        meant = _name_of(value)
        if meant not in ("", name):
            raise self._corrupt(name, f"that of {meant!r}")
        return value

    def _corrupt(self, name: str, found: str) -> CorruptDataError:
        return CorruptDataError(
            f"node {self.child(name)!r} must hold {self.kind}, and holds {found}: {self.way_out}"
        )


def _name_of(value: object) -> str:
    """Return the name of the node that holds this; empty when it does not say."""
    match value:
        case BrokerNode(id=name) | Topic(name=name):
            return name
        case DoomedNode(topic=topic):
            return topic.queue_topic
    return ""


CLUSTER = Folder(
    "",
    ClusterNode,
    "what the brokers have in common",
    "stop all brokers and delete it; the next to start recreates it",
)
BROKERS = Folder(
    "/brokers",
    BrokerNode,
    "the registration of a broker",
    "restart that broker, which recreates it",
)
MEMBERS = Folder(
    "/members",
    BrokerNode,
    "a broker that is expected",
    "delete it; that broker recreates it when it registers",
)
TOPICS = Folder(
    "/topics",
    Topic,
    "a topic",
    "put back what it held, or delete it, and create the topic again",
)
DOOMED = Folder(
    "/doomed",
    DoomedNode,
    "what is to be removed of a topic",
    "delete it; what is left of that topic in the queue and in the storage then stays",
)
ASSIGNMENTS = Folder(
    "/assignments",
    TopicAssignment,
    "the assignment of a topic",
    "restart the broker that governs; the next one to be elected recreates it",
)
LOADS = Folder(
    "/loads",
    LoadsNode,
    "the loads of a broker",
    "that broker rewrites it when it takes something over or its traffic changes",
)
FEATURES = Folder(
    "/features",
    ActiveLevel,
    "the active feature level",
    "put back what it held: a level that is too low lets older versions start",
)
ACTIVE = "active"

PERSISTENT = (
    *(each.path for each in (BROKERS, MEMBERS, TOPICS, DOOMED, ASSIGNMENTS, LOADS, FEATURES)),
    DRAINING,
    ELECTION,
    REBALANCE,
    ACCESS,
)
"""Nodes that every cluster has, from its first start on."""
