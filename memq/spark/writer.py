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
Rule 4. A task sends nothing before all of its rows are checked and cut (`memq.spark.spool` keeps
    them until then). So a row that cannot be written fails the task while nothing of it can be
    read.
Rule 5. A Message is readable as soon as it is acked. A commit has nothing left to do, and an abort
    cannot take back: what was acked before it stays. To write a whole DataFrame exactly once, name
    the write: run again with the same `jobId`, rows and partitions, it adds what is missing.

This holds for as long as the topic remembers a producer: its `dedup_window`, 1 hour by default,
counted from what the producer last wrote.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from memq.client.producer.producer import Producer
from memq.core.units import counted
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    SequenceConflictError,
    TopicRecreatedError,
)
from memq.spark.options import parse_write_options
from memq.spark.spool import Spool
from memq.spark.write_plan import plan_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments
    from memq.spark.write_plan import WritePlan

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
        """All tasks are done; what they wrote is readable already."""
        _log.info("wrote to topic %r: %s", self._plan.topic, _sum(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed for good; what was acked stays."""
        _warn_aborted(self._plan.topic, f"write {self._job_id!r}", messages)


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

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """All tasks are done; what they wrote is readable already."""
        _log.info(
            "wrote to topic %r, micro-batch %d: %s", self._plan.topic, batchId, _sum(messages)
        )

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Some task failed for good; what was acked stays."""
        _warn_aborted(self._plan.topic, f"micro-batch {batchId}", messages)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> MemqWriter:
    """The writer of one `save()`, made on the driver.

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
    """The writer of one query, made on the driver.

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
        with Producer(plan.bootstrap, topic=plan.topic, **options) as producer, Spool() as spool:
            _check_topic(plan, producer)
            checked = 0
            for batch in batches:
                spool.add(producer.conformed(batch, first_row=checked, now_us=plan.timestamp_us))
                checked += batch.num_rows
            deliveries: deque[Delivery] = deque()
            for batch in spool.batches():
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


def _check_topic(plan: WritePlan, producer: Producer) -> None:
    if producer.incarnation != plan.incarnation:
        raise TopicRecreatedError(
            f"topic {plan.topic!r} was deleted and recreated since this write was planned: "
            f"{plan.incarnation} is over, this is {producer.incarnation}. This task has written "
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
    records = sum(each.records for each in done)
    sent = sum(each.messages for each in done)
    duplicates = sum(each.duplicates for each in done)
    again = counted(duplicates, "Message was", "Messages were")
    return (
        f"{counted(records, 'LogMessage')} in {counted(sent, 'Message')} by "
        f"{counted(len(done), 'task')}, of which {again} there from an earlier attempt"
    )


def _warn_aborted(topic: str, name: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    _log.warning(
        "%s to topic %r failed. What its tasks have stored stays readable, at least %s. "
        "Run again under the same name, it adds only what is missing",
        name,
        topic,
        _sum(messages),
    )
