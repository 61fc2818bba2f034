"""Every request and answer of the protocol, as typed headers.

A frame's header is one of these structs in msgpack, as a map, so that a field can be added with a
default and older peers skip it. `REQUESTS` pairs each request with its type code and its answer;
that table is the protocol.
"""

from __future__ import annotations

import msgspec

from memq.core.topic import TopicConfig
from memq.core.units import iso_ms

PROTOCOL_VERSION = 1


class Struct(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of all headers."""


# -- connection -----------------------------------------------------------------------------


class Handshake(Struct):
    """First request on a connection.

    Attributes:
        versions: protocol versions that the client speaks.
        client: free text that names the client in logs.
        token: credential; empty where the broker asks for none.
        zone: where the client runs; empty when it does not say. The broker counts what crosses.
    """

    versions: list[int]
    client: str = ""
    token: str = ""
    zone: str = ""


class HandshakeAnswer(Struct):
    """The version chosen, who answers, and the limits that hold on this connection."""

    version: int
    cluster_id: str
    broker_id: str
    max_header_bytes: int
    max_body_bytes: int


class ErrorAnswer(Struct):
    """Header of an answer that has the ERROR flag.

    Attributes:
        code: `MemqError.code` of the error.
        message: what was wrong and the way out.
        retriable: whether the same request may succeed later.
        address: of the broker to ask instead, for `not_hosted`.
    """

    code: str
    message: str
    retriable: bool = False
    address: str = ""


class TopicRequest(Struct):
    """Base of all requests about what one incarnation of a topic holds.

    Attributes:
        topic: the topic.
        incarnation: of the topic that is meant, from its `TopicInfo`; empty for whichever there is.
            Another one is refused with `topic_recreated`.
    """

    topic: str
    incarnation: str = ""


class Done(Struct):
    """An answer that says nothing but that it was done."""


# -- metadata and topics --------------------------------------------------------------------


class Metadata(Struct):
    """Ask for brokers and topics; an unknown topic, and more than 100 named ones, are an error.

    Attributes:
        topics: the topics wanted; None for all.
        create: make those that do not exist, where the broker has `auto_create_topics`.
        after: of all topics, those whose name sorts after this.
        known: `version` of the answer that the client has, for the same topics;
        max_wait_ms: while the answer would have the same version, wait for so long.
    """

    topics: list[str] | None = None
    create: bool = False
    after: str = ""
    known: str = ""
    max_wait_ms: int = 0


class BrokerInfo(Struct):
    """A broker and where it answers.

    Attributes:
        id: its broker id.
        address: `host:port`.
        zone: where it runs; empty when it does not say.
        reads: its role is to read: clients read there where they can.
    """

    id: str
    address: str
    zone: str = ""
    reads: bool = False


class TopicInfo(Struct):
    """A topic as clients need it.

    Attributes:
        config: its configuration.
        schemas: every schema that Messages may have, serialized, by schema id; the newest is
            `schema_id`.
        schema_id: the schema to send with.
        hosts: address of the broker of each write partition, by position; empty while nobody owns
            it.
        queue_address: address of the broker that coordinates the topic's groups, and that
            notifications are read from where no broker is better; empty while nobody does.
        named_partitions: write partitions, from the first on, that a producer with an id of its own
            spreads its Messages over: as many as the topic was made with. A job that is run again
            after more were added so gives each Message the name that it had.
        created_ms: when it was created, milliseconds since 1970 UTC.
        incarnation: random name of this life of the topic; one that is recreated under the same
            name has another.
    """

    config: TopicConfig
    schemas: dict[str, bytes]
    schema_id: str
    hosts: list[str]
    queue_address: str
    named_partitions: int
    created_ms: int = 0
    incarnation: str = ""


class MetadataAnswer(Struct):
    """The cluster, its brokers and the topics asked for.

    Attributes:
        cluster_id: the cluster.
        brokers: its brokers.
        topics: those named, in that order; or else as many as one answer holds, sorted by name.
        more: there are further topics; ask for those after the last one.
        version: stands for the topics that were named, and changes with them; empty where they
            stay on one broker, so that there is nothing to wait for.
    """

    cluster_id: str
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]
    more: bool = False
    version: str = ""


class CreateTopic(Struct):
    """Create a topic.

    Attributes:
        config: its configuration.
        request_id: random; the same request sent again is answered with the topic that it made.
    """

    config: TopicConfig
    request_id: str = ""


class AlterTopic(Struct):
    """Change options of a topic.

    Attributes:
        topic: the topic.
        options: human option values by name, as in `memq topic alter`.
        schema: a new serialized schema for a typed topic, which must extend the old one with
            nullable columns at its end; None to keep it.
    """

    topic: str
    options: dict[str, str] = {}
    schema: bytes | None = None


class DeleteTopic(TopicRequest):
    """Delete a topic, its Batches, its notifications and its group offsets.

    With its incarnation, a request that is sent again cannot delete a later topic of that name.
    """


class TopicAnswer(Struct):
    """A topic after it was created or altered."""

    topic: TopicInfo


# -- producing ------------------------------------------------------------------------------


class Write(TopicRequest, kw_only=True):
    """One Message; the body is its RecordBatch.

    Attributes:
        write_partition: to which the Message belongs for life.
        producer_id: who sends it.
        epoch: of the producer; a higher one fences the lower.
        sequence: of the Message, counted per (producer id, epoch, write partition) from 0.
        first_unsettled: least sequence that this producer may still send; all before it are
            acked or given up. A sequence below it is refused.
        acks: 0, 1, or -1 for `all`.
        schema_id: schema of the body.
        records: LogMessages in the body.
        min_timestamp_us: least LogMessage timestamp.
        max_timestamp_us: greatest LogMessage timestamp.
    """

    write_partition: int
    producer_id: str
    epoch: int
    sequence: int
    first_unsettled: int
    acks: int
    schema_id: str
    records: int
    min_timestamp_us: int
    max_timestamp_us: int


class WriteAnswer(Struct):
    """Ack of one Message.

    Attributes:
        partition: read partition of the Batch's notification; -1 while it is not published
            (`acks=1`) or no longer known (an old duplicate).
        offset: of that notification; -1 likewise.
        batch_id: of the Batch; empty likewise.
        duplicate: the Message had been published before and was not published again.
    """

    partition: int = -1
    offset: int = -1
    batch_id: str = ""
    duplicate: bool = False


# -- reading --------------------------------------------------------------------------------


class PartitionOffset(Struct, array_like=True):
    """A place in a read partition."""

    partition: int
    offset: int


class FetchNotifications(TopicRequest, kw_only=True):
    """Notifications from some positions on; waits when there is none yet.

    Attributes:
        positions: where to read on, one for each partition of interest.
        max_entries: most notifications to return.
        max_bytes: most bytes of them to return; at least one is returned whatever its size.
        max_wait_ms: longest wait for the first one.
    """

    positions: list[PartitionOffset]
    max_entries: int = 500
    max_bytes: int = 1 << 20
    max_wait_ms: int = 0


class NotificationEntry(msgspec.Struct, frozen=True, array_like=True):
    """One notification in the body of an answer: `payload` is its JSON."""

    partition: int
    offset: int
    timestamp_ms: int
    payload: bytes


class FetchNotificationsAnswer(Struct):
    """Ends of the partitions asked for; the body is a msgpack list of `NotificationEntry`.

    Attributes:
        ends: position one past the last notification of each partition asked for.
    """

    ends: list[PartitionOffset]


class FetchOffsets(TopicRequest, kw_only=True):
    """Start and end offsets of a topic, and those of a time.

    Attributes:
        at_ms: when given, also where that begins which was published at this time or later.
    """

    at_ms: int | None = None


class PartitionOffsets(Struct):
    """Offsets of one read partition; `at` only when a time was asked for."""

    partition: int
    start: int
    end: int
    at: int | None = None


class FetchOffsetsAnswer(Struct):
    """Offsets of every read partition, in order."""

    partitions: list[PartitionOffsets]


class FetchWatermark(TopicRequest, kw_only=True):
    """Ask how far a topic is stored."""


class WatermarkAnswer(Struct):
    """How far a topic is stored, as far as the broker that answers owns it.

    A client asks all owners: that of each write partition tells how far that one is; a read
    partition, and the topic, are as far as the least that is told.

    Attributes:
        stored_through_ms: every Message received before this time and acked is published: the least
            of the write partitions that this broker owns.
        write_partitions: the same for each write partition, by position; -1 for those that another
            broker owns, or nobody.
        read_partitions: the least of those that feed each read partition, by position, and that
            this broker owns.
        retained_since_ms: retention has removed nothing that was published at this time or later.
    """

    stored_through_ms: int
    write_partitions: list[int]
    read_partitions: list[int]
    retained_since_ms: int


class FetchLag(TopicRequest, kw_only=True):
    """Ask what is published from some offsets on: how far a reader that stands there lags.

    Attributes:
        positions: next offsets of readers, up to 4,096; a partition may be named more than once.
    """

    positions: list[PartitionOffset]


class PartitionLag(Struct):
    """What is published and retained from an offset of a read partition on.

    Attributes:
        partition: the read partition.
        offset: that was asked about. Below `start`, retention has removed what was to be read
            next; that is not counted.
        start: first offset retained.
        end: one past the last offset.
        batches: Batches from `offset` on, counted one by one, for offsets may have gaps.
        records: LogMessages in them.
        size_bytes: of their objects.
        oldest_us: least LogMessage timestamp in them, or the time of publication of a Batch whose
            LogMessages have none; nil when there are none.
        error: why they could not be counted: a notification among them is damaged. Empty otherwise.
    """

    partition: int
    offset: int
    start: int
    end: int
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    oldest_us: int | None = None
    error: str = ""

    def age_s(self, now_us: int) -> float:
        """Age of the oldest LogMessage in it, in seconds; 0 when there are none."""
        return 0.0 if self.oldest_us is None else max(0.0, (now_us - self.oldest_us) / 1e6)


class FetchLagAnswer(Struct):
    """The lag at each position, in the order in which they were asked.

    Attributes:
        lags: these.
        now_us: the broker's clock, microseconds since 1970 UTC, to tell ages by.
    """

    lags: list[PartitionLag]
    now_us: int


class FetchBatch(TopicRequest, kw_only=True):
    """Bytes of a Batch through the broker (a read broker), for clients that cannot reach storage.

    Attributes:
        uri: of the object, from its notification; its key decides, below whatever root.
        start: first byte wanted.
        length: bytes wanted; at most the connection's body limit.
    """

    uri: str
    start: int
    length: int


class FetchBatchAnswer(Struct):
    """The body is the bytes asked for; fewer where the object ends sooner."""


# -- groups ---------------------------------------------------------------------------------


class CommitOffsets(TopicRequest, kw_only=True):
    """Store a group's next offsets.

    Attributes:
        group: the group.
        member_id: who commits; empty for an administrator, refused while the group has members.
        offsets: next offset to read, by partition.
        committer: a random name of whoever commits without a member id.
        sequence: counts the commits of this member or committer for the group, from 1, so that one
            that was sent again and comes late changes nothing; 0 for one that is not counted.
        heartbeat: sequence of the member's latest heartbeat when it made the commit.
    """

    group: str
    member_id: str
    offsets: list[PartitionOffset]
    committer: str = ""
    sequence: int = 0
    heartbeat: int = 0


class FetchCommitted(TopicRequest, kw_only=True):
    """Ask for a group's stored offsets."""

    group: str


class FetchCommittedAnswer(Struct):
    """A group's stored offsets; partitions without one are absent."""

    offsets: list[PartitionOffset]


class GroupHeartbeat(TopicRequest, kw_only=True):
    """Join a group and stay in it.

    Attributes:
        group: the group.
        member_id: unique name that the member chose.
        sequence: counts this member's heartbeats; one that was overtaken changes nothing.
        client: free text that names the member.
        owned: partitions that the member holds now or was granted and may start on; it has
            stopped and committed all others.
        session_timeout_ms: without a heartbeat for this long the member is out.
    """

    group: str
    member_id: str
    sequence: int
    client: str = ""
    owned: list[int] = []
    session_timeout_ms: int = 10_000


class GroupHeartbeatAnswer(Struct):
    """What the member should hold.

    Attributes:
        assigned: partitions that are the member's now: it must release the others it holds, and
            may start on those it does not hold yet.
        members: how many members the group has.
        settled: True when nothing is left to move.
    """

    assigned: list[int]
    members: int
    settled: bool


class LeaveGroup(TopicRequest, kw_only=True):
    """Leave a group at once, so that others need not wait for the session to end."""

    group: str
    member_id: str


class ListGroups(Struct):
    """Ask for groups: those of one topic, or of all.

    Attributes:
        topic: whose groups; None for those of all topics.
        from_topic: skip the topics whose name sorts before this,
        after_group: and those of its groups whose name does not sort after this.
    """

    topic: str | None = None
    from_topic: str = ""
    after_group: str = ""


class GroupMember(Struct):
    """A member and what it holds."""

    member_id: str
    client: str
    partitions: list[int]


class GroupInfo(Struct):
    """A group of a topic with its stored offsets and live members."""

    group: str
    topic: str
    offsets: list[PartitionOffset]
    members: list[GroupMember]


class ListGroupsAnswer(Struct):
    """The groups, sorted by topic and name, as many as one answer holds.

    Attributes:
        groups: these.
        from_topic: to be asked with for the next ones; empty when these were the last.
        after_group: likewise.
    """

    groups: list[GroupInfo]
    from_topic: str = ""
    after_group: str = ""


class DeleteGroup(TopicRequest, kw_only=True):
    """Forget a group's stored offsets; refused while it has members."""

    group: str


# -- the cluster ----------------------------------------------------------------------------


class DescribeCluster(Struct):
    """Ask for the brokers and what each of them owns.

    Attributes:
        own: whichever broker is asked answers from what it knows itself: `status`, and the brokers
            that it sees, by id and address. So it answers without ZooKeeper, and out of a cluster.
    """

    own: bool = False


class ServiceState(Struct):
    """A service behind a broker.

    Attributes:
        name: `storage`, `kafka` (or `queue`, for the embedded one), `zookeeper` or `disk`.
        where: it is; empty where that is the broker's own directory.
        since_ms: since when it refuses, milliseconds since 1970 UTC; nil while it does not.
        error: how.
    """

    name: str
    where: str = ""
    since_ms: int | None = None
    error: str = ""

    def words(self) -> str:
        """That it refuses, since when, and how; empty while it does not."""
        if self.since_ms is None:
            return ""
        where = f" ({self.where})" if self.where else ""
        return f"{self.name}{where} refuses since {iso_ms(self.since_ms)}: {self.error}"


class BrokerStatus(Struct):
    """What a broker says of itself.

    Attributes:
        id: its broker id.
        address: `host:port`.
        version: of memq.
        not_ready: why it should be given nothing to do; empty when it is ready.
        services: behind it.
        late_topic: whose watermark is latest of those of which a write partition runs here; empty
            when there are none.
        watermark_age_ms: age of that watermark.
        late_ms: how much of that its `batch_age` does not explain.
        free_bytes: on the disks that it writes to, by folder.
    """

    id: str
    address: str
    version: str
    not_ready: list[str] = []
    services: list[ServiceState] = []
    late_topic: str = ""
    watermark_age_ms: int = 0
    late_ms: int = 0
    free_bytes: dict[str, int] = {}


class ClusterBroker(Struct):
    """A broker that lives.

    Attributes:
        id: its broker id.
        address: `host:port`.
        zone: as it registered.
        rack: as it registered.
        capacity: as it registered; brokers share by it.
        role: `all`, or `read` for one that owns nothing.
        accepting: whether it may be given write partitions.
        draining: whether a drain was requested.
        bytes_per_s: measured traffic of what it owns.
        write_partitions: numbers of those that it owns, by topic.
        coordinates: topics whose groups it coordinates.
    """

    id: str
    address: str
    zone: str = ""
    rack: str = ""
    capacity: float = 1.0
    role: str = "all"
    accepting: bool = True
    draining: bool = False
    bytes_per_s: float = 0.0
    write_partitions: dict[str, list[int]] = {}
    coordinates: int = 0


class MovingPartition(Struct):
    """A write partition whose new owner has not taken over yet, and that owner's broker id."""

    topic: str
    write_partition: int
    to: str


class DescribeClusterAnswer(Struct):
    """The cluster as its Governor knows it.

    Attributes:
        cluster_id: the cluster.
        governor: id of the broker that governs; empty while there is none.
        brokers: those that live, sorted by id.
        homeless: write partitions without a live owner, by topic.
        moving: those that are on their way.
        waiting_for: brokers that are waited for since the Governor was elected.
        problem: why the user's assignor was not followed; empty when it was.
        lost: brokers that are gone and have not said goodbye: when that was seen, milliseconds
            since 1970 UTC.
        status: of the broker that answers; nil from one that does not tell it.
    """

    cluster_id: str
    governor: str
    brokers: list[ClusterBroker]
    homeless: dict[str, list[int]] = {}
    moving: list[MovingPartition] = []
    waiting_for: list[str] = []
    problem: str = ""
    lost: dict[str, int] = {}
    status: BrokerStatus | None = None


class DrainBroker(Struct):
    """Have a broker give away all that it owns, a few write partitions at a time.

    Attributes:
        broker_id: the broker; it need not live.
        withdraw: take an earlier request back.
    """

    broker_id: str
    withdraw: bool = False


class RebalanceCluster(Struct):
    """Have loads evened out now, measured or not."""


REQUESTS: dict[int, tuple[type[Struct], type[Struct]]] = {
    1: (Handshake, HandshakeAnswer),
    2: (Metadata, MetadataAnswer),
    3: (CreateTopic, TopicAnswer),
    4: (AlterTopic, TopicAnswer),
    5: (DeleteTopic, Done),
    10: (Write, WriteAnswer),
    20: (FetchNotifications, FetchNotificationsAnswer),
    21: (FetchOffsets, FetchOffsetsAnswer),
    22: (FetchWatermark, WatermarkAnswer),
    23: (FetchBatch, FetchBatchAnswer),
    24: (FetchLag, FetchLagAnswer),
    30: (CommitOffsets, Done),
    31: (FetchCommitted, FetchCommittedAnswer),
    32: (GroupHeartbeat, GroupHeartbeatAnswer),
    33: (LeaveGroup, Done),
    34: (ListGroups, ListGroupsAnswer),
    35: (DeleteGroup, Done),
    40: (DescribeCluster, DescribeClusterAnswer),
    41: (DrainBroker, Done),
    42: (RebalanceCluster, Done),
}
"""Type code of each request, with the headers of request and answer. Codes are never reused."""
