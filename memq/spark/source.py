"""What Spark sees first: a format named `memq` with a schema, readers and writers.

Spark makes it anew, in a Python process beside the driver, for each `load()` and `save()`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from memq.core.format.schema import deserialize_schema
from memq.spark.batch import MemqReader
from memq.spark.columns import Shape, choose, shape_of
from memq.spark.driver import Driver
from memq.spark.messages import MESSAGE_COLUMNS, NEVER_NULL
from memq.spark.options import ReadOptions, parse_read_options
from memq.spark.stream import MemqStreamReader
from memq.spark.worker import Task, schemas_by_crc

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class MemqDataSource(DataSource):
    """The format `memq`. Its options stand in `memq.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return "memq"

    def schema(self) -> StructType:
        """The columns of the topic, or those that the options ask for.

        Raises:
            ConfigError: an option is wrong.
            UnknownTopicError: there is no such topic.
            MemqError: no broker answered in time.
        """
        return _task(parse_read_options(self.options), None).shape.spark

    def reader(self, schema: StructType) -> MemqReader:
        """What reads a range once."""
        task = _task(parse_read_options(self.options), schema)
        return MemqReader(task.options, task)

    def streamReader(self, schema: StructType) -> MemqStreamReader:  # noqa: N802 - Spark's name
        """What follows a topic."""
        task = _task(parse_read_options(self.options, stream=True), schema)
        return MemqStreamReader(task.options, task)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """What writes a DataFrame to a topic."""
        from memq.spark.writer import batch_writer  # noqa: PLC0415 - readers do not need it

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """What writes each micro-batch of a stream to a topic."""
        from memq.spark.writer import stream_writer  # noqa: PLC0415 - readers do not need it

        return stream_writer(self.options, schema, overwrite=overwrite)


def _task(options: ReadOptions, wanted: StructType | None) -> Task:
    """What the workers are to do: rows with the columns that are wanted, if any were chosen.

    From here on the options name the incarnation of the topic.
    """
    with Driver(options) as driver:
        topic = driver.topic()
    options = replace(options, incarnation=topic.incarnation)
    if options.view == "messages":
        shape = Shape(choose(MESSAGE_COLUMNS, options.columns, wanted, NEVER_NULL), frozenset())
    else:
        newest = deserialize_schema(topic.schemas[topic.schema_id])
        shape = shape_of(options.topic, newest, options.columns, wanted)
    return Task(options, shape, schemas_by_crc(topic.schemas))
