"""The sync consumer, `read_range` and the sync admin client, against a broker process."""

import threading
import time

import pyarrow as pa
import pytest

from memq import AdminClient, Consumer, Producer, read_range
from memq.errors import InvalidRequestError
from memq.testing.broker import BrokerProcess

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A broker that serves as long as this module runs."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running.address


@pytest.fixture
def topic(address, request):
    """A topic with two read partitions and four Batches of two LogMessages in each."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with AdminClient(address) as admin:
        admin.create_topic(name, read_partitions=2, batch_age="1ms")
        fill(address, name, 8)
    return name


def fill(address, name, batches, first=0):
    """Publish Batches of two LogMessages each, and count them up."""
    with Producer(address, topic=name) as producer:
        for n in range(first, first + batches):
            producer.write(b"%d" % n, key=b"k%d" % (n % 3))
            producer.write(b"+", headers={"n": b"%d" % n})
            producer.flush()


def take(consumer, batches):
    """The next Batches."""
    found = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < batches:
        assert time.monotonic() < deadline
        batch = consumer.poll(1.0)
        found += [batch] if batch else []
    return found


def values(batches):
    """The values in some Batches."""
    return [message.value for batch in batches for message in batch]


def test_reads_commits_and_goes_on(address, topic):
    """A consumer reads, commits and goes on, as its async counterpart does."""
    with Consumer(address, topic=topic, group="g") as consumer:
        seen = take(consumer, 5)
        consumer.commit()
        assert sum(consumer.committed().values()) == 5
        assert sum(consumer.lag().values()) == 3
        assert consumer.assignment == [0, 1]
    with Consumer(address, topic=topic, group="g") as consumer:
        seen += take(consumer, 3)
        assert consumer.poll(0.01) is None
        assert consumer.position(0) == 4
        consumer.seek(0, 3)
        assert [(b.partition, b.offset) for b in take(consumer, 1)] == [(0, 3)]
        consumer.seek_to_beginning([1])
        consumer.seek_to_end([0])
        assert {b.partition for b in take(consumer, 4)} == {1}
    assert sorted(values(seen)) == sorted([b"%d" % n for n in range(8)] + [b"+"] * 8)


def test_callbacks_run_in_the_polling_thread(address, topic):
    """Callbacks run where `poll` and `close` are called, and may call the consumer."""
    calls = []

    def on_assign(partitions):
        calls.append(("assign", partitions, threading.current_thread(), consumer.lag()))

    def on_revoke(partitions):
        consumer.commit()
        calls.append(("revoke", partitions, threading.current_thread(), consumer.committed()))

    consumer = Consumer(address, topic=topic, group="g", on_assign=on_assign, on_revoke=on_revoke)
    with consumer:
        for batch in consumer:
            assert len(batch) == 2
            break
        take(consumer, 7)
    here = threading.current_thread()
    assert calls == [
        ("assign", [0, 1], here, {0: 4, 1: 4}),
        ("revoke", [0, 1], here, {0: 4, 1: 4}),
    ]


# -- ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize("read_through", ["storage", "broker"])
def test_range_is_exact(address, topic, read_through):
    """A range holds exactly the Batches from its start up to its end, in order, and stays so."""
    arguments = {"topic": topic, "partition": 1, "read_through": read_through}
    table = read_range(address, start=1, end=3, **arguments)
    assert read_range(address, start=4, end=4, **arguments).schema == table.schema
    assert table.column_names == ["key", "value", "headers", "timestamp"]
    parts = [read_range(address, start=n, end=n + 1, **arguments) for n in (1, 2)]
    assert table.equals(pa.concat_tables(parts))
    fill(address, topic, 4, first=100)
    assert read_range(address, start=1, end=3, **arguments).equals(table)


def test_range_of_a_topic_whose_schema_grew(address):
    """Rows from before a column was added have nulls in it; metadata may not hide a column."""
    old = pa.schema([("batch", pa.utf8())])
    with AdminClient(address) as admin:
        admin.create_topic("grown", schema=old)
        for schema, batch in ((old, "a"), (old.append(pa.field("x", pa.int64())), "b")):
            if schema is not old:
                admin.alter_topic("grown", schema=schema)
            with Producer(address, topic="grown") as producer:
                row = {"batch": batch, "x": 2}
                producer.write_table(pa.Table.from_pylist([row], schema=schema))
        end = admin.offsets("grown")[0].end
    table = read_range(address, topic="grown", partition=0, start=0, end=end)
    assert table.to_pylist() == [{"batch": "a", "x": None}, {"batch": "b", "x": 2}]
    with Consumer(address, topic="grown") as consumer:
        assert values(take(consumer, end)) == [{"batch": "a"}, {"batch": "b", "x": 2}]
    with pytest.raises(InvalidRequestError, match="column 'batch' of its own"):
        read_range(address, topic="grown", partition=0, start=0, end=1, metadata=True)
