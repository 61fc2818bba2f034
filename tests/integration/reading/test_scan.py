"""Reading by offset and time, as tables and as streams, against a broker process."""

import gc
import threading
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest

from memq import AdminClient, Producer, async_scan, read_range, scan
from memq.errors import ClosedError, ConfigError, InvalidRequestError, OffsetOutOfRangeError
from tests.topics.reading import world

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2025, 6, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def address(broker):
    return broker.address


def fill(address, name, minutes, **options):
    """A topic with a Batch for each group of minutes; a record's value is its minute."""
    with AdminClient(address) as admin:
        settings = {"batch_age": "5ms", "read_partitions": 3, "audited": False}
        admin.create_topic(name, **(settings | options))
    with Producer(address, topic=name) as producer:
        for group in minutes:
            for minute in group:
                producer.write(b"%d" % minute, timestamp=NOON + minute * MINUTE)
            producer.flush()


def found(table):
    """The minutes in a table."""
    return sorted(int(value) for value in table["value"].to_pylist())


def test_a_stream_is_what_the_table_is(address):
    """A scan gives the rows of `read_range`, in the same order and with the same columns."""
    fill(address, "stream", [range(n, n + 20) for n in range(12)])
    times = {"start_time": NOON + 3 * MINUTE, "end_time": NOON + 25 * MINUTE}
    for options in ({}, times, {"metadata": True}, times | {"columns": ["value"]}):
        table = read_range(address, topic="stream", **options)
        reader = scan(address, topic="stream", **options)
        assert reader.schema == table.schema
        assert reader.read_all().equals(table)


def test_a_scan_can_be_read_again(address):
    """Each reading gives the rows of the first: by pyarrow, twice in one query, and in a loop."""
    fill(address, "twice", [range(n, n + 5) for n in range(0, 20, 5)])
    rows = scan(address, topic="twice")
    first = rows.read_all()
    with Producer(address, topic="twice") as producer:
        producer.write(b"later").result()

    assert rows.read_all().equals(first), "what is published later is not part of it"
    assert pa.table(rows).equals(first)
    assert pa.Table.from_batches(rows).equals(first)
    [(joined,)] = duckdb.sql("select count(*) from rows a join rows b using (value)").fetchall()
    assert joined == len(first) == 20
    rows.close()
    with pytest.raises(ClosedError):
        rows.read_all()


@pytest.mark.parametrize("taken", [0, 1])
def test_a_scan_that_is_left_leaves_nothing(address, taken):
    """A reader that is closed or forgotten, begun or not, ends its thread and connections."""
    name = f"left-{taken}"
    fill(address, name, [[1], [2], [3]])
    before = set(threading.enumerate())
    reader = scan(address, topic=name).reader()
    for _ in range(taken):
        reader.read_next_batch()
    del reader
    gc.collect()

    # One that is in the middle of a fetch is told to end, and not waited for.
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(timeout=30.0)
    assert not [thread for thread in left if thread.is_alive()]


def test_records_without_a_time(address):
    """A typed topic without a time is refused; rows from before it had one have none."""
    old = pa.schema([("x", pa.int64())])
    new = old.append(pa.field("timestamp", pa.timestamp("ms")))
    with AdminClient(address) as admin:
        admin.create_topic("timeless", schema=old, batch_age="5ms")
        with Producer(address, topic="timeless") as producer:
            producer.write_table(pa.table({"x": [1]}))
        with pytest.raises(InvalidRequestError, match="'timeless' have no time: it has no column"):
            scan(address, topic="timeless", start_time=NOON)
        admin.alter_topic("timeless", schema=new)
    noon = NOON.replace(tzinfo=None)
    times = {"x": [2, 3, 4], "timestamp": [noon, None, datetime(1970, 1, 1)]}  # noqa: DTZ001
    with Producer(address, topic="timeless") as producer:
        producer.write_table(pa.table(times, schema=new))

    def at(**times):
        return read_range(address, topic="timeless", **times)["x"].to_pylist()

    assert at() == [1, 2, 3, 4]
    assert at(start_time=NOON) == [2]
    assert at(end_time=NOON) == [4]
    assert at(start_time=EPOCH) == [2, 4]


def test_times_are_exact_over_all_partitions(address):
    """Whenever a record was published; a time may be text as on the command line."""
    fill(address, "exact", [[0, 90], range(30), range(60, 70), [10, 200], [5], [59, 61], [11]])
    for times, expected in (
        ({"start_time": "2025-06-30T12:10Z", "end_time": "2025-06-30T15:00+02:00"},
         sorted([*range(10, 30), 10, 59, 11])),
        ({"end": NOON + MINUTE}, [0, 0]),
        ({"start": NOON + 90 * MINUTE}, [90, 200]),
        ({"start_time": NOON, "end_time": NOON}, []),
        ({"start": "1h"}, []),
    ):  # fmt: skip
        assert found(read_range(address, topic="exact", **times)) == expected
    for wrong, said in (
        ({"start": "soon"}, "'soon' is not a time"),
        ({"end_time": "2025-06-30T12:00"}, "has no time zone"),
        ({"start": "1h", "start_time": NOON}, "start and start_time are both times"),
        ({"limit": -1}, "limit = -1: must be a whole number"),
        ({"limit": True}, "limit = True"),
        ({"limit": 1.5}, "limit = 1.5"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_range(address, topic="exact", **wrong)


async def test_a_limit_takes_the_first_rows(address):
    """Of a table, a scan and a stream alike."""
    fill(address, "limit", [range(n, n + 5) for n in range(0, 20, 5)], read_partitions=1)
    for limit in (0, 1, 5, 7, 20, 21, None):
        first = list(range(20))[:limit]
        assert found(read_range(address, topic="limit", start=NOON, limit=limit)) == first
        assert found(scan(address, topic="limit", limit=limit).read_all()) == first
        async with aclosing(async_scan(address, topic="limit", limit=limit)) as batches:
            assert sum([len(batch) async for batch in batches]) == len(first)


# -- a topic in the test process, whose records have the times 0, 1, 2 ... in microseconds -----


async def test_retention_during_a_read_is_an_error(tmp_path, monkeypatch):
    """Offsets that go while they are read, or the objects of a Batch that went, end the scan."""
    monkeypatch.setattr("memq.client.topic.PAGE_ENTRIES", 4)
    async with world(tmp_path) as w:
        for _ in range(20):
            await w.write()
        async with aclosing(async_scan(w.address, topic="t", start_time=EPOCH)) as batches:
            await anext(batches)
            await w.queue.truncate(w.queue_topic, 0, 19)
            with pytest.raises(OffsetOutOfRangeError, match="offset"):
                async for _ in batches:
                    pass
