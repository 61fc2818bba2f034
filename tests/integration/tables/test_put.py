"""`memq table put`: a table gets what it lacks of a topic, once, whoever else puts ranges in."""

import json
from contextlib import closing

import pyarrow as pa
import pytest

from memq import Producer
from memq.cli import table_put
from memq.cli.main import main
from memq.errors import ConfigError, SchemaMismatchError
from memq.tables.check import check_table
from memq.tables.iceberg import IcebergTable, open_table
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
    columns = ["TOPIC", "TOPIC-ID", "PARTITION", "START", "END", "RECORDS"]
    assert capsys.readouterr().out.split() == columns


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


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("c", pa.list_(pa.struct([("x", pa.null())])), "column 'c.item.x' of topic '.*' is null"),
        ("Offset", pa.int64(), "column 'Offset'"),
    ],
)
def test_what_iceberg_lacks(broker, tmp_path, name, kind, says):
    """A type, or names that most engines take for one: refused before there is a table, a namespace
    or a folder.
    """
    schema = pa.schema([("n", pa.int64()), (name, kind)])
    lake = TopicLake(broker.address, tmp_path, schema=schema)

    with pytest.raises(SchemaMismatchError, match=says):
        put_all(lake)

    assert lake.table._catalog.list_namespaces() == []
    assert not (tmp_path / "warehouse").exists()


KINDS = {
    "u8": (pa.uint64(), 2**64 - 1),
    "fixed": (pa.binary(4), b"abcd"),
    "clock": (pa.time32("ms"), 1001),
    "clocks": (pa.list_(pa.time64("ns")), [1_001_000]),
    "zone": (pa.timestamp("ms", "Europe/Berlin"), 1),
    "map": (pa.map_(pa.utf8(), pa.uint16()), [("a", 1), ("a", 2)]),
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


@pytest.mark.parametrize("name", ["la#ke", "q?x"])
def test_a_warehouse_that_pyiceberg_misreads(tmp_path, name):
    """A name that is cut by a character in it is refused."""
    options = catalog_options(tmp_path) | {"warehouse": f"file://{tmp_path}/{name}"}
    with pytest.raises(ConfigError, match="pyiceberg ends a path at # and"):
        open_table("local:lake.odd", options)
