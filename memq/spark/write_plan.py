"""Planning a write, on the driver: options and schema are checked before any task starts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from memq.client.cluster import Cluster
from memq.client.producer.keyed import check_key_column
from memq.client.producer.tables import conform, lacks_timestamp
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.core.format.schema import DEFAULT_SCHEMA, deserialize_schema
from memq.errors import ConfigError, InvalidRequestError, SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from memq.client.producer.options import ProducerArguments
    from memq.core.wire.messages import TopicInfo
    from memq.spark.options import WriteOptions


@dataclass(frozen=True)
class WritePlan:
    """What all tasks of a write have in common; made on the driver, sent to the workers.

    Attributes:
        bootstrap: some brokers.
        topic: the topic.
        incarnation: of the topic; another one under its name is not written to.
        schema: of the topic; rows are brought to it.
        timestamp_us: of rows that have none, microseconds since 1970 UTC; None where each has its
            own, or needs none.
        producer: options of the producers.
    """

    bootstrap: str
    topic: str
    incarnation: str
    schema: pa.Schema
    timestamp_us: int | None
    producer: ProducerArguments


def plan_write(
    options: WriteOptions, schema: StructType, *, overwrite: bool, now_us: int | None
) -> WritePlan:
    """The plan of a write.

    Args:
        options: of the write.
        schema: of the rows.
        overwrite: whether this was asked for.
        now_us: time of rows that have none, microseconds since 1970 UTC; None where a row without
            one would not be the same when the write is run again.

    Raises:
        InvalidRequestError: a topic cannot be overwritten.
        ConfigError: rows need a timestamp of their own, or have no key to be placed by.
        SchemaMismatchError: the rows do not fit the topic.
        UnknownTopicError: there is no such topic.
        MemqError: no broker answered in time.
    """
    if overwrite:
        raise InvalidRequestError(
            'a topic cannot be overwritten: what is published never changes. Use mode("append")'
        )
    topic = options.topic
    info = asyncio.run(_find(options.bootstrap, topic, options.token))
    topic_schema = deserialize_schema(info.schemas[info.schema_id])
    check_rows(to_arrow_schema(schema, timezone="UTC"), topic_schema, topic)
    _check_key(options.partition_by, schema.names, topic_schema, topic)
    needs_time = lacks_timestamp(schema.names, topic_schema)
    if needs_time and now_us is None:
        raise ConfigError(
            f"rows need a column {TIMESTAMP_COLUMN!r} of their own where they may be written again "
            "(with jobId, and in streams): the time of writing would not be the same. For a stream "
            'add withColumn("timestamp", current_timestamp()), which Spark keeps for each '
            "micro-batch"
        )
    return WritePlan(
        bootstrap=options.bootstrap,
        topic=topic,
        schema=topic_schema,
        incarnation=info.incarnation,
        timestamp_us=now_us if needs_time else None,
        producer=options.producer,
    )


def check_rows(rows: pa.Schema, topic_schema: pa.Schema, topic: str) -> None:
    """Refuse columns that the topic cannot take.

    A `timestamp_ntz` does not become an instant here: the time zone would be that of the session,
    which no task of a write can know. A cast in the query is Spark's own.

    Raises:
        SchemaMismatchError: naming the column, what the topic expects and what was given.
    """
    if topic_schema.equals(DEFAULT_SCHEMA) and "value" not in rows.names:
        raise SchemaMismatchError(
            f"topic {topic!r} takes a column 'value' (string or binary), and may have 'key', "
            f"'headers' and 'timestamp'; the rows have {', '.join(rows.names) or 'no columns'}"
        )
    conform(rows.empty_table(), topic_schema, topic, now_us=0)


def _check_key(column: str, names: list[str], topic_schema: pa.Schema, topic: str) -> None:
    """Refuse to place rows by what is no key, or is not in them.

    Raises:
        ConfigError: naming what could be the key.
    """
    if column == "none":
        return
    check_key_column(column, topic_schema, topic)
    if column not in names:
        raise ConfigError(
            f"option 'partitionBy' = {column!r}, but the rows have no such column; they have "
            f"{', '.join(names)}"
        )


async def _find(bootstrap: str, topic: str, token: str) -> TopicInfo:
    cluster = Cluster(bootstrap, client="spark", token=token)
    try:
        return await cluster.topic(topic, create=True)
    finally:
        await cluster.close()
