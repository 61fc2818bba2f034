"""Producer, the one for threads, over real sockets."""

import os
import threading

import pyarrow as pa
import pytest

from memq.client.producer.producer import Producer
from memq.client.sync import EventLoopThread
from memq.errors import (
    BufferFullError,
    ClosedError,
    CorruptDataError,
    InvalidRequestError,
    SchemaMismatchError,
)
from tests.fakes.tiny_broker import TinyBroker

TABLE = pa.table({"value": [b"x" * 100] * 100})


class BrokerThread:
    """A tiny broker on an event loop of its own."""

    def __init__(self):
        self.tiny = TinyBroker()
        self.loop = EventLoopThread("tiny-broker")
        self.loop.run(self.tiny.start())
        self.address = self.tiny.address

    def run(self, function):
        """Call a function on the broker's loop."""

        async def call():
            return function()

        return self.loop.run(call())

    def values(self):
        """Values of all records, in order."""
        return self.run(
            lambda: [row["value"] for batch in self.tiny.tables() for row in batch.to_pylist()]
        )

    def close(self):
        self.loop.run(self.tiny.stop())
        self.loop.close()


@pytest.fixture
def broker():
    thread = BrokerThread()
    yield thread
    thread.close()


def producer(broker, **options):
    return Producer(broker.address, topic="events", **options)


def test_records_and_tables_arrive_in_order(broker):
    """Everything written is delivered by the end of the block, in the order of writing."""
    with producer(broker, message_bytes="4KiB", max_in_flight=1) as p:
        first = p.write(b"first", key=b"k", headers={"h": b"1"}, timestamp=7)
        table = pa.table({"value": [b"%03d" % number + b"x" * 100 for number in range(100)]})
        deliveries = p.write_table(table)
        p.write(b"last")
    stored = first.result(0)
    assert (stored.topic, stored.sequence, stored.batch_id) == ("events", 0, "batch-0")
    assert all(delivery.done() for delivery in deliveries)
    found = broker.values()
    assert found == [b"first", *table.column("value").to_pylist(), b"last"]


def test_rows_are_written_as_mappings(broker):
    """A list of dicts is stored like a table of them; nothing of it if one row does not fit."""
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.utf8()))])
    broker.run(lambda: broker.tiny.add_topic("typed", schema))
    rows = [{"id": 1, "tags": ["a"]}, {"id": 2}]
    with Producer(broker.address, topic="typed") as p:
        with pytest.raises(InvalidRequestError, match="use write_rows"):
            p.write_table(rows)
        assert len(p.write_rows(rows)) == 1
        with pytest.raises(SchemaMismatchError, match="'id' as int64, but row 1 has '3'"):
            p.write_rows([{"id": 2}, {"id": "3"}])
    (table,) = broker.run(lambda: broker.tiny.tables("typed"))
    assert table.to_pylist() == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]


def test_full_memory_is_waited_for_and_an_error_in_the_end(broker):
    """A write or a table for which no room comes fails after max_block; with an ack it goes on."""
    broker.tiny.hold = True
    options = {"message_bytes": "2KiB", "buffer_bytes": "4KiB"}
    with producer(broker, max_block="50ms", **options) as p:
        for write in (lambda: p.write_table(TABLE), lambda: p.write(b"x")):
            with pytest.raises(BufferFullError, match="4096"):
                write()
        broker.run(broker.tiny.release)
        p.flush()
        broker.tiny.hold = True
    with producer(broker, **options) as p:
        thread = threading.Thread(target=p.write_table, args=(TABLE,))
        thread.start()
        broker.loop.run(broker.tiny.until(lambda: broker.tiny.held))
        broker.run(broker.tiny.release)
        thread.join(30)
        assert not thread.is_alive()
    assert len(broker.values()) > 100


def test_callback_may_write_but_not_wait(broker):
    """A callback runs on the producer's loop: it can write, but not block on what it prevents."""
    seen = []
    done = threading.Event()
    with producer(broker, message_bytes="2KiB", buffer_bytes="2KiB") as p:

        def callback(_):
            for act in (lambda: p.write(b"x" * 1_000), p.flush):
                try:
                    while True:
                        seen.append(act())
                except (BufferFullError, InvalidRequestError) as exc:
                    seen.append(type(exc))
            done.set()

        p.write(b"a").add_done_callback(callback)
        assert done.wait(20)
    assert [kind for kind in seen if isinstance(kind, type)] == [
        BufferFullError,
        InvalidRequestError,
    ]
    assert len(broker.values()) >= 2


def test_close_twice_and_calls_afterwards(broker):
    """Closing again does nothing; whatever else is called says that the producer is closed."""
    p = producer(broker)
    p.write(b"a")
    p.close()
    p.close()
    for call in (
        lambda: p.write(b"b"),
        p.flush,
        lambda: p.write_table(pa.table({"value": [b"c"]})),
    ):
        with pytest.raises(ClosedError):
            call()
    assert repr(p) == "<Producer events closed>"
    assert broker.values() == [b"a"]


def test_a_block_that_fails(broker):
    """What the caller raised comes out, with what close had to say; half a Message is dropped."""
    broker.tiny.faults.append(CorruptDataError("bits fell over"))

    def fail():
        with producer(broker, producer_id="job") as p:
            p.write(b"a")
            p._accumulator.seal()
            deliveries.append(p.write(b"b"))
            raise KeyError("mine")

    deliveries = []
    with pytest.raises(KeyError) as caught:
        fail()
    assert "bits fell over" in caught.value.__notes__[0]
    assert "dropped" in str(deliveries[0].exception(0))


def test_forked_child_cannot_use_it_and_does_no_harm(broker):
    """In a child process every call raises, close does nothing, and the parent goes on."""
    with producer(broker) as p:
        p.write(b"before")
        with p._accumulator._lock:  # as another thread may
            pid = os.fork()
            if pid == 0:
                os._exit(_misuse(p))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        p.write(b"after")
    assert broker.values() == [b"before", b"after"]


def _misuse(p):
    try:
        for call in (lambda: p.write(b"child"), p.flush):
            try:
                call()
            except ClosedError:
                continue
            return 1
        p.close()
    except BaseException:  # noqa: BLE001 - the child must not go on with the tests
        return 2
    return 0
