"""Records that are placed by their key, through a real broker, also one that is killed."""

import threading
from collections import defaultdict

from memq.client.admin import AdminClient
from memq.client.producer.producer import Producer
from memq.client.read_range import read_range
from memq.core.keys import partition_of
from memq.testing.broker import BrokerProcess

PARTITIONS = 4
KEYS = [b"user-%d" % number for number in range(40)]


def test_keys_are_ordered_through_kills(tmp_path):
    """Several producers with the same keys, and a broker that is killed under them: every record
    is stored once, a key is in one read partition, and the records of a key that a producer wrote
    stand in the order in which it wrote them.
    """
    with BrokerProcess(tmp_path) as broker:
        options = {"ordering": "producer", "batch_age": "20ms", "batch_bytes": "64KiB"}
        with AdminClient(broker.address) as admin:
            admin.create_topic(
                "events",
                write_partitions=PARTITIONS,
                read_partitions=PARTITIONS,
                message_bytes="8KiB",
                **options,
            )
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
        found = {
            partition: read_range(broker.address, topic="events", partition=partition).to_pylist()
            for partition in range(PARTITIONS)
        }

    seen = defaultdict(list)
    for partition, rows in found.items():
        for row in rows:
            assert partition_of(row["key"], PARTITIONS) == partition
            producer, _, number = row["value"].partition(b" ")
            seen[producer, row["key"]].append(int(number))
    assert sum(map(len, seen.values())) == 9_000
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())
    assert all(found.values())
