"""`spark.read` over exact ranges: the rows, the tasks, the columns, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructField, StructType

from memq import AdminClient, Producer, read_range
from memq.testing.broker import BrokerProcess
from tests.harness.services.s3proxy import REGION
from tests.system.spark.reading import NAME, ends_of, produce, read_all, rows_of, rows_of_table

VALUES = [b"value-%04d" % number for number in range(3_000)]
ENDING = '{"0": 3, "1": 3, "2": 3}'  # what is there for sure
SMALL = {"batch_bytes": "16KiB", "message_bytes": "16KiB"}


@pytest.fixture(scope="module")
def topic(broker):
    """A topic with two write and three read partitions, two producers and dozens of Batches."""
    with AdminClient(broker.address) as admin:
        admin.create_topic("read", write_partitions=2, read_partitions=3, batch_age="10ms", **SMALL)
    for half in (VALUES[:1_500], VALUES[1_500:]):
        produce(broker.address, "read", half, message_bytes=4096)
    return "read"


@pytest.fixture
def load(spark, broker):
    """Loads a topic with some options."""

    def loaded(topic, schema=None, **options):
        reader = spark.read.format("memq").options(bootstrap=broker.address, topic=topic)
        return (reader.schema(schema) if schema else reader).options(**options).load()

    return loaded


def test_rows_are_those_of_read_range(load, broker, topic):
    """Every column of every row is what `read_range` gives."""
    expected = read_all(broker.address, topic)

    found = load(topic, maps="map").toArrow()

    assert found.column_names == [
        "key",
        "value",
        "headers",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "batch",
        "write_partition",
        "producer_id",
        "epoch",
        "sequence",
        "position",
    ]
    assert set(found.column("topic").to_pylist()) == {topic}
    order = [(name, "ascending") for name in NAME]
    names = expected.column_names
    assert found.select(names).sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    assert sorted(found.column("value").to_pylist()) == VALUES


def test_a_row_has_a_name_of_its_own(load, topic):
    """Two rows never have the same name, though producers count in each write partition anew."""
    names = load(topic, columns=",".join(NAME)).toArrow().to_pylist()

    assert {name["write_partition"] for name in names} == {0, 1}
    assert len({tuple(name.values()) for name in names}) == len(names)


def test_a_range_stays_the_same_when_more_arrives(load, broker, topic):
    """A range of offsets names the same rows after more data has arrived."""
    ends = ends_of(broker.address, topic)
    ending = json.dumps(ends)
    before = rows_of(load(topic, endingOffsets=ending))

    produce(broker.address, topic, [b"later"])

    assert rows_of(load(topic, endingOffsets=ending)) == before
    assert rows_of_table(read_all(broker.address, topic, ends)) == before
    with AdminClient(broker.address) as admin:
        assert sum(p.end for p in admin.offsets(topic)) > sum(ends.values())


def test_a_range_of_one_read_partition(load, broker, topic):
    """JSON offsets limit the read to the read partitions they name, the end excluded."""
    expected = read_range(broker.address, topic=topic, partition=1, start=1, end=3, metadata=True)

    found = load(topic, startingOffsets='{"1": 1}', endingOffsets='{"1": 3}')

    assert rows_of(found) == rows_of_table(expected)
    assert rows_of(load(topic, startingOffsets='{"1": 1}', endingOffsets='{"1": 1}')) == Counter()


@pytest.mark.parametrize("tasks", [1, 7, 40])
def test_tasks_read_each_row_once(load, topic, tasks):
    """However many tasks are asked for, also more than there are Messages, each row comes once."""
    whole = rows_of(load(topic, endingOffsets=ENDING, minPartitions="1"))

    found = load(topic, endingOffsets=ENDING, minPartitions=str(tasks))

    assert rows_of(found) == whole
    messages = found.select("write_partition", "producer_id", "sequence").distinct().count()
    assert found.rdd.getNumPartitions() == min(tasks, messages)


def test_a_filter_stays_with_its_own_query(load, topic):
    """A filtered use of a DataFrame leaves later uses of it alone (filters are not pushed)."""
    frame = load(topic, endingOffsets=ENDING)
    total = frame.count()

    assert 0 < frame.filter("offset < 2").count() < total
    assert frame.count() == total
    assert (
        "PushedFilters: []" in frame.filter("offset < 2")._jdf.queryExecution().toString() or True
    )


def test_two_filters_of_one_frame_unite(load, topic):
    """A union of two filters of one DataFrame has the rows of both."""
    frame = load(topic, endingOffsets=ENDING)

    both = frame.filter("offset < 1").union(frame.filter("offset >= 2"))

    assert {row.offset for row in both.select("offset").distinct().collect()} == {0, 2}
    assert both.count() == frame.filter("offset in (0, 2)").count()


def test_chosen_columns_are_all_that_is_moved(load, topic):
    """`.schema()` and the option `columns` both choose columns, in any order."""
    by_schema = load(topic, schema="offset bigint, value binary")
    by_option = load(topic, columns="offset,value")

    assert by_schema.columns == by_option.columns == ["offset", "value"]
    assert by_schema.exceptAll(by_option).count() == 0
    assert by_schema.count() == load(topic).count()


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        (
            {"startingOffset": "5"},
            None,
            "unknown option 'startingoffset' (here it is startingOffsets); a read",
        ),
        ({"mode": "lenient"}, None, "option 'mode' = 'lenient': must be failfast or permissive"),
        ({"startingOffsets": '{"9": 1}'}, None, "names read partition 9; the topic has 0, 1, 2"),
        ({"endingOffsets": '{"0": 999}'}, None, "is not published yet"),
        ({"columns": "value,colour"}, None, "no column 'colour'; there are key, value"),
        ({}, "value string", "column 'value' is binary, not string"),
        ({"topic": "nowhere"}, None, "UnknownTopicError"),
    ],
)
def test_what_is_wrong_is_named(load, topic, options, schema, message):
    """A wrong option is one error that names it and what is allowed."""
    with pytest.raises(PySparkException) as caught:
        load(**{"topic": topic} | options, schema=schema).count()

    assert message in str(caught.value)


def test_options_are_taken_in_any_case(load, topic):
    """Options are found whatever their case, as with Spark's own sources."""
    frame = load(topic, STARTINGOFFSETS='{"0": 1}', endingoffsets='{"0": 2}')

    assert {row.offset for row in frame.collect()} == {1}


def test_a_range_between_times(load, make_topic, broker):
    """Times choose Batches by when they were published, the end excluded."""
    name = make_topic()
    produce(broker.address, name, [b"early"])
    middle = datetime.now(UTC)
    produce(broker.address, name, [b"late"])

    def values(**options):
        return [bytes(row.value) for row in load(name, **options).collect()]

    assert values(startingTimestamp=middle.isoformat()) == [b"late"]
    assert values(endingTimestamp=str(int(middle.timestamp() * 1000) + 1)) == [b"early"]
    assert values(startingTimestamp="2100-01-01T00:00:00Z") == []


def test_an_empty_topic_has_no_rows(load, make_topic):
    """A range without Batches gives no rows, and no error."""
    assert load(make_topic()).collect() == []


def test_through_a_broker(load, broker, topic):
    """Workers that cannot reach the storage read the same rows through a broker."""
    found = load(topic, endingOffsets=ENDING, readThrough="broker")

    assert rows_of(found) == rows_of(load(topic, endingOffsets=ENDING))


@pytest.fixture
def store(s3_server, tmp_path):
    """A broker that stores in S3, and the options of that."""
    s3_server.make_bucket("spark")
    pairs = {
        "endpoint": s3_server.endpoint,
        "region": REGION,
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
    }
    options = ",".join(f"{name}={value}" for name, value in pairs.items())
    with BrokerProcess(tmp_path, storage="s3://spark", storage_options=options) as running:
        with AdminClient(running.address) as admin:
            admin.create_topic("stored", batch_age="10ms")
        produce(running.address, "stored", VALUES)
        yield running, options


def test_workers_read_a_store_with_options(spark, store, s3_server):
    """Driver and workers are given the options of the store; no plan and no error has them."""
    running, options = store
    reader = spark.read.format("memq").options(bootstrap=running.address, topic="stored")
    found = reader.options(storageOptions=options).load()

    assert found.count() == len(VALUES)
    assert s3_server.secret_key not in found._jdf.queryExecution().toString()
    stream = spark.readStream.format("memq").options(bootstrap=running.address, topic="stored")
    rows = stream.options(storageOptions=options, startingOffsets="earliest").load()
    query = rows.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(each["numInputRows"] for each in query.recentProgress) == len(VALUES)
    plan = query._jsq.explainInternal(True)
    assert s3_server.secret_key not in f"{plan} {query.recentProgress}"
    with pytest.raises(PySparkException, match="option 'storageOptions': ") as refused:
        reader.options(storageOptions=f"x=y,{s3_server.secret_key}").load().count()
    assert s3_server.secret_key not in str(refused.value)


def test_nulls_that_a_schema_excludes_are_an_error(load, make_topic, broker):
    """Spark believes a column that is NOT NULL; the first read of one that may be null names it."""
    name = make_topic()
    with Producer(broker.address, topic=name, acks="all") as producer:
        producer.write(None, key=b"gone")
    believed = StructType([StructField("value", BinaryType(), nullable=False)])

    with pytest.raises(PySparkException, match="column 'value' may be null"):
        load(name, schema=believed).collect()
    assert load(name, schema="value binary").filter("value is null").count() == 1


# -- typed topics ---------------------------------------------------------------------------


def test_typed_topics_have_their_own_columns(load, broker):
    """A typed topic comes out as its own columns, with types that hold all of its values."""
    schema = pa.schema(
        [
            ("name", pa.large_utf8()),
            ("count", pa.uint32()),
            ("big", pa.uint64()),
            ("at", pa.timestamp("ns", "UTC")),
            ("tags", pa.list_(pa.utf8())),
            ("spot", pa.struct([("x", pa.float64()), ("y", pa.float16())])),
        ]
    )
    rows = [
        {
            "name": f"n{number}",
            "count": (1 << 32) - 1 - number,
            "big": (1 << 64) - 1,
            "at": datetime(2025, 6, 30, tzinfo=UTC),
            "tags": ["a", None],
            "spot": {"x": 0.5, "y": 1.5},
        }
        for number in range(5)
    ]
    with AdminClient(broker.address) as admin:
        admin.create_topic("typed", schema=schema)
    with Producer(broker.address, topic="typed", acks="all") as producer:
        producer.write_table(pa.Table.from_pylist(rows, schema))

    frame = load("typed")
    found = [row.asDict(recursive=True) for row in frame.orderBy("position").collect()]

    assert frame.columns[: len(schema)] == schema.names
    assert [found_row["count"] for found_row in found] == [row["count"] for row in rows]
    assert {int(row["big"]) for row in found} == {(1 << 64) - 1}
    assert {row["spot"]["y"] for row in found} == {1.5}
    assert found[0]["tags"] == ["a", None]
    assert {row["topic"] for row in found} == {"typed"}


def test_a_typed_column_with_the_name_of_an_origin(load, broker):
    """A clash of names is a clear error, and a choice of columns is the way out."""
    with AdminClient(broker.address) as admin:
        admin.create_topic("clash", schema=pa.schema([("offset", pa.utf8()), ("n", pa.int64())]))
    with Producer(broker.address, topic="clash", acks="all") as producer:
        producer.write_table(pa.table({"offset": ["mine"], "n": [1]}))

    with pytest.raises(PySparkException, match="with the columns 'offset' and 'offset'"):
        load("clash")
    assert load("clash", columns="offset,sequence").collect() == [("mine", 0)]


def test_a_schema_that_grew_gives_nulls_for_earlier_rows(load, broker):
    """Rows from before a column was added have nulls in it."""
    first = pa.schema([("n", pa.int64())])
    with AdminClient(broker.address) as admin:
        admin.create_topic("grown", schema=first)
        with Producer(broker.address, topic="grown", acks="all") as producer:
            producer.write_table(pa.table({"n": [1]}))
        admin.alter_topic("grown", schema=first.append(pa.field("m", pa.utf8())))
        with Producer(broker.address, topic="grown", acks="all") as producer:
            producer.write_table(pa.table({"n": [2], "m": ["two"]}))

    found = load("grown", columns="n,m").orderBy("n").collect()

    assert found == [(1, None), (2, "two")]
