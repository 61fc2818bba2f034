"""Writing rows to a topic from Spark tasks, which may fail and run again.

Theory of operation
-------------------
Spark runs a failed task again, may run a slow one twice at a time, and knows nothing of what an
attempt has sent. So all attempts of a task must look the same to the broker:

Rule 1. A task writes as producer `spark-<write>-<partition>`, whichever attempt it is. The name of
    the write is made once, on the driver, and travels with the plan; or it is the option `jobId`.
    In a stream it is the id of the query, which the checkpoint keeps, and the number of the
    micro-batch is the producer's epoch: what is left of an earlier micro-batch is fenced.
Rule 2. Rows are cut into Messages by count and size alone: Spark hands them over in Arrow batches
    of `spark.sql.execution.arrow.maxRecordsPerBatch`, and each is cut by itself, never joined with
    the next: when what makes the rows fails, Spark closes the stream, which looks just like its
    end. A Message that was waiting for more rows would then be sent short, and the next attempt
    could not send the whole one under the same name. Batches that come are always whole. The same
    rows in the same order are the same bytes under the same sequences; what the broker has, it acks
    and does not publish again. Rows without a timestamp get that of the write, taken once on the
    driver.
Rule 3. An attempt with other rows, or with the same in another order, has other bytes under a
    published name. The broker refuses them: `SequenceConflictError`, the task fails, nothing is
    duplicated. Rows that come from a shuffle come in any order unless they are sorted within their
    partition. An attempt with fewer rows, the same as far as they go, is not noticed: what the
    earlier one wrote beyond them stays.
Rule 4. A task sends nothing before all of its rows are checked and cut (they wait on its
    machine's disk). So a row that cannot be written fails the task while nothing of it can be
    read.
Rule 5. A Message is readable as soon as it is acked. A commit has nothing left to do, and an abort
    cannot take back: what was acked before it stays. To write a whole DataFrame exactly once, name
    the write: run again with the same `jobId`, rows and partitions, it adds what is missing.

This holds for as long as the topic remembers a producer: its `dedup_window`, 1 hour by default,
counted from what the producer last wrote.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from memq.client.cluster import Cluster
from memq.client.producer.keyed import check_key_column
from memq.client.producer.producer import Producer
from memq.client.producer.tables import conform, lacks_timestamp
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.core.format.schema import DEFAULT_SCHEMA, deserialize_schema
from memq.core.units import counted
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    SchemaMismatchError,
    SequenceConflictError,
    StorageError,
    TopicRecreatedError,
)
from memq.spark.options import parse_write_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments
    from memq.core.wire.messages import TopicInfo
    from memq.spark.options import WriteOptions

_log = logging.getLogger(__name__)

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties by which Spark tells a task which micro-batch of which query it works on."""


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task wrote.

    Attributes:
        records: LogMessages.
        messages: Messages.
        duplicates: of the Messages, those that an earlier attempt had published.
    """

    records: int = 0
    messages: int = 0
    duplicates: int = 0


class MemqWriter(DataSourceArrowWriter):
    """What `df.write.format("memq").save()` does.

    Args:
        plan: of the write.
        job_id: name of the write.
    """

    def __init__(self, plan: WritePlan, job_id: str) -> None:
        self._plan = plan
        self._job_id = job_id

    def __repr__(self) -> str:
        return f"<MemqWriter {self._job_id} to {self._plan.topic}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task; they are stored when this returns."""
        producer_id = f"spark-{self._job_id}-{_task().partitionId()}"
        return write_rows(self._plan, iterator, producer_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was written; it is readable already. (An abort could take nothing back.)"""
        _log.info("wrote to topic %r: %s", self._plan.topic, _sum(messages))


class MemqStreamWriter(DataSourceStreamArrowWriter):
    """What `df.writeStream.format("memq").start()` does with each micro-batch.

    Args:
        plan: of every micro-batch.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        return f"<MemqStreamWriter to {self._plan.topic}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task; they are stored when this returns.

        Raises:
            InvalidRequestError: Spark did not say which micro-batch this is.
        """
        task = _task()
        query, number = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query or not number:
            raise InvalidRequestError(
                "Spark does not tell this task which micro-batch it works on, so its rows would "
                "be written twice when it is run again"
            )
        producer_id = f"spark-{query}-{task.partitionId()}"
        return write_rows(self._plan, iterator, producer_id, epoch=int(number))


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> MemqWriter:
    """Make the writer of one `save()` on the driver.

    Raises:
        MemqError: as `plan_write`.
    """
    parsed = parse_write_options(options)
    now_us = time.time_ns() // 1_000 if parsed.job_id is None else None
    plan = plan_write(parsed, schema, overwrite=overwrite, now_us=now_us)
    return MemqWriter(plan, parsed.job_id or secrets.token_hex(8))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> MemqStreamWriter:
    """Make the writer of one query on the driver.

    Raises:
        ConfigError: `jobId` is given.
        MemqError: as `plan_write`.
    """
    parsed = parse_write_options(options)
    if parsed.job_id is not None:
        raise ConfigError("option 'jobId' is for batch writes; a stream is named by its query")
    return MemqStreamWriter(plan_write(parsed, schema, overwrite=overwrite, now_us=None))


def write_rows(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], producer_id: str, epoch: int = 0
) -> TaskCommit:
    """Write the rows of a task as one producer, and wait until all of them are stored.

    Raises, before anything is sent:
        SchemaMismatchError: a row does not fit the topic.
        MessageTooLargeError: a row fits no Message.
        StorageError: this machine has no room for the rows of the task.

    Raises:
        SequenceConflictError: an earlier attempt published other rows.
        TopicRecreatedError: the topic was deleted and recreated since the write was planned.
        MemqError: a Message could not be delivered.
    """
    written = TaskCommit()
    options: ProducerArguments = {**plan.producer, "producer_id": producer_id, "epoch": epoch}
    try:
        with Producer(plan.bootstrap, topic=plan.topic, **options) as producer:
            _check_topic(plan, producer)
            deliveries: deque[Delivery] = deque()
            for batch in spooled(_checked(plan, producer, batches)):
                deliveries.extend(producer.write_table(batch))
                written.records += batch.num_rows
                while deliveries and deliveries[0].done():
                    _settle(deliveries.popleft(), written)
            while deliveries:
                _settle(deliveries.popleft(), written)
    except SequenceConflictError as exc:
        raise SequenceConflictError(
            f"an earlier attempt wrote other rows, or the same in another order, as producer "
            f"{producer_id!r}; nothing was duplicated. Each attempt must have the same rows in "
            "the same order: sort them within their partitions (df.sortWithinPartitions), and let "
            f"nothing in them depend on chance or the clock; {exc}"
        ) from exc
    return written


def spooled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give batches of one schema as they are, none before all of them are there.

    They wait in a file in Spark's local folder, which has no name from the start: whatever becomes
    of the process, nothing is left behind.

    Raises:
        StorageError: the disk is full, or fails.
    """
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    folder = given if os.path.isdir(given) else tempfile.gettempdir()  # noqa: PTH112 - a str
    with _on_disk(folder):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed below
    try:
        writer = None
        for batch in batches:
            with _on_disk(folder):
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
        if writer is None:
            return
        with _on_disk(folder):
            writer.close()
            file.seek(0)
        yield from pa.ipc.open_stream(file)
    finally:
        with suppress(OSError):  # of what nobody reads any more
            file.close()


@contextmanager
def _on_disk(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageError(
            f"the rows of this task cannot be written to disk, in {folder}: {exc}. They are kept "
            "there until all are checked; make room, or set spark.local.dir to a folder that has "
            "it, or give the DataFrame more partitions"
        ) from exc


def _checked(
    plan: WritePlan, producer: Producer, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Bring rows to the schema of the topic.

    Raises:
        MemqError: as `write_rows`, before anything is sent.
    """
    checked = 0
    for batch in batches:
        yield from producer.conformed(batch, first_row=checked, now_us=plan.timestamp_us)
        checked += batch.num_rows


def _check_topic(plan: WritePlan, producer: Producer) -> None:
    if producer.topic_id != plan.topic_id:
        raise TopicRecreatedError(
            f"topic {plan.topic!r} was deleted and recreated since this write was planned: "
            f"{plan.topic_id} is over, this is {producer.topic_id}. This task has written "
            "nothing to it; write the DataFrame, or start the query, again"
        )


def _settle(delivery: Delivery, written: TaskCommit) -> None:
    stored = delivery.result()
    written.messages += 1
    written.duplicates += stored.duplicate


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidRequestError("a writer of memq writes from within a Spark task")
    return task


def _sum(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = [each for each in messages if isinstance(each, TaskCommit)]
    records, sent = sum(each.records for each in done), sum(each.messages for each in done)
    duplicates = sum(each.duplicates for each in done)
    return (
        f"{counted(records, 'LogMessage')} in {counted(sent, 'Message')}, of which {duplicates} "
        "were there from an earlier attempt"
    )


# -- planning, on the driver: options and schema are checked before any task starts ---------


@dataclass(frozen=True)
class WritePlan:
    """What all tasks of a write have in common; made on the driver, sent to the workers.

    Attributes:
        bootstrap: some brokers.
        topic: the topic.
        topic_id: of the topic; another one under its name is not written to.
        schema: of the topic; rows are brought to it.
        timestamp_us: of rows that have none, microseconds since 1970 UTC; None where each has its
            own, or needs none.
        producer: options of the producers.
    """

    bootstrap: str
    topic: str
    topic_id: str
    schema: pa.Schema
    timestamp_us: int | None
    producer: ProducerArguments


def plan_write(
    options: WriteOptions, schema: StructType, *, overwrite: bool, now_us: int | None
) -> WritePlan:
    """Plan a write.

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
    info = asyncio.run(_find(options))
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
        topic_id=info.topic_id,
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


async def _find(options: WriteOptions) -> TopicInfo:
    cluster = Cluster(
        options.bootstrap, client="spark", token=options.token, security=options.security
    )
    try:
        return await cluster.topic(options.topic, create=True)
    finally:
        await cluster.close()
