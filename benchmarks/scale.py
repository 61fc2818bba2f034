"""A thousand brokers, by the real code where it runs and arithmetic for the rest.

`python -m benchmarks.scale` prints resources in the order in which they break: what each takes at
that size, its limit, and at which multiple of the size it is reached. Nothing is run a thousand
times: assignment, nodes, metadata, groups, the state topic and lags are made by the product's own
functions at full size, and rates are multiplied. `docs/scale.md` has the plan past the first ones.

Limits of machines are of the instance of `memq/core/prices.toml`; those of S3, Kafka and ZooKeeper
are what their makers or our own benchmarks say, as the last column tells.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from tabulate import tabulate

from benchmarks.governor import brokers_of, partitions_of
from memq.broker.lag import MAX_COUNTS, MAX_LAG_ROWS, Backlog
from memq.broker.server import SWEEP_S
from memq.client.consumer.group import HEARTBEAT_S
from memq.client.producer.producer import FOLLOW_S
from memq.core.cost import DAYS, list_requests, ranged_gets
from memq.core.format.batch import ProducerRun
from memq.core.governor.assignment import assign
from memq.core.governor.coordination import MAX_NODE_BYTES
from memq.core.governor.lease import PROBE_SHARE, RESERVE_SHARE
from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    LOADS,
    TOPICS,
    BrokerNode,
    LoadsNode,
    TopicAssignment,
)
from memq.core.governor.topics import MAX_TOPICS, new_topic
from memq.core.group import MAX_GROUPS, GroupCoordinator
from memq.core.notification import (
    NOTIFICATION_VERSION,
    Notification,
    decode_notification,
    encode_notification,
)
from memq.core.topic import TopicConfig
from memq.core.wire.messages import (
    BrokerInfo,
    GroupHeartbeat,
    MetadataAnswer,
    PartitionLag,
    TopicInfo,
)
from memq.queue.kafka.client import KafkaRecord
from memq.queue.kafka.state import KafkaState, offset_records
from memq.zookeeper.options import DEFAULT_SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memq.core.governor.topics import Topic

BROKER_COUNT, TOPIC_COUNT, PARTITIONS = 1_000, 1_000, 10  # write and read partitions of each topic
PRODUCERS, GROUPS, MEMBERS = 100_000, 10_000, 4
BATCHES_S = 5  # of a write partition: the default batch_age of 200 ms
RETENTION_S = 7 * 86_400
COMMIT_S = 5.0  # auto_commit_interval
ZONE = BROKER_COUNT // 3  # brokers that a zone takes along

# -- limits, and whose they are ---------------------------------------------------------------

MACHINE_BYTES_S = 117e6  # baseline network of the instance, each direction
LIST_S = 0.1  # of a page of S3, one after the other
SCAN_S = 86_400  # in which a scan has to end: the next one begins
S3_PREFIX_PUTS_S = 3_500  # that S3 promises for each prefix
KAFKA_TRANSACTIONS_S = 5_000  # of a broker of Kafka: an estimate
KAFKA_BROKERS = 12
KAFKA_PARTITIONS = 4_000  # replicas on a broker of Kafka, as its makers advise
ZOOKEEPERS, ZOOKEEPER_READS_S = 3, 20_000  # of one server: an estimate
ZOOKEEPER_WRITES_S = 2_000  # of all: 0.12 ms for a change was measured, and 5 ms for each flush
ZOOKEEPER_HEAP_BYTES = 1e9
NAME_BYTES = 15  # of a broker's name and its length
WATCH_BYTES = 200  # of a watch in a server: an estimate
CORE_S = 1.0  # of processor in each second: a broker has one event loop
HEARTBEAT_US = 100  # of a broker's processor for a request, besides the state machine
BROKER_MEMORY_BYTES = 4e9  # of half the instance
CONNECTIONS = 15_000  # max_connections
TRANSACTIONS_S = 50  # that a broker makes: one at a time, 20 ms each


class Row(NamedTuple):
    """A resource at that size.

    Attributes:
        resource: what is used.
        used: of it.
        limit: of it.
        unit: of both.
        breaks_at: in words, where the limit is reached.
        source: of the figures.
    """

    resource: str
    used: float
    limit: float
    unit: str
    breaks_at: str
    source: str

    @property
    def share(self) -> float:
        """How much of the limit is used."""
        return self.used / self.limit


def seconds_of(work: Callable[[], object], rounds: int = 3) -> float:
    """The quickest round."""
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def held(make: Callable[[], object]) -> tuple[float, float]:
    """Bytes of memory that a thing takes, and the seconds it takes to make it without a tracer."""
    took = seconds_of(make, 1)
    tracemalloc.start()
    kept = make()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size, took


def times(used: float, limit: float, count: float, what: str) -> str:
    """At how many of something the limit is reached, if all grows with it."""
    return f"{limit / used * count:,.0f} {what}"


def topic_of() -> Topic:
    """One of the topics, as it is stored."""
    options = {"write_partitions": PARTITIONS, "read_partitions": PARTITIONS}
    config = TopicConfig.create("topic-0001", schema=None, **options)
    return new_topic(config, (), now_ms=1, topic_id="1" * 16, request_id="2" * 32)


# -- object store -----------------------------------------------------------------------------


def decoding_s() -> float:
    """Seconds that it takes to decode a notification of ten producers."""
    uri = "s3://bucket/root/0f/memq/topics/topic-0001/" + "1" * 16 + "/3/1700000000000-name.arrows"
    it = Notification(
        version=NOTIFICATION_VERSION,
        topic="topic-0001",
        topic_id="1" * 16,
        write_partition=3,
        batch_id="0" * 24,
        uri=uri,
        size_bytes=8_000_000,
        index_offset=7_990_000,
        messages=10,
        records=10_000,
        min_timestamp_us=1,
        max_timestamp_us=2,
        producers=[ProducerRun(f"{n:032x}", 0, 5, 5, 1_000, 12_345) for n in range(10)],
        schema_id="0" * 8,
        broker_id="broker-0001",
        sealed_ms=1,
        stored_through_ms=1,
    )
    data = encode_notification(it)
    return seconds_of(lambda: [decode_notification(data) for _ in range(1_000)]) / 1_000


def storage() -> Iterator[Row]:
    """Requests to the store; each row of costs is the model's (`memq.core.cost`)."""
    batches_s = TOPIC_COUNT * PARTITIONS * BATCHES_S
    objects = batches_s * RETENTION_S
    pages = list_requests(objects)
    yield Row(
        "LIST of a scan for orphans, each broker",
        pages * LIST_S,
        SCAN_S,
        "s a day",
        times(pages * LIST_S, SCAN_S, objects, "objects"),
        f"{objects:.1e} objects, {pages:,} pages of {LIST_S} s; by all brokers "
        f"${pages * BROKER_COUNT * 0.005 / 1000:,.0f} a day",
    )
    retained = objects / BROKER_COUNT
    decode_s = decoding_s()
    yield Row(
        "notifications that a scan for orphans reads",
        retained * decode_s,
        SCAN_S * 0.1,
        "s a day",
        times(retained * decode_s, SCAN_S * 0.1, retained, "notifications retained for a broker"),
        f"{decode_s * 1e6:.1f} us to decode one, and at most a tenth of the processor",
    )
    yield Row(
        "PUT",
        batches_s,
        256 * S3_PREFIX_PUTS_S,
        "a second",
        times(batches_s, 256 * S3_PREFIX_PUTS_S, TOPIC_COUNT * PARTITIONS, "write partitions"),
        f"256 prefixes, once S3 has split them; ${batches_s * 86_400 * DAYS * 5e-6:,.0f} a month",
    )
    gets_s = batches_s * (GROUPS // TOPIC_COUNT)
    yield Row(
        "GET",
        gets_s,
        256 * 5_500,
        "a second",
        times(gets_s, 256 * 5_500, GROUPS, "groups"),
        f"ten groups of each topic; a Spark job makes {ranged_gets(8 << 20, 8)} for 8 MiB",
    )


# -- Kafka ------------------------------------------------------------------------------------


def state_records(groups: int) -> list[KafkaRecord]:
    """A commit of every read partition by each group, as brokers write it."""
    found: list[KafkaRecord] = []
    for number in range(groups):
        topic = f"topic-{number % TOPIC_COUNT:04}.{'1' * 16}"
        offsets = dict.fromkeys(range(PARTITIONS), 1_234_567 + number)
        for record in offset_records(topic, f"group-of-a-team-{number:05}", offsets):
            found.append(KafkaRecord(len(found), 0, record.value, record.key))
    return found


def state_of(records: list[KafkaRecord]) -> KafkaState:
    """What a broker knows of them."""
    state = KafkaState()
    for record in records:
        state.read(record)
    return state


def kafka() -> Iterator[Row]:
    """Partitions, transactions, and the topic in which brokers say things to each other."""
    records = state_records(GROUPS)
    size_bytes, read_s = held(lambda: state_of(records))
    rate_s = len(records) / COMMIT_S
    each_bytes = sum(len(it.key or b"") + len(it.value or b"") + 20 for it in records) / len(
        records
    )
    fan_out = rate_s * each_bytes * BROKER_COUNT
    yield Row(
        "state topic: out of its one partition",
        fan_out,
        MACHINE_BYTES_S,
        "bytes/s",
        f"{MACHINE_BYTES_S / fan_out * BROKER_COUNT:,.0f} brokers, or as large a share of groups",
        f"{rate_s:,.0f} records/s of {each_bytes:.0f} bytes, which every broker reads",
    )
    cpu = rate_s * read_s / len(records)
    yield Row(
        "state topic: processor of every broker",
        cpu,
        CORE_S,
        "cores",
        times(cpu, CORE_S, GROUPS, "groups"),
        f"{read_s / len(records) * 1e6:.1f} us a record in KafkaState.read; Kafka's client on top",
    )
    yield Row(
        "state topic: memory of every broker",
        size_bytes,
        BROKER_MEMORY_BYTES,
        "bytes",
        times(size_bytes, BROKER_MEMORY_BYTES, GROUPS, "groups"),
        f"{len(records):,} offsets in KafkaState",
    )
    transactions_s = BROKER_COUNT * min(TRANSACTIONS_S, PARTITIONS * BATCHES_S)
    limit = KAFKA_BROKERS * KAFKA_TRANSACTIONS_S
    yield Row(
        "transactions",
        transactions_s,
        limit,
        "a second",
        times(transactions_s, limit, BROKER_COUNT, "brokers"),
        f"one at a time in each broker; {KAFKA_BROKERS} brokers of Kafka, an estimate",
    )
    replicas = TOPIC_COUNT * PARTITIONS * 3
    yield Row(
        "replicas of partitions",
        replicas,
        KAFKA_BROKERS * KAFKA_PARTITIONS,
        "replicas",
        times(replicas, KAFKA_BROKERS * KAFKA_PARTITIONS, TOPIC_COUNT, "topics"),
        f"{KAFKA_BROKERS} brokers of Kafka",
    )


# -- ZooKeeper --------------------------------------------------------------------------------


def zone_lost(count: int, assignment_bytes: int) -> tuple[int, float, float]:
    """Reads, bytes and seconds of the servers when a third of so many brokers is lost at once."""
    lost, live = count // 3, count - count // 3
    reads = live * (2 * lost + TOPIC_COUNT)  # names, and nodes that are gone; assignments
    sent = live * (lost * count * NAME_BYTES + TOPIC_COUNT * assignment_bytes)
    busy_s = max(reads / (ZOOKEEPERS * ZOOKEEPER_READS_S), sent / (ZOOKEEPERS * MACHINE_BYTES_S))
    return reads, sent, busy_s


def zookeeper() -> Iterator[Row]:
    """Watches, nodes, heartbeats, and what the loss of a zone makes everybody read."""
    topic = topic_of()
    node = BrokerNode(id="broker-0001", address="broker-0001.memq.internal:6367", zone="zone-1")
    owners = tuple(f"broker-{number:04}" for number in range(PARTITIONS))
    assignment = TopicAssignment(topic_id="1" * 16, epoch=1, owners=owners)
    loads = LoadsNode.create({("topic-0001", number): 123_456.7 for number in range(PARTITIONS)})
    sizes = {
        "topic": len(TOPICS.encode(topic)),
        "assignment": len(ASSIGNMENTS.encode(assignment)),
        "broker": len(BROKERS.encode(node)),
        "loads": len(LOADS.encode(loads)),
    }
    wide = msgspec.structs.replace(assignment, owners=tuple(f"broker-{n:04}" for n in range(256)))
    widest = max(*sizes.values(), len(ASSIGNMENTS.encode(wide)))
    told = ", ".join(f"{name} {size}" for name, size in sizes.items())
    yield Row(
        "largest node",
        widest,
        MAX_NODE_BYTES,
        "bytes",
        "schemas of 1 MB in one topic, refused",
        f"real encoders: {told}; an assignment of 256 write partitions is the largest",
    )
    yield Row(
        "names of a folder, in one answer",
        BROKER_COUNT * NAME_BYTES,
        1_048_576,
        "bytes",
        "70,000 brokers; 10,000 topics of 100 characters",
        f"jute.maxbuffer of 1 MiB; there are up to {MAX_TOPICS:,} topics (MAX_TOPICS)",
    )
    nodes = 2 * BROKER_COUNT + 2 * TOPIC_COUNT
    watches = BROKER_COUNT * (nodes + 6)
    per_server = watches * WATCH_BYTES / ZOOKEEPERS
    yield Row(
        "watches, memory of a server",
        per_server,
        ZOOKEEPER_HEAP_BYTES,
        "bytes",
        f"{TOPIC_COUNT * ZOOKEEPER_HEAP_BYTES / per_server:,.0f} topics and as many brokers more",
        f"{watches:,} watches: each broker watches every broker, member, topic and assignment",
    )
    probes = BROKER_COUNT / (DEFAULT_SESSION_TIMEOUT_MS / 1000 * PROBE_SHARE)
    yield Row(
        "probes of leases, by the leader",
        probes,
        ZOOKEEPER_READS_S,
        "a second",
        times(probes, ZOOKEEPER_READS_S, BROKER_COUNT, "brokers"),
        f"PROBE_SHARE of a session of {DEFAULT_SESSION_TIMEOUT_MS / 1000:g} s",
    )
    writes = BROKER_COUNT / 10
    yield Row(
        "writes of loads",
        writes,
        ZOOKEEPER_WRITES_S,
        "a second",
        times(writes, ZOOKEEPER_WRITES_S, BROKER_COUNT, "brokers"),
        "REPORT_S, where traffic changes by a tenth each time",
    )
    reads, sent, busy_s = zone_lost(BROKER_COUNT, sizes["assignment"])
    lease_s = DEFAULT_SESSION_TIMEOUT_MS / 1000 * (1 - RESERVE_SHARE)
    most = next(
        count
        for count in range(10 * BROKER_COUNT, 0, -10)
        if zone_lost(count, sizes["assignment"])[2] <= lease_s
    )
    yield Row(
        "loss of a zone, all brokers read",
        busy_s,
        lease_s,
        "s",
        f"{most:,} brokers: leases end, more are lost",
        f"{reads:,} reads and {sent / 1e9:.1f} GB from {ZOOKEEPERS} servers at worst, when each"
        " death is seen by itself",
    )


# -- brokers and clients ------------------------------------------------------------------------


def metadata_answer(topic: Topic) -> MetadataAnswer:
    """What a producer is told of its one topic."""
    hosts = [f"broker-{number:04}.memq.internal:6367" for number in range(BROKER_COUNT)]
    brokers = [
        BrokerInfo(id=f"broker-{number:04}", address=host, zone=f"zone-{number % 3}")
        for number, host in enumerate(hosts)
    ]
    info = TopicInfo(
        config=topic.config,
        schemas=topic.schemas,
        schema_id=topic.schema_id,
        hosts=hosts[:PARTITIONS],
        queue_address=hosts[0],
        named_partitions=PARTITIONS,
        topic_id=topic.topic_id,
    )
    return MetadataAnswer(cluster_id="memq", brokers=brokers, topics=[info], version="0" * 8)


def clients() -> Iterator[Row]:
    """Metadata, connections, and what happens when many come at once."""
    topic = topic_of()
    encode = msgspec.msgpack.Encoder().encode
    size = len(encode(metadata_answer(topic)))
    took = seconds_of(lambda: encode(metadata_answer(topic)))
    rate_s = (PRODUCERS + GROUPS * MEMBERS / 10) / FOLLOW_S / BROKER_COUNT
    yield Row(
        "metadata, sent by a broker",
        rate_s * size,
        MACHINE_BYTES_S,
        "bytes/s",
        f"{MACHINE_BYTES_S / (rate_s * size):,.0f} times the producers of a broker",
        f"{size:,} bytes, most of them the list of brokers, to each producer each {FOLLOW_S:g} s",
    )
    storm = PRODUCERS / (BROKER_COUNT - ZONE)
    yield Row(
        "loss of a zone: metadata for all producers",
        storm * took,
        5.0,
        "s of processor",
        f"{5.0 / (storm * took):,.1f} times the producers of a broker",
        f"{storm:.0f} answers of {took * 1e3:.1f} ms at each broker, within park_timeout",
    )
    connections = PRODUCERS * PARTITIONS / BROKER_COUNT + GROUPS * MEMBERS * 2 / BROKER_COUNT
    yield Row(
        "connections of a broker",
        connections,
        CONNECTIONS,
        "connections",
        times(connections, CONNECTIONS, PRODUCERS, "producers"),
        "each producer has one to every owner in its topic; max_connections",
    )
    yield Row(
        "TLS of connections, memory of a broker",
        connections * 256 * 1024,
        BROKER_MEMORY_BYTES,
        "bytes",
        times(connections * 256 * 1024, BROKER_MEMORY_BYTES, PRODUCERS, "producers"),
        "256 KiB each, by asyncio",
    )


def heartbeat(number: int, member: int, sequence: int) -> GroupHeartbeat:
    """One of a member."""
    return GroupHeartbeat(
        group=f"group-of-a-team-{number:05}",
        topic="topic-0001",
        member_id=f"{member:016x}",
        session_timeout_ms=10_000,
        sequence=sequence,
        owned=[],
        client="consumer",
    )


def coordinator() -> GroupCoordinator:
    """All groups at one broker, with their members."""
    found = GroupCoordinator()
    for number in range(GROUPS):
        for member in range(MEMBERS):
            found.heartbeat(heartbeat(number, member, 1), PARTITIONS, 1_000)
    return found


def groups() -> Iterator[Row]:
    """Groups, evenly and all at one broker."""
    size, _ = held(coordinator)
    one = coordinator()
    numbers = [(number, member) for number in range(GROUPS) for member in range(MEMBERS)]
    again = [heartbeat(*each, 2) for each in numbers]
    again_s = seconds_of(lambda: [one.heartbeat(it, PARTITIONS, 1_500) for it in again], 1)
    each_s = again_s / len(again)
    tick_s = seconds_of(lambda: one.tick(2_000))
    rate_s = GROUPS * MEMBERS / HEARTBEAT_S
    for what, share in (("evenly", BROKER_COUNT), ("all at one broker", 1)):
        used = rate_s / share * (each_s + HEARTBEAT_US / 1e6) + tick_s / SWEEP_S / share
        yield Row(
            f"heartbeats of groups, {what}",
            used,
            CORE_S,
            "cores",
            times(used, CORE_S, GROUPS, "groups"),
            f"{rate_s / share:,.0f}/s of {each_s * 1e6:.0f} us in the state machine, and "
            f"{HEARTBEAT_US} us about it; {tick_s * 1e3:.0f} ms for a tick of {GROUPS:,} groups",
        )
    yield Row(
        "groups with members at one broker",
        GROUPS,
        MAX_GROUPS,
        "groups",
        f"{MAX_GROUPS:,} groups (MAX_GROUPS) whose topics one broker coordinates",
        f"they take {size / 1e6:.0f} MB with {MEMBERS} members each",
    )
    rows = GROUPS // TOPIC_COUNT * PARTITIONS * (TOPIC_COUNT / BROKER_COUNT)
    yield Row(
        "rows of lags in a broker's metrics",
        rows,
        MAX_LAG_ROWS,
        "rows",
        times(rows, MAX_LAG_ROWS, GROUPS, "groups"),
        "MAX_LAG_ROWS; all at one broker, 100 groups are shown and 9,900 left out",
    )
    size, _ = held(
        lambda: {
            ("topic-0001." + "1" * 16, n % PARTITIONS, n * 512, n * 512 + 512): Backlog(
                512, 512_000 + n, 4_294_967_296 + n, 1_700_000_000_000_000 + n
            )
            for n in range(MAX_COUNTS)
        }
    )
    lag = PartitionLag(partition=0, offset=0, start=0, end=0)
    blocks = BATCHES_S * RETENTION_S // 512 * PARTITIONS
    yield Row(
        "counts that lags keep",
        blocks * (TOPIC_COUNT / BROKER_COUNT),
        MAX_COUNTS,
        "counts",
        times(blocks, MAX_COUNTS, PARTITIONS, "write partitions' week at one broker"),
        f"MAX_COUNTS, {size / 1e6:.0f} MB; each lag is {len(msgspec.msgpack.encode(lag))} bytes",
    )


# -- the Governor -------------------------------------------------------------------------------


def governor() -> Iterator[Row]:
    """Assignment from nothing, the longest decision there is."""
    brokers, partitions = brokers_of(BROKER_COUNT), partitions_of(7)
    size, _ = held(lambda: assign(brokers, partitions, {}))
    took = seconds_of(lambda: assign(brokers, partitions, {}))
    half = seconds_of(lambda: assign(brokers[::2], partitions[::2], {}))
    yield Row(
        "assignment of everything",
        took,
        2.0,
        "s of processor",
        f"{BROKER_COUNT * 2.0 / took:,.0f} brokers",
        f"half of it takes {half:.2f} s; {size / 1e6:.0f} MB; the Governor is a broker as well",
    )
    data = TOPICS.encode(topic_of())
    size, _ = held(
        lambda: [(data + b" ", TOPICS.decode("topic-0001", data)) for _ in range(TOPIC_COUNT)]
    )
    yield Row(
        "topics, memory of every broker",
        size,
        BROKER_MEMORY_BYTES,
        "bytes",
        times(size, BROKER_MEMORY_BYTES, TOPIC_COUNT, "topics, past MAX_TOPICS"),
        "node and decoded topic, the default schema",
    )


def rows() -> list[Row]:
    """All rows, in the order in which they break."""
    found = [*storage(), *kafka(), *zookeeper(), *clients(), *groups(), *governor()]
    return sorted(found, key=lambda row: -row.share)


def run() -> list[tuple[str, str, str]]:
    """Name, figure and note of each resource, for `python -m benchmarks`."""
    return [
        (
            row.resource,
            f"{row.used:,.3g} of {row.limit:,.3g} {row.unit}, {row.share:.2g} of its limit",
            f"breaks at {row.breaks_at}; {row.source}",
        )
        for row in rows()
    ]


if __name__ == "__main__":
    found = rows()
    table = [
        [f"{row.share:.2g}", row.resource, f"{row.used:,.3g}", f"{row.limit:,.3g}", row.unit]
        for row in found
    ]
    print(
        tabulate(
            table, ["of its limit", "resource", "used", "limit", "unit"], disable_numparse=True
        )
    )
    for row in found:
        print(f"\n{row.resource}: breaks at {row.breaks_at}\n    {row.source}")
