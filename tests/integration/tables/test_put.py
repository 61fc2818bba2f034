"""`memq table put`: a table gets what it lacks of a topic, once, whoever else puts ranges in."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import closing

import pyarrow as pa
import pytest

from memq import Producer
from memq.cli import table_put
from memq.cli.main import main
from memq.errors import RangeConflictError, SchemaMismatchError, TableConflictError
from memq.tables.check import check_table
from memq.tables.iceberg import IcebergTable, open_table
from tests.advice import follows
from tests.integration.tables.lake import catalog_options
from tests.integration.tables.topic_lake import ROWS, TopicLake


@pytest.fixture
def lake(broker, tmp_path):
    return TopicLake(broker.address, tmp_path, partitions=2)


@pytest.fixture
def small(monkeypatch):
    """Each Batch is a range of its own."""
    monkeypatch.setattr(table_put, "RANGE_BYTES", 1)


def put_all(lake):
    """Put in by this process; the ranges."""
    return table_put.put_topic(lake.table, lake.topic, lake.address)


def command(lake):
    options = ",".join(f"{name}={value}" for name, value in catalog_options(lake.folder).items())
    target = f"local:lake.{lake.topic}"
    where = ("--bootstrap", lake.address, "--catalog-options", options)
    return ["table", "put", lake.topic, target, *where]


def values(table):
    return sorted(table.load().scan().to_arrow()["n"].to_pylist())


def test_all_that_is_published(lake, capsys):
    """All read partitions are put in; the same command again only what came since."""
    lake.produce(5)

    for expected in (5, 0, 3):
        assert main([*command(lake), "-o", "json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert sum(each["batches"] for each in done) == expected
        assert sum(each["records"] for each in done) == expected * ROWS
        assert check_table(lake.table) == (lake.written, [])
        assert values(lake.table) == lake.numbers() == list(range(lake.written))
        lake.produce(3 if expected == 0 else 0)
    assert main(command(lake)) == 0
    columns = ["TOPIC", "INCARNATION", "PARTITION", "START", "END", "RECORDS"]
    assert capsys.readouterr().out.split() == columns


def test_ranges_that_others_have_put_in(lake):
    """Holes between them are filled, and rows have the types that Spark gives them."""
    lake.produce(8)
    end = lake.ends()[0]
    lake.put(1, 2)
    lake.put(3, end)

    put = [(each.partition, each.start, each.end) for each in put_all(lake)]

    assert put == [(0, 0, 1), (0, 2, 3), (1, 0, lake.ends()[1])]
    assert check_table(lake.table) == (lake.written, [])
    assert (
        lake.scan()
        .read_all()
        .sort_by("n")
        .equals(lake.scan(until={0: end}).read_all().sort_by("n"))
    )


def test_interrupted_at_any_range(lake, small, monkeypatch):
    """What was put in before stays, and the next run goes on with the others; none is doubled."""
    lake.produce(6)
    commits = iter(range(100))
    real = IcebergTable.commit

    def commit(*arguments):
        if next(commits) % 3 == 2:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(IcebergTable, "commit", commit)
    for committed in (2, 4, 6):
        if committed < 6:
            with pytest.raises(KeyboardInterrupt):
                put_all(lake)
        else:
            assert len(put_all(lake)) == 2
        assert check_table(lake.table) == (committed * ROWS, [])


def test_a_commit_whose_answer_is_lost(lake, small, monkeypatch):
    """The table says that it has the range: it is put in once, and shown."""
    lake.produce(2)
    real = IcebergTable.commit

    def commit(*arguments):
        real(*arguments)
        raise TableConflictError("lost")

    monkeypatch.setattr(IcebergTable, "commit", commit)

    assert sum(each.records for each in put_all(lake)) == 2 * ROWS
    assert check_table(lake.table) == (2 * ROWS, [])


@follows("Commit what is missing, as ranges of its own")
def test_several_at_a_time(lake, small):
    """Each record comes once; who is told that others were faster runs the command again."""
    lake.produce(6)
    errors = []

    def run():
        try:
            put_all(lake)
        except (RangeConflictError, TableConflictError) as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    put_all(lake)

    assert check_table(lake.table) == (6 * ROWS, [])
    assert values(lake.table) == list(range(6 * ROWS))


STRANGE = {
    "null": ("is null, which Iceberg cannot hold", pa.null()),
    "nested": (
        "column 'c.item.x' of topic '.*' is null",
        pa.list_(pa.struct([("x", pa.null())])),
    ),
    "empty": ("is a struct without fields", pa.struct([])),
    "duration": (r"is duration\[us\]", pa.duration("us")),
}


@pytest.mark.parametrize(("says", "kind"), STRANGE.values(), ids=STRANGE)
def test_what_iceberg_lacks(broker, tmp_path, says, kind):
    """It is refused by its name before there is a table, a namespace or a folder."""
    lake = TopicLake(broker.address, tmp_path, schema=pa.schema([("n", pa.int64()), ("c", kind)]))

    with pytest.raises(SchemaMismatchError, match=says):
        put_all(lake)

    assert lake.table._catalog.list_namespaces() == []
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.parametrize("names", [("id", "ID"), ("n", "Offset"), ("n", "Position")])
def test_names_that_differ_by_case(broker, tmp_path, names):
    """Most engines take them for one: refused before there is a table."""
    lake = TopicLake(
        broker.address, tmp_path, schema=pa.schema([(name, pa.int64()) for name in names])
    )

    with pytest.raises(SchemaMismatchError, match=f"(?i)column.*'{names[1]}'"):
        put_all(lake)
    assert lake.table._catalog.list_namespaces() == []


KINDS = {
    "u1": (pa.uint8(), 255),
    "u8": (pa.uint64(), 2**64 - 1),
    "half": (pa.float16(), 0.5),
    "fixed": (pa.binary(4), b"abcd"),
    "clock": (pa.time32("ms"), 1001),
    "clocks": (pa.list_(pa.time64("ns")), [1_001_000]),
    "day": (pa.date64(), 86_400_000),
    "zone": (pa.timestamp("ms", "Europe/Berlin"), 1),
    "local": (pa.timestamp("s"), 1),
    "map": (pa.map_(pa.utf8(), pa.uint16()), [("a", 1), ("a", 2)]),
    "large": (pa.large_list(pa.large_utf8()), ["x", None]),
    "pair": (pa.list_(pa.uint32(), 2), [1, 2]),
    "deep": (pa.struct([pa.field("x", pa.struct([("y", pa.uint8())]))]), {"x": {"y": 1}}),
    "small": (pa.decimal32(5, 2), None),
}


def test_types_that_iceberg_has_otherwise(broker, tmp_path):
    """Each value comes back as it was written, with the topic's type, from the table alone."""
    schema = pa.schema([("n", pa.int64()), *((name, kind) for name, (kind, _) in KINDS.items())])
    lake = TopicLake(broker.address, tmp_path, schema=schema)
    full = {"n": 1} | {name: value for name, (_, value) in KINDS.items()}
    data = pa.Table.from_pylist([full, {"n": 2}], schema=schema)
    with Producer(lake.address, topic=lake.topic, acks="all") as producer:
        producer.write_table(data)
        producer.flush(timeout=30)

    put_all(lake)
    put_all(lake)

    with closing(lake.scan(until={0: 1})) as stored:
        assert stored.read_all().sort_by("n").to_pylist() == data.to_pylist()


def test_a_time_that_no_table_can_hold(broker, tmp_path):
    """A time beyond the range of microseconds is refused, wherever it stands; it is not 1970."""
    kind = pa.struct([("at", pa.list_(pa.timestamp("s")))])
    schema = pa.schema([("n", pa.int64()), ("e", kind)])
    lake = TopicLake(broker.address, tmp_path, schema=schema)
    late = pa.array([[2**62]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("s")))
    rows = pa.table(
        [pa.array([1]), pa.StructArray.from_arrays([late], fields=list(kind))], schema=schema
    )
    with Producer(lake.address, topic=lake.topic, acks="all") as producer:
        producer.write_table(rows)
        producer.flush(timeout=30)

    with pytest.raises(SchemaMismatchError, match=r"column 'e' is struct.* does not become"):
        put_all(lake)
    assert check_table(lake.table) == (0, [])


def test_progress_on_a_terminal(lake):
    """A bar is on stderr, where that is a terminal, and reaches its end."""
    lake.produce(2)
    parent, child = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "memq", *command(lake)],
        stdout=subprocess.PIPE,
        stderr=child,
        check=True,
        timeout=60,
    )
    os.close(child)
    with os.fdopen(parent, "rb", closefd=True) as terminal:
        seen = terminal.read1(1 << 16)

    assert b"100%" in seen
    assert lake.topic.encode() in done.stdout


@pytest.mark.parametrize(
    "name", ["la#ke", "la ke", "la%20ke", "q?x", "set[1]", "{a,b}", "a*b", "laké"]
)
def test_a_warehouse_of_any_name(lake, name):
    """The name is that of one folder, which has all that there is; none is made beside it."""
    lake.produce(1)
    options = catalog_options(lake.folder) | {"warehouse": f"file://{lake.folder}/{name}"}
    table = open_table("local:lake.odd", options)
    before = {each.name for each in lake.folder.iterdir()}

    table_put.put_topic(table, lake.topic, lake.address)

    assert values(table) == list(range(ROWS))
    made = {each.name for each in lake.folder.iterdir()} - before - {"catalog.db"}
    assert made == {name}
