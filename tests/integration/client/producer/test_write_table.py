"""Tables and rows through a real broker: stored as they are, or nothing of them."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from memq import AdminClient, AsyncProducer, Producer, read_range
from memq.errors import InvalidRequestError, MemqError, SchemaMismatchError

_names = (f"table-{number}" for number in itertools.count())


def make_topic(broker, schema):
    """A topic of this schema; its name."""
    name = next(_names)
    with AdminClient(broker.address) as admin:
        admin.create_topic(
            name, schema=schema, batch_age="1ms", write_partitions=1, read_partitions=1
        )
    return name


def stored(broker, topic):
    """All that can be read of a topic."""
    with AdminClient(broker.address) as admin:
        end = admin.offsets(topic)[0].end
    return read_range(broker.address, topic=topic, partition=0, start=0, end=end)


def test_rows_are_written_as_mappings(broker):
    """A list of dicts is stored like a table of them; nothing of it if one row does not fit."""
    topic = make_topic(broker, pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.utf8()))]))
    rows = [{"id": 1, "tags": ["a"]}, {"id": 2}]
    with Producer(broker.address, topic=topic) as producer:
        with pytest.raises(InvalidRequestError, match="use write_rows"):
            producer.write_table(rows)
        for delivery in producer.write_rows(rows):
            assert delivery.result().offset == 0
        with pytest.raises(SchemaMismatchError, match="'id' as int64, but row 1 has '3'"):
            producer.write_rows([{"id": 2}, {"id": "3"}])
    assert stored(broker, topic).to_pylist() == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]


async def test_the_async_producer_writes_rows_too(broker):
    """With a time of their own, or now; and of a topic without a schema of its own."""
    topic = make_topic(broker, None)
    async with AsyncProducer(broker.address, topic=topic) as producer:
        await producer.write_rows([{"key": "k", "value": b"v", "headers": {"h": b"x"}}])
        with pytest.raises(MemqError, match="'Value' is not in the schema"):
            await producer.write_rows([{"Value": b"v"}])
    (row,) = stored(broker, topic).to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [("h", b"x")])
