"""`spark.read` over exact ranges: the rows, the tasks, the columns, and what is refused."""

import pytest
from pyspark.errors import PySparkException

from memq import AdminClient, read_range
from memq.testing.broker import BrokerProcess
from tests.harness.services.s3proxy import REGION
from tests.system.spark.reading import NAME, produce

VALUES = [b"value-%04d" % number for number in range(3_000)]
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
    """Every column of every row is what `read_range` gives, and each row has a name of its own,
    though producers count in each write partition anew; in whichever way the columns are chosen.
    """
    expected = read_range(broker.address, topic=topic, metadata=True)

    found = load(topic, maps="map").toArrow()

    first = ["key", "value", "headers", "topic", "partition", "offset", "timestamp", "batch"]
    assert found.column_names == [*first, *NAME]
    assert set(found.column("topic").to_pylist()) == {topic}
    order = [(name, "ascending") for name in NAME]
    names = expected.column_names
    assert found.select(names).sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    assert sorted(found.column("value").to_pylist()) == VALUES
    assert found.select(NAME).group_by(NAME).aggregate([]).num_rows == len(VALUES)
    by_schema = load(topic, schema="offset bigint, value binary")
    by_option = load(topic, COLUMNS="offset,value")
    assert by_schema.columns == by_option.columns == ["offset", "value"]
    assert by_schema.exceptAll(by_option).count() == 0


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
