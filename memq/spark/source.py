"""What Spark sees first: a format named `memq` with a schema, readers and writers.

Spark makes it anew, in a Python process beside the driver, for each `load()` and `save()`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from memq.core.format.schema import deserialize_schema
from memq.spark.columns import MESSAGE_COLUMNS, MESSAGE_NEVER_NULL, Shape, choose, shape_of
from memq.spark.duplicates import NameHistory
from memq.spark.options import ReadOptions, parse_read_options
from memq.spark.plan import TaskInput, plan, resolve
from memq.spark.stream import MemqStreamReader
from memq.spark.topic import SparkTopic
from memq.spark.worker import TaskReader, schemas_by_crc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, InputPartition
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
        return _task_reader(parse_read_options(self.options), None).shape.spark

    def reader(self, schema: StructType) -> MemqReader:
        """What reads a range once."""
        return MemqReader(_task_reader(parse_read_options(self.options), schema))

    def streamReader(self, schema: StructType) -> MemqStreamReader:  # noqa: N802 - Spark's name
        """What follows a topic."""
        options = parse_read_options(self.options, stream=True)
        return MemqStreamReader(_task_reader(options, schema))

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


class MemqReader(DataSourceReader):
    """`spark.read`: an exact range, planned once for each `load()`.

    There is no `pushFilters` on purpose. Spark 4.3 keeps the planned read with the DataFrame, and a
    pushed filter would stay for every later use of it: wrong rows, and no error. Ranges are
    options.

    Args:
        task_reader: what the workers do.
    """

    def __init__(self, task_reader: TaskReader) -> None:
        self._options = task_reader.options
        self._task_reader = task_reader

    def __repr__(self) -> str:
        return f"<MemqReader {self._options.topic}>"

    def partitions(self) -> Sequence[InputPartition]:
        """The inputs of the tasks that read what the options name, as of now.

        Raises:
            OffsetOutOfRangeError: some of it is not retained.
            MemqError: see `memq.spark.plan.plan`.
        """
        with SparkTopic(self._options) as topic:
            return plan(topic, self._options, resolve(topic, self._options), NameHistory())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, TaskInput)  # noqa: S101 - ours, from `partitions`
        return self._task_reader.read(partition)


def _task_reader(options: ReadOptions, wanted: StructType | None) -> TaskReader:
    """What the workers are to do: rows with the columns that are wanted, if any were chosen.

    From here on the options name the incarnation of the topic.
    """
    with SparkTopic(options) as topic:
        info = topic.info()
    options = replace(options, incarnation=info.incarnation)
    if options.view == "messages":
        columns = choose(MESSAGE_COLUMNS, options.columns, wanted, MESSAGE_NEVER_NULL)
        shape = Shape(columns, frozenset())
    else:
        newest = deserialize_schema(info.schemas[info.schema_id])
        shape = shape_of(options.topic, newest, options.columns, wanted)
    return TaskReader(options, shape, schemas_by_crc(info.schemas))
