"""Every request and answer of the protocol, as typed headers.

A frame's header is one of these structs in msgpack, as a map, so that a field can be added with a
default and older peers skip it. `REQUESTS` has each request with its type code, its answer and what
a client must be allowed to do for it; that table is the protocol.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from memq.core.access.rules import Operation, ResourceType, Rule
from memq.core.access.users import User
from memq.core.topic import TopicConfig
from memq.core.units import iso_ms

PROTOCOL_VERSION = 2

MAX_LISTED = 4_096
"""Most items of a list or map in a request. Decoded they take up to twenty times as many bytes, and
many requests of a connection may wait."""

_Listed = msgspec.Meta(max_length=MAX_LISTED)


class Struct(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of all headers."""


class AnswerStruct(Struct):
    """Base of all answers.

    Attributes:
        throttle_ms: for how long the client has to wait now, by its quotas.
    """

    throttle_ms: int = 0


class FetchAnswer(AnswerStruct):
    """Base of answers that quotas may put off.

    Attributes:
        later: nothing was read: ask again after `throttle_ms`.
    """

    later: bool = False


# -- connection -----------------------------------------------------------------------------


class Handshake(Struct):
    """Open a connection; must be the first request.

    Attributes:
        versions: protocol versions that the client speaks.
        client: name of the client in logs.
        token: credential; empty if the broker asks for none.
        zone: where the client runs; empty if unknown. The broker counts cross-zone traffic.
        log_in: the client wants to authenticate, whatever else it shows.
        group: of the consumer; empty for none. What it does counts for the quota of the group.
        version: of the client's library; empty if unknown. It is only shown.
    """

    versions: list[int]
    client: str = ""
    token: str = ""
    zone: str = ""
    log_in: bool = False
    group: str = ""
    version: str = ""


class HandshakeAnswer(AnswerStruct, kw_only=True):
    """The chosen version, the broker, and the limits of this connection.

    Attributes:
        mechanisms: with one of which the client must authenticate before all else; none when the
            broker knows who it is.
        principal: who the client is for the broker; empty before it has authenticated.
        expires_ms: the time after which it is not any more; 0 for no end. A client renews it by
            Authenticate: with the mechanism `TOKEN` and another token, or with `AWS-IAM`.
        min_level: lowest feature level that the broker knows.
        max_level: highest one.
    """

    version: int
    cluster_id: str
    broker_id: str
    max_header_bytes: int
    max_body_bytes: int
    mechanisms: list[str] = []
    principal: str = ""
    expires_ms: int = 0
    min_level: int = 1
    max_level: int = 1


class Authenticate(Struct):
    """Take one step of authentication.

    Attributes:
        mechanism: one of those that the broker named.
        data: what the mechanism has the client say.
    """

    mechanism: str
    data: bytes


class AuthenticateAnswer(AnswerStruct, kw_only=True):
    """The broker's part of the step.

    Attributes:
        data: what the mechanism has the broker say.
        principal: who the client is for the broker; empty while there are more steps.
        expires_ms: as in `HandshakeAnswer`.
    """

    data: bytes
    principal: str = ""
    expires_ms: int = 0


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
    """Fields of every request about one topic's data.

    Attributes:
        topic_id: topic id, from `TopicInfo`; empty for the current one. If the topic has been
            recreated, the request is refused with `topic_recreated`.
    """

    topic: str
    topic_id: str = ""


class Done(AnswerStruct, kw_only=True):
    """Confirm the request."""


# -- metadata and topics --------------------------------------------------------------------


class Metadata(Struct):
    """Get brokers and topics. Refused: an unknown topic, more than 100 names.

    Attributes:
        topics: names; nil for all topics.
        create: create missing topics, if the broker has `auto_create_topics`.
        after: of all topics, only those whose name sorts after this.
        known: `version` of the client's last answer for the same topics.
        max_wait_ms: how long to wait while the version equals `known`.
    """

    topics: Annotated[list[str], _Listed] | None = None
    create: bool = False
    after: str = ""
    known: str = ""
    max_wait_ms: int = 0


class BrokerInfo(Struct):
    """A broker's address.

    Attributes:
        zone: where it runs; empty if unknown.
        reads: its role is `read`: clients prefer it for reads.
    """

    id: str
    address: str
    zone: str = ""
    reads: bool = False


class TopicInfo(Struct):
    """A topic as clients need it.

    Attributes:
        schemas: serialized schemas that Messages may have, by schema id.
        schema_id: id of the newest schema, to send with.
        hosts: address of each write partition's owner, by position; empty if there is none.
        queue_address: address of the groups' coordinator, which also serves notifications; empty if
            there is none.
        named_partitions: write partitions at creation; producers with their own id use only these,
            so that reruns give each Message the same name.
        created_ms: when the topic was created.
        topic_id: topic id: random, and new when a topic is recreated.
    """

    config: TopicConfig
    schemas: dict[str, bytes]
    schema_id: str
    hosts: list[str]
    queue_address: str
    named_partitions: int
    created_ms: int = 0
    topic_id: str = ""


class MetadataAnswer(AnswerStruct, kw_only=True):
    """The cluster, its brokers and the topics asked for.

    Attributes:
        topics: the named ones, in that order; of all, as many as fit, sorted by name.
        more: there are further topics; ask with `after`.
        version: changes with the named topics; empty if there is nothing to wait for.
    """

    cluster_id: str
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]
    more: bool = False
    version: str = ""


class CreateTopic(Struct):
    """Create a topic.

    Attributes:
        request_id: random; a retry is answered with the topic that the first attempt created.
    """

    config: TopicConfig
    request_id: str = ""


class AlterTopic(Struct):
    """Change options of a topic.

    Attributes:
        options: option values by name, written as in `memq topic alter`.
        schema: new serialized schema of a typed topic; it may only add nullable columns at the end.
            nil keeps the schema.
    """

    topic: str
    options: Annotated[dict[str, str], _Listed] = {}
    schema: bytes | None = None


class DeleteTopic(TopicRequest):
    """Delete a topic, its Batches, its notifications and its group offsets.

    With `topic_id`, a retry cannot delete a later topic of that name.
    """


class PartitionOffset(Struct, array_like=True):
    """An offset in a read partition."""

    partition: int
    offset: int


class TrimTopic(TopicRequest, kw_only=True):
    """Forget the oldest Batches of a topic now; those younger than `dedup_window` stay.

    Attributes:
        offsets: the first that is to stay, of some read partitions.
        execute: false only answers what would stay.
    """

    offsets: Annotated[list[PartitionOffset], _Listed]
    execute: bool = False


class TrimTopicAnswer(AnswerStruct, kw_only=True):
    """The first offsets that stay."""

    offsets: list[PartitionOffset]


class TopicAnswer(AnswerStruct, kw_only=True):
    """The topic as created or altered."""

    topic: TopicInfo


# -- producing ------------------------------------------------------------------------------


class Write(TopicRequest, kw_only=True):
    """One Message; the body is its RecordBatch.

    Attributes:
        write_partition: the Message's write partition; every retry has the same.
        producer_id: id of the producer.
        epoch: of the producer; a higher one fences the lower.
        sequence: counted per (producer id, epoch, write partition) from 0.
        first_unsettled: lowest sequence that may still be sent; lower ones are done, and refused.
        acks: 0, 1, or -1 for `all`.
        schema_id: schema of the body.
        records: LogMessages in the body.
        min_timestamp_us: earliest LogMessage timestamp.
        max_timestamp_us: latest LogMessage timestamp.
        trace: context of the producer's span, as `traceparent` of W3C; empty for none.
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
    trace: str = ""


class WriteAnswer(AnswerStruct, kw_only=True):
    """Acknowledge one Message.

    Attributes:
        partition: read partition of the Batch's notification; -1 if not published yet (`acks=1`),
            or no longer known (an old duplicate).
        offset: its offset, or -1.
        batch_id: of the Batch, or empty.
        duplicate: the Message was already published, and was not published again.
    """

    partition: int = -1
    offset: int = -1
    batch_id: str = ""
    duplicate: bool = False


# -- reading --------------------------------------------------------------------------------


class FetchNotifications(TopicRequest, kw_only=True):
    """Get notifications from offsets on; wait if there are none yet.

    Attributes:
        positions: next offset to read, once for each partition.
        max_entries: most notifications to return.
        max_bytes: most bytes to return, but always one notification.
        max_wait_ms: longest wait for the first notification.
    """

    positions: Annotated[list[PartitionOffset], _Listed]
    max_entries: int = 500
    max_bytes: int = 1 << 20
    max_wait_ms: int = 0


class NotificationEntry(msgspec.Struct, frozen=True, array_like=True):
    """One notification in the body of an answer; `payload` is its JSON."""

    partition: int
    offset: int
    timestamp_ms: int
    payload: bytes


class FetchNotificationsAnswer(FetchAnswer, kw_only=True):
    """End offsets; the body is a msgpack list of `NotificationEntry`.

    Attributes:
        ends: end offset of each requested partition.
    """

    ends: list[PartitionOffset]


class FetchOffsets(TopicRequest, kw_only=True):
    """Get start and end offsets of a topic.

    Attributes:
        at_ms: if given, also get the first offset published at this time or later.
    """

    at_ms: int | None = None


class PartitionOffsets(Struct):
    """Offsets of one read partition; `at` is the answer to `at_ms`."""

    partition: int
    start: int
    end: int
    at: int | None = None


class FetchOffsetsAnswer(AnswerStruct, kw_only=True):
    """Offsets of every read partition, in order."""

    partitions: list[PartitionOffsets]


class FetchWatermark(TopicRequest, kw_only=True):
    """Get the watermark of a topic."""


class WatermarkAnswer(AnswerStruct, kw_only=True):
    """The watermark, as far as this broker owns the topic.

    A client asks all owners and takes the least, for each read partition and for the topic.

    Attributes:
        stored_through_ms: everything received before this time and acked is published; the least
            of the write partitions that this broker owns.
        write_partitions: the same for each write partition; -1 if this broker does not own it.
        read_partitions: for each read partition, the least of its write partitions that this broker
            owns.
        retained_since_ms: retention has removed nothing published at this time or later.
    """

    stored_through_ms: int
    write_partitions: list[int]
    read_partitions: list[int]
    retained_since_ms: int


class FetchBackup(TopicRequest, kw_only=True):
    """Have a topic backed up, and ask how far; the broker that keeps its groups answers."""


class FetchBackupAnswer(AnswerStruct, kw_only=True):
    """How far a topic is backed up.

    Attributes:
        ends: one past the last offset that is backed up, of each read partition; null where there
            are no backups.
    """

    ends: list[int] | None


class FetchCredentials(TopicRequest, kw_only=True):
    """Get credentials that read the objects of one topic, and nothing else, for a while."""


class FetchCredentialsAnswer(AnswerStruct, kw_only=True):
    """They are options of the storage, as its clients take them.

    Attributes:
        options: `access_key_id`, `secret_access_key` and `session_token`.
        ttl_ms: how long they are good from now on.
    """

    options: dict[str, str]
    ttl_ms: int

    def __repr__(self) -> str:
        return f"<FetchCredentialsAnswer for {self.ttl_ms} ms>"  # never the secret


class FetchLag(TopicRequest, kw_only=True):
    """Get the lag of readers from their offsets.

    Attributes:
        positions: next offsets of readers, up to 4,096; partitions may repeat.
    """

    positions: Annotated[list[PartitionOffset], _Listed]


class PartitionLag(Struct):
    """What is published and retained from an offset on.

    Attributes:
        offset: as asked. If below `start`, retention has removed unread data, which is not counted.
        start: first offset retained.
        end: end offset.
        batches: Batches from `offset` on; counted, since offsets may have gaps.
        records: LogMessages in them.
        size_bytes: bytes of their objects.
        oldest_us: earliest LogMessage timestamp; without timestamps, the publication time; nil if
            there are no Batches.
        error: why counting failed: a notification is damaged; else empty.
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


class FetchLagAnswer(AnswerStruct, kw_only=True):
    """The lag at each position, in the order asked.

    Attributes:
        lags: one for each position.
        now_us: the broker's clock, to compute ages.
    """

    lags: list[PartitionLag]
    now_us: int


class FetchBatch(TopicRequest, kw_only=True):
    """Read bytes of a Batch through the broker, for clients that cannot reach storage.

    Attributes:
        uri: of the object, from its notification; the broker uses only its key.
        start: first byte.
        length: number of bytes, up to the connection's body limit.
    """

    uri: str
    start: int
    length: int


class FetchBatchAnswer(FetchAnswer, kw_only=True):
    """The body has the bytes; fewer if the object ends sooner."""


# -- groups ---------------------------------------------------------------------------------


class CommitOffsets(TopicRequest, kw_only=True):
    """Store a group's next offsets.

    Attributes:
        member_id: who commits; empty for an administrator, refused while the group has members.
        offsets: next offset to read, by partition.
        committer: random name of a client that commits without a member id.
        sequence: counts the commits of a member or committer from 1; an older one changes nothing.
            0 is not counted.
        heartbeat: sequence of the member's latest heartbeat when it commits.
    """

    group: str
    member_id: str
    offsets: Annotated[list[PartitionOffset], _Listed]
    committer: str = ""
    sequence: int = 0
    heartbeat: int = 0


class FetchCommitted(TopicRequest, kw_only=True):
    """Get a group's stored offsets."""

    group: str


class FetchCommittedAnswer(AnswerStruct, kw_only=True):
    """Stored offsets; partitions without one are absent."""

    offsets: list[PartitionOffset]


class GroupHeartbeat(TopicRequest, kw_only=True):
    """Join a group and stay in it.

    Attributes:
        member_id: unique name chosen by the member.
        sequence: counts this member's heartbeats; an older one changes nothing.
        client: name of the member for people.
        owned: partitions it reads or was granted; it has stopped and committed all others.
        session_timeout_ms: a member without a heartbeat for this long is removed.
    """

    group: str
    member_id: str
    sequence: int
    client: str = ""
    owned: Annotated[list[int], _Listed] = []
    session_timeout_ms: int = 10_000


class GroupHeartbeatAnswer(AnswerStruct, kw_only=True):
    """The member's assignment.

    Attributes:
        assigned: partitions of the member: it may start on these, and must release all others.
        members: number of members in the group.
        settled: the rebalance is complete.
    """

    assigned: list[int]
    members: int
    settled: bool


class LeaveGroup(TopicRequest, kw_only=True):
    """Leave a group at once, without waiting for the session to time out."""

    group: str
    member_id: str


class ListGroups(Struct):
    """List groups of one topic or of all.

    Attributes:
        topic: whose groups; nil for all topics.
        from_topic: skip topics whose name sorts before this.
        after_group: in `from_topic`, skip groups up to and including this.
    """

    topic: str | None = None
    from_topic: str = ""
    after_group: str = ""


class GroupMember(Struct):
    """A member and the partitions it reads.

    Attributes:
        host: address of its last heartbeat; empty if unknown.
        heard_ms: how long ago that was; -1 if unknown.
        committed_ms: how long ago it has committed; -1 if it has not.
    """

    member_id: str
    client: str
    partitions: list[int]
    host: str = ""
    heard_ms: int = -1
    committed_ms: int = -1


class GroupInfo(Struct):
    """A group of a topic with its stored offsets and live members."""

    group: str
    topic: str
    offsets: list[PartitionOffset]
    members: list[GroupMember]


class ListGroupsAnswer(AnswerStruct, kw_only=True):
    """The groups, sorted by topic and name, as many as one answer holds.

    Attributes:
        from_topic: to ask for the next page; empty at the end.
        after_group: to ask for the next page.
    """

    groups: list[GroupInfo]
    from_topic: str = ""
    after_group: str = ""


class DeleteGroup(TopicRequest, kw_only=True):
    """Delete a group's stored offsets; refused while it has members."""

    group: str


# -- the cluster ----------------------------------------------------------------------------


class DescribeCluster(Struct):
    """List the brokers and what each owns.

    Attributes:
        own: this broker answers itself: its `status`, and id and address of the brokers it sees.
            Works without ZooKeeper, and outside a cluster.
    """

    own: bool = False


class ServiceState(Struct):
    """A service behind a broker.

    Attributes:
        name: `storage`, `kafka` (or `queue`, if embedded), `zookeeper` or `disk`.
        where: its address; empty for the broker's own directory.
        since_ms: since when it fails; nil while it works.
        error: how it fails.
    """

    name: str
    where: str = ""
    since_ms: int | None = None
    error: str = ""

    def words(self) -> str:
        """Say that it refuses, since when, and how; empty while it does not."""
        if self.since_ms is None:
            return ""
        where = f" ({self.where})" if self.where else ""
        return f"{self.name}{where} refuses since {iso_ms(self.since_ms)}: {self.error}"


class BrokerStatus(Struct):
    """A broker's own status.

    Attributes:
        version: of memq.
        not_ready: why it is not ready; empty if it is.
        late_topic: topic here with the oldest watermark; empty if there is none.
        watermark_age_ms: age of that watermark.
        late_ms: the part of that age beyond `batch_age`.
        free_bytes: free on the disks it writes to, by folder.
        min_level: lowest feature level that it knows.
        max_level: highest one.
        level: active feature level.
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
    min_level: int = 1
    max_level: int = 1
    level: int = 1


class ClusterBroker(Struct):
    """A live broker.

    Attributes:
        capacity: load is shared in proportion.
        role: `all`, or `read` for one that owns nothing.
        accepting: it may be given write partitions.
        draining: a drain was requested.
        bytes_per_s: measured traffic of what it owns.
        write_partitions: what it owns, by topic.
        coordinates: number of topics whose groups it coordinates.
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

    @property
    def state(self) -> str:
        """Whether it is given write partitions, or gives them away, in a word or two."""
        if self.draining:
            return "draining" if self.write_partitions or self.coordinates else "drained"
        return "accepting" if self.accepting else "not accepting"


class MovingPartition(Struct):
    """A write partition whose new owner, `to`, has not taken over yet."""

    topic: str
    write_partition: int
    to: str


class DescribeClusterAnswer(AnswerStruct, kw_only=True):
    """The cluster as its Governor knows it.

    Attributes:
        governor: broker id of the Governor; empty if there is none.
        brokers: live brokers, sorted by id.
        homeless: write partitions without a live owner, by topic.
        moving: write partitions on the move.
        waiting_for: brokers that a new Governor waits for.
        problem: why the custom assignor was not followed; else empty.
        lost: brokers that vanished, and when (ms since 1970).
        status: of the answering broker; nil from an older one.
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
    """Move all write partitions away from a broker, a few at a time.

    Attributes:
        broker_id: id of the broker, which may be down.
        withdraw: cancel an earlier drain.
    """

    broker_id: str
    withdraw: bool = False


class RebalanceCluster(Struct):
    """Even out the load now, even if it was not measured yet."""


class FinalizeUpgrade(Struct):
    """Raise the active feature level, for good. Refused: a broker does not know it.

    Attributes:
        level: the new one; the present one changes nothing.
    """

    level: int


# -- users, rules and quotas -----------------------------------------------------------------


class ListUsers(Struct):
    """List the users that have a password."""


class ListUsersAnswer(AnswerStruct, kw_only=True):
    """Their names, sorted."""

    users: list[str]


class PutUser(Struct):
    """Create a user, or give one another password.

    Attributes:
        user: with the verifier of the password, which itself is not sent.
        replace: the user is there already.
    """

    user: User
    replace: bool = False


class DeleteUser(Struct):
    """Delete a user, and close the user's connections."""

    name: str


class ListRules(Struct):
    """List the rules."""


class ListRulesAnswer(AnswerStruct, kw_only=True):
    """All rules."""

    rules: list[Rule]


class AlterRules(Struct):
    """Remove rules, and add others, at once.

    Attributes:
        add: a rule that is there changes nothing.
        remove: exactly these.
    """

    add: Annotated[list[Rule], _Listed] = []
    remove: Annotated[list[Rule], _Listed] = []


class AlterRulesAnswer(AnswerStruct, kw_only=True):
    """How many were added and removed."""

    added: int
    removed: int


class CheckAccess(Struct):
    """Ask whether a principal may do something, from a host.

    Attributes:
        host: its address.
        type: of the resource.
        name: of the resource.
    """

    principal: str
    host: str
    operation: Operation
    type: ResourceType
    name: str


class CheckAccessAnswer(AnswerStruct, kw_only=True):
    """Whether, and why.

    Attributes:
        why: the rule that decides, in words.
    """

    allowed: bool
    why: str


class ListQuotas(Struct):
    """List the quotas."""


class ListQuotasAnswer(AnswerStruct, kw_only=True):
    """All quotas.

    Attributes:
        quotas: limits by holder, such as `User:etl`.
        waited_s: for how long clients of this broker have waited since it began, by holder and
            limit; a quota that is gone may be among them.
    """

    quotas: dict[str, dict[str, int]]
    waited_s: dict[str, dict[str, float]] = {}


class AlterQuota(Struct):
    """Set limits of a holder.

    Attributes:
        holder: `User:NAME`, `client:NAME` or `group:NAME`; `*` for each without one of its own.
        limits: values by name; nil takes a limit away, and no limits at all the whole quota.
    """

    holder: str
    limits: Annotated[dict[str, int | None], _Listed]


# -- what operators look at -------------------------------------------------------------------


class DescribeTopics(Struct):
    """Tell the figures that this broker keeps of each topic; ask each broker.

    Attributes:
        after: only topics whose name sorts after this.
        list_groups: also of each group.
    """

    after: str = ""
    list_groups: bool = False


class GroupFigures(Struct):
    """How far a group is, as of the last seconds; nil is unknown.

    Attributes:
        members: live ones.
        lag_records: LogMessages to read.
        lag_s: age of the oldest of them, in seconds.
        records_out_s: LogMessages that it committed, per second.
    """

    group: str
    topic: str
    members: int = 0
    lag_records: int | None = None
    lag_s: float | None = None
    records_out_s: float | None = None


class TopicFigures(Struct):
    """What one broker knows of a topic, as of the last seconds; nil is unknown.

    The first two count what its own write partitions published; the rest is told by the broker that
    coordinates the topic's groups.

    Attributes:
        records_in_s: LogMessages published, per second.
        bytes_in_s: bytes of their Batches, per second.
        coordinated: this broker coordinates its groups.
        records: LogMessages retained.
        size_bytes: bytes of their objects.
        groups: how many groups read it, of those that the client may describe.
        records_out_s: LogMessages that these groups committed, per second.
        worst_group: that of them with the most LogMessages to read; empty if there is none.
        lag_records: how many these are.
        lag_s: age of the oldest of them, in seconds.
        of_groups: if asked for, the 1,000 groups with the most to read.
    """

    topic: str
    records_in_s: float | None = None
    bytes_in_s: float | None = None
    coordinated: bool = False
    records: int | None = None
    size_bytes: int | None = None
    groups: int | None = None
    records_out_s: float | None = None
    worst_group: str = ""
    lag_records: int | None = None
    lag_s: float | None = None
    of_groups: list[GroupFigures] = []


class DescribeTopicsAnswer(AnswerStruct, kw_only=True):
    """The topics, sorted by name.

    Attributes:
        more: there are further topics; ask with `after`.
    """

    topics: list[TopicFigures]
    more: bool = False


class FetchLagHistory(TopicRequest, kw_only=True):
    """Get how the lag of a group went lately, from the broker that coordinates it."""

    group: str


class FetchLagHistoryAnswer(AnswerStruct, kw_only=True):
    """One item a look, the oldest first; up to six hours, and since this broker coordinates it.

    Attributes:
        times_s: when it was looked, seconds since 1970 UTC.
        records: LogMessages to read; -1 where that was not known.
        ages_ms: age of the oldest of them.
        kept: the broker keeps the history of this group; it does so for a limited number.
    """

    times_s: list[int]
    records: list[int]
    ages_ms: list[int]
    kept: bool


class ListConnections(Struct):
    """List the clients that are connected to this broker, in the order in which they came.

    Attributes:
        after: only those with a greater number.
    """

    after: int = 0


class ConnectionInfo(Struct):
    """A client that is connected.

    Attributes:
        number: counts the connections of the broker.
        broker: its id.
        principal: who it is; empty before it has said so.
        address: its host and port.
        client: how it names itself.
        version: of its library, as it says.
        connected_ms: since when.
        throttled_ms: for how long it had to wait, by quotas.
    """

    number: int
    broker: str
    principal: str
    address: str
    client: str
    version: str
    connected_ms: int
    bytes_in: int
    bytes_out: int
    throttled_ms: int


class ListConnectionsAnswer(AnswerStruct, kw_only=True):
    """The clients.

    Attributes:
        more: there are further ones; ask with `after`.
    """

    connections: list[ConnectionInfo]
    more: bool = False


class DescribeBroker(Struct):
    """Tell how this broker is configured, and the newest lines of its access log.

    Attributes:
        lines: how many of these; 0 for none.
    """

    lines: int = 0


class DescribeBrokerAnswer(AnswerStruct, kw_only=True):
    """The broker.

    Attributes:
        options: its effective options by name, as people write them; secrets are `***`.
        changed: names of those that are not the default.
        logs_access: it has an access log.
        lines: of that, as JSON, the newest first; as many as it still has in memory.
    """

    options: dict[str, str]
    changed: list[str]
    logs_access: bool
    lines: list[str]


class Need(NamedTuple):
    """What a client must be allowed to do for a request.

    Attributes:
        operation: on the resource.
        type: of the resource.
        field: of the request, which has the name or names; empty for the cluster.
        each: of each that it lists where it names none; what may not be described is left out.
    """

    operation: Operation
    type: ResourceType
    field: str = ""
    each: bool = False


class RequestType(NamedTuple):
    """A line of the protocol: a request, its answer, and what it needs, all of it."""

    request: type[Struct]
    answer: type[Struct]
    needs: tuple[Need, ...] = ()


_DESCRIBE_TOPIC = Need("describe", "topic", "topic")
_READ_TOPIC = Need("read", "topic", "topic")
_READ_GROUP = Need("read", "group", "group")
_DESCRIBE_CLUSTER = Need("describe", "cluster")
_ALTER_CLUSTER = Need("alter", "cluster")

REQUESTS: dict[int, RequestType] = {
    1: RequestType(Handshake, HandshakeAnswer),
    2: RequestType(Metadata, MetadataAnswer, (Need("describe", "topic", "topics", each=True),)),
    3: RequestType(CreateTopic, TopicAnswer, (Need("create", "topic", "config.name"),)),
    4: RequestType(AlterTopic, TopicAnswer, (Need("alter", "topic", "topic"),)),
    5: RequestType(DeleteTopic, Done, (Need("delete", "topic", "topic"),)),
    6: RequestType(Authenticate, AuthenticateAnswer),
    10: RequestType(
        Write,
        WriteAnswer,
        (Need("write", "topic", "topic"), Need("write", "producer_id", "producer_id")),
    ),
    20: RequestType(FetchNotifications, FetchNotificationsAnswer, (_READ_TOPIC,)),
    21: RequestType(FetchOffsets, FetchOffsetsAnswer, (_DESCRIBE_TOPIC,)),
    22: RequestType(FetchWatermark, WatermarkAnswer, (_DESCRIBE_TOPIC,)),
    23: RequestType(FetchBatch, FetchBatchAnswer, (_READ_TOPIC,)),
    24: RequestType(FetchLag, FetchLagAnswer, (_DESCRIBE_TOPIC,)),
    25: RequestType(FetchCredentials, FetchCredentialsAnswer, (_READ_TOPIC,)),
    26: RequestType(FetchBackup, FetchBackupAnswer, (_DESCRIBE_TOPIC,)),
    30: RequestType(
        CommitOffsets,
        Done,
        (_READ_GROUP, _READ_TOPIC),
    ),
    31: RequestType(
        FetchCommitted,
        FetchCommittedAnswer,
        (Need("describe", "group", "group"), _DESCRIBE_TOPIC),
    ),
    32: RequestType(
        GroupHeartbeat,
        GroupHeartbeatAnswer,
        (_READ_GROUP, _READ_TOPIC),
    ),
    33: RequestType(
        LeaveGroup,
        Done,
        (_READ_GROUP, _READ_TOPIC),
    ),
    34: RequestType(
        ListGroups,
        ListGroupsAnswer,
        (Need("describe", "topic", "topic", each=True), Need("describe", "group", each=True)),
    ),
    35: RequestType(
        DeleteGroup,
        Done,
        (Need("delete", "group", "group"), _DESCRIBE_TOPIC),
    ),
    40: RequestType(DescribeCluster, DescribeClusterAnswer, (_DESCRIBE_CLUSTER,)),
    41: RequestType(DrainBroker, Done, (_ALTER_CLUSTER,)),
    42: RequestType(RebalanceCluster, Done, (_ALTER_CLUSTER,)),
    50: RequestType(ListUsers, ListUsersAnswer, (_DESCRIBE_CLUSTER,)),
    51: RequestType(PutUser, Done, (_ALTER_CLUSTER,)),
    52: RequestType(DeleteUser, Done, (_ALTER_CLUSTER,)),
    53: RequestType(ListRules, ListRulesAnswer, (_DESCRIBE_CLUSTER,)),
    54: RequestType(AlterRules, AlterRulesAnswer, (_ALTER_CLUSTER,)),
    55: RequestType(CheckAccess, CheckAccessAnswer, (_DESCRIBE_CLUSTER,)),
    56: RequestType(ListQuotas, ListQuotasAnswer, (_DESCRIBE_CLUSTER,)),
    57: RequestType(AlterQuota, Done, (_ALTER_CLUSTER,)),
    60: RequestType(DescribeTopics, DescribeTopicsAnswer, (Need("describe", "topic", each=True),)),
    61: RequestType(
        FetchLagHistory,
        FetchLagHistoryAnswer,
        (Need("describe", "group", "group"), _DESCRIBE_TOPIC),
    ),
    62: RequestType(ListConnections, ListConnectionsAnswer, (_DESCRIBE_CLUSTER,)),
    63: RequestType(DescribeBroker, DescribeBrokerAnswer, (_DESCRIBE_CLUSTER,)),
    70: RequestType(FinalizeUpgrade, Done, (_ALTER_CLUSTER,)),
    80: RequestType(TrimTopic, TrimTopicAnswer, (Need("delete", "topic", "topic"),)),
}
"""The protocol, by type code. Codes are never reused."""
