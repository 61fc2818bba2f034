"""The data source used in this process, call by call as Spark makes them, without a Spark."""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from memq.spark import MemqDataSource


def inputs(address, **options):
    """The inputs of the tasks of a batch read of the topic `t`."""
    return reader(address, **options)[0].partitions()


def reader(address, **options):
    """A batch reader of the topic `t`, and the Arrow schema that its rows must have."""
    source = MemqDataSource(given(address, options))
    schema = source.schema()
    return source.reader(schema), to_arrow_schema(schema, timezone="UTC")


def read(address, **options):
    """All rows of a batch read."""
    found, schema = reader(address, **options)
    return table(found, found.partitions(), schema)


def given(address, options):
    """Options of a read of the topic `t`, unless they say otherwise; None leaves one out."""
    options = {"bootstrap": address, "topic": "t"} | options
    return {name: value for name, value in options.items() if value is not None}


def table(found, planned, schema):
    """The rows of some tasks; every Arrow batch must have exactly the schema that Spark has."""
    batches = [batch for each in planned for batch in found.read(each)]
    assert all(batch.schema.equals(schema) for batch in batches)
    return pa.Table.from_batches(batches, schema=schema)


class Stream:
    """A streaming query on the topic `t`, from its start."""

    def __init__(self, address):
        source = MemqDataSource(given(address, {"startingOffsets": "earliest"}))
        schema = source.schema()
        self._reader = source.streamReader(schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def run(self):
        """Micro-batches until there is nothing more; the rows of each."""
        found, start = [], self._reader.initialOffset()
        limit = self._reader.getDefaultReadLimit()
        while (end := self._reader.latestOffset(start, limit)) != start:
            planned = self._reader.partitions(start, end)
            found.append(table(self._reader, planned, self._schema))
            start = end
        return found

    def stop(self):
        """End the query."""
        self._reader.stop()
