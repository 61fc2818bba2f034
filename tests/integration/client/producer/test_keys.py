"""Records that are placed by their key, through a real broker, also one that is killed."""

from __future__ import annotations

import struct
import threading
from collections import defaultdict

import pyarrow as pa
import pytest

from memq.client.admin import AdminClient
from memq.client.producer.producer import Producer
from memq.client.read_range import read_range
from memq.core.keys import partition_of
from memq.errors import ConfigError
from memq.testing.broker import BrokerProcess

PARTITIONS = 4
KEYS = [b"user-%d" % number for number in range(40)]


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
