"""Records that are placed by their key, through a real broker, also one that is killed."""

from __future__ import annotations

import struct
import threading
from collections import defaultdict

import pyarrow as pa
import pytest

from memq.client.admin import AdminClient, AsyncAdminClient
from memq.client.producer.producer import AsyncProducer, Producer
from memq.client.read_range import read_range
from memq.core.keys import partition_of
from memq.errors import ConfigError
from memq.testing.broker import BrokerProcess
from tests.topics.reading import world

PARTITIONS = 4
KEYS = [b"user-%d" % number for number in range(40)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


def create(broker, topic, *, schema=None, **options):
    """A topic whose read partitions have one write partition each."""
    defaults = {"ordering": "producer", "batch_age": "20ms", "audited": False}
    with AdminClient(broker.address) as admin:
        admin.create_topic(
            topic,
            schema=schema,
            **(
                {"write_partitions": PARTITIONS, "read_partitions": PARTITIONS} | defaults | options
            ),
        )


def stored(broker, topic):
    """The rows of each read partition, in the order of offsets and within Batches."""
    with AdminClient(broker.address) as admin:
        held = admin.offsets(topic)
    return {
        each.partition: read_range(
            broker.address, topic=topic, partition=each.partition, start=each.start, end=each.end
        ).to_pylist()
        for each in held
        if each.start < each.end
    }


def test_keys_are_ordered_through_kills(tmp_path):
    """Several producers with the same keys, and a broker that is killed under them: every record
    is stored once, a key is in one read partition, and the records of a key that a producer wrote
    stand in the order in which it wrote them.
    """
    with BrokerProcess(tmp_path) as broker:
        create(broker, "events", batch_bytes="64KiB", message_bytes="8KiB")
        deliveries = []
        reached = [threading.Event() for _ in range(3)]

        def work(name, leads):
            options = {"partition_by": "key", "message_bytes": "4KiB", "linger": "2ms"}
            with Producer(broker.address, topic="events", **options) as producer:
                for number in range(3_000):
                    key = KEYS[(number * number) % len(KEYS)]
                    deliveries.append(producer.write(b"%s %06d" % (name, number), key))
                    if number % 100 == 99:
                        deliveries[-50].exception(60)  # so that some are in flight at any time
                    if leads and number % 900 == 899:
                        reached[number // 900].set()

        threads = [
            threading.Thread(target=work, args=(b"p%d" % number, number == 0))
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for event in reached:
            assert event.wait(60)
            broker.kill()
            broker.restart()
        for thread in threads:
            thread.join(60)
        assert all(delivery.exception(0) is None for delivery in deliveries)
        found = stored(broker, "events")

    seen = defaultdict(list)
    for partition, rows in found.items():
        for row in rows:
            assert partition_of(row["key"], PARTITIONS) == partition
            producer, _, number = row["value"].partition(b" ")
            seen[producer, row["key"]].append(int(number))
    assert sum(map(len, seen.values())) == 9_000
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())
    assert len(found) == PARTITIONS


def test_tables_and_records_go_the_same_way(broker):
    """Rows and records of a key are in one read partition, in the order in which they came."""
    create(broker, "mixed")
    with Producer(broker.address, topic="mixed", partition_by="key") as producer:
        for step in range(6):
            values = [b"%d" % step] * len(KEYS)
            if step % 2:
                producer.write_table(pa.table({"key": KEYS, "value": values}))
            else:
                for key, value in zip(KEYS, values, strict=True):
                    producer.write(value, key)

    for partition, rows in stored(broker, "mixed").items():
        by_key = defaultdict(list)
        for row in rows:
            assert partition_of(row["key"], PARTITIONS) == partition
            by_key[row["key"]].append(int(row["value"]))
        assert all(steps == list(range(6)) for steps in by_key.values())


@pytest.mark.parametrize("ordering", ["none", "producer"])
def test_records_without_a_key_go_as_always(broker, ordering):
    """Without a key Messages take turns, or all go to one place where the topic keeps order."""
    topic = f"keyless-{ordering}"
    create(broker, topic, ordering=ordering)
    with Producer(broker.address, topic=topic, partition_by="key", linger="0ms") as producer:
        places = {producer.write(b"v").result(30).write_partition for _ in range(8)}

    assert len(places) == (PARTITIONS if ordering == "none" else 1)


def test_columns_of_a_typed_topic_are_keys(broker):
    """Any column of texts, bytes or integers can be the key of a typed topic."""
    schema = pa.schema([("id", pa.int64()), ("city", pa.utf8()), ("fare", pa.float64())])
    create(broker, "rides", schema=schema)
    rows = pa.table(
        {"id": [*range(50)] * 2, "city": ["Oslo", "Lima"] * 50, "fare": [1.5] * 100}, schema=schema
    )
    with Producer(broker.address, topic="rides", partition_by="id") as producer:
        producer.write_table(rows)
    with pytest.raises(ConfigError, match="choose none or one of id, city"):
        Producer(broker.address, topic="rides", partition_by="key")

    ids = {
        partition: {row["id"] for row in rows}
        for partition, rows in stored(broker, "rides").items()
    }
    assert ids == {
        partition: {n for n in range(50) if partition_of(struct.pack(">q", n), 4) == partition}
        for partition in range(PARTITIONS)
    }


def test_a_named_job_finds_its_keys_again(broker):
    """A job that is run again after write partitions were added gives each record its old name."""
    create(broker, "named", write_partitions=2)
    outcomes = []
    for _ in range(2):
        options = {"partition_by": "key", "producer_id": "job", "message_bytes": "4KiB"}
        with Producer(broker.address, topic="named", **options) as producer:
            deliveries = [
                producer.write(b"x" * 50, KEYS[n % 40], timestamp=n) for n in range(2_000)
            ]
        outcomes.append([delivery.result(30) for delivery in deliveries])
        with AdminClient(broker.address) as admin:
            admin.alter_topic("named", write_partitions=PARTITIONS)

    first, again = outcomes
    assert not any(each.duplicate for each in first)
    assert all(each.duplicate for each in again)
    assert [each[4:6] for each in first] == [each[4:6] for each in again]
    assert sum(map(len, stored(broker, "named").values())) == 2_000


async def test_added_write_partitions_are_for_the_next_producer(tmp_path):
    """A key moves when write partitions are added, as in Kafka: not under a running producer."""
    async with (
        world(tmp_path, write_partitions=1) as w,
        AsyncAdminClient(w.address) as admin,
        AsyncProducer(w.address, topic="t", partition_by="key") as running,
    ):
        await admin.alter_topic("t", write_partitions=2)
        await running._refresh()
        async with AsyncProducer(w.address, topic="t", partition_by="key") as later:
            key = next(key for key in KEYS if partition_of(key, 2) == 1)
            for producer, place in ((running, 0), (later, 1)):
                assert (await (await producer.write(b"v", key))).write_partition == place


async def test_a_topic_without_order_is_warned_of(tmp_path, caplog):
    """Whoever expects the order of Kafka is told that the topic does not keep it."""
    async with world(tmp_path) as w:
        async with AsyncProducer(w.address, topic="t", partition_by="key"):
            pass
        assert caplog.text.count("topic t keeps no order") == 1
        caplog.clear()
        async with AsyncProducer(w.address, topic="t"):
            pass
        assert "keeps no order" not in caplog.text
