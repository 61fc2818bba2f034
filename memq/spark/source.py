"""What Spark sees first: a format named `memq` with a schema, readers and writers.

Spark recreates it, in a Python process next to the driver, for each `load()` and `save()`.

A topic may be a table of Spark's session catalog: `CREATE TABLE clicks USING memq OPTIONS (…)`.
Spark 4.3 hands the OPTIONS of a table to a source in Python once, when the table is made without
columns and the source is asked for them. When the table is read the source is given the columns,
and only the options that stand in the query (`SELECT … FROM clicks WITH (…)`). So the options are
kept where Spark keeps the columns: in the metadata of the first one. They can be seen there, and
therefore are never secrets.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructField, StructType

from memq.errors import ConfigError
from memq.spark.columns import MESSAGE_COLUMNS, Shape, choose, shape_of
from memq.spark.options import SECRET_OPTIONS, TOPIC_NAMES, parse_read_options
from memq.spark.plan import TaskInput, find, inputs_of, resolve
from memq.spark.stream import MemqStreamReader
from memq.spark.topic import SparkTopics, agreed_schema, check_named
from memq.spark.worker import TaskReader, schemas_by_crc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, InputPartition

    from memq.core.wire.messages import TopicInfo
    from memq.spark.options import ReadOptions
    from memq.spark.plan import MessageRange


_PREFIX = "option."  # of each of the OPTIONS, among the properties of a table
_PROVIDER = "provider"  # a property that every table has, and no read by itself
_METADATA = "memq.options"


class MemqDataSource(DataSource):
    """The format `memq`. Its options stand in `memq.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """Return what `format(...)` takes."""
        return "memq"

    def schema(self) -> StructType:
        """Return the columns of the topic, or those that the options ask for.

        Raises:
            ConfigError: an option is wrong.
            UnknownTopicError: there is no such topic.
            MemqError: no broker answered in time.
        """
        of_table = _table_options(self.options)
        options = parse_read_options(self.options if of_table is None else of_table)
        schema = _task_reader(options, None)[0].shape.spark
        return schema if of_table is None else _remember(schema, of_table)

    def reader(self, schema: StructType) -> MemqReader:
        """Make the reader of a range."""
        options = parse_read_options(_recall(self.options, schema))
        task_reader, infos = _task_reader(options, schema)
        check_named(task_reader.options, infos)
        return MemqReader(task_reader, {name: each.topic_id for name, each in infos.items()})

    def streamReader(self, schema: StructType) -> MemqStreamReader:  # noqa: N802 - Spark's name
        """Make the reader that follows a topic."""
        options = parse_read_options(_recall(self.options, schema), stream=True)
        task_reader, infos = _task_reader(options, schema)
        name, info = next(iter(infos.items()))
        return MemqStreamReader(task_reader, (name, info.schemas[info.schema_id]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a DataFrame to a topic."""
        from memq.spark.writer import batch_writer  # noqa: PLC0415 - readers do not need it

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Make the writer of each micro-batch of a stream to a topic."""
        from memq.spark.writer import stream_writer  # noqa: PLC0415 - readers do not need it

        return stream_writer(self.options, schema, overwrite=overwrite)


class MemqReader(DataSourceReader):
    """`spark.read`: an exact range, planned once for each `load()`.

    There is no `pushFilters` on purpose. Spark 4.3 keeps the planned read with the DataFrame, and a
    pushed filter would stay for every later use of it: wrong rows, and no error. Ranges are
    options.

    Args:
        task_reader: what the workers do.
        topic_ids: of the topics that are read, by name.
    """

    def __init__(self, task_reader: TaskReader, topic_ids: Mapping[str, str]) -> None:
        self._options = task_reader.options
        self._task_reader = task_reader
        self._topic_ids = topic_ids

    def __repr__(self) -> str:
        return f"<MemqReader {self._options.subject}>"

    def partitions(self) -> Sequence[InputPartition]:
        """Return the inputs of the tasks that read what the options name, as of now.

        Raises:
            OffsetOutOfRangeError: some of it is not retained.
            MemqError: see `memq.spark.plan.find`.
        """
        parts: list[MessageRange] = []
        with closing(SparkTopics(self._options)) as topics:
            for name, topic_id in self._topic_ids.items():
                options = self._options.of_topic(name, topic_id)
                topic = topics.topic(options)
                parts += find(topic, options, resolve(topic, options))
        return inputs_of(self._options, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        assert isinstance(partition, TaskInput)  # noqa: S101 - ours, from `partitions`
        return self._task_reader.read(partition)


def _task_reader(
    options: ReadOptions, wanted: StructType | None
) -> tuple[TaskReader, dict[str, TopicInfo]]:
    """Return the workers' reader, and the topics: rows with the columns wanted, if any were chosen.

    From here on the options of a read of one topic name its topic id.
    """
    with closing(SparkTopics(options)) as topics:
        infos = topics.look_up()
    chosen = options.columns if wanted is None else wanted.names
    schema = agreed_schema(options, infos, chosen if options.view == "records" else ())
    if options.topic:
        options = options.of_topic(options.topic, infos[options.topic].topic_id)
    if options.view == "messages":
        columns = choose(MESSAGE_COLUMNS, options.columns, wanted)
        shape = Shape(columns, frozenset())
    else:
        shape = shape_of(next(iter(infos)), schema, options.columns, wanted, options.maps)
    schemas = {
        crc: data for each in infos.values() for crc, data in schemas_by_crc(each.schemas).items()
    }
    return TaskReader(options, shape, schemas), infos


# -- topics as tables -----------------------------------------------------------------------


def _table_options(given: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the OPTIONS of a table that is being made; None where it is a read by itself.

    Raises:
        ConfigError: a secret is among them.
    """
    if _PROVIDER not in given:
        return None
    own = {
        key.removeprefix(_PREFIX): text for key, text in given.items() if key.startswith(_PREFIX)
    }
    for name in SECRET_OPTIONS:
        if name.lower() in own:
            raise ConfigError(
                f"option '{name}' is a secret, and readers of a table can see its options: "
                "give it to the driver by its environment or profile, or in each query, by WITH"
            )
    return own


def _remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table, with its options."""
    first, *others = schema
    metadata = first.metadata | {_METADATA: json.dumps(dict(sorted(options.items())))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def _recall(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a read: those given, and those of the table if it is one that is read.

    Options that are given, as by WITH, win. Where they say what is read, it is no read of a table.
    """
    lower = {key.lower(): text for key, text in given.items()}
    if lower.keys() & TOPIC_NAMES:
        return given
    stored = (field.metadata.get(_METADATA) for field in schema)
    found: dict[str, str] = next((json.loads(text) for text in stored if text), {})
    return found | lower
