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
    of `spark.sql.execution.arrow.maxRecordsPerBatch`, and each is cut by itself. The same rows in
    the same order are the same bytes under the same sequences; what the broker has, it acks and
    does not publish again. Rows without a timestamp get that of the write, taken once on the
    driver.
Rule 3. An attempt with other rows, or with the same in another order, has other bytes under a
    published name. The broker refuses them: `SequenceConflictError`, the task fails, nothing is
    doubled. Rows that come from a shuffle come in any order unless they are sorted within their
    partition. Not noticed is an attempt that has fewer rows, alike as far as they go: what the
    earlier one wrote beyond them stays.
Rule 4. A task sends nothing before all of its rows are checked and cut. So a row that cannot be
    written costs no reader a part of its partition.
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
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from memq.errors import ConfigError, InvalidRequestError
from memq.spark.options import parse_write_options
from memq.spark.write_plan import plan_write
from memq.spark.write_rows import Identity, Written, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from memq.spark.write_plan import WritePlan

_log = logging.getLogger(__name__)

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties by which Spark tells a task which micro-batch of which query it works on."""


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; they are stored when this returns."""
        identity = Identity(f"spark-{self._job_id}-{_task().partitionId()}")
        return write_rows(self._plan, identity, iterator)

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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; they are stored when this returns.

        Raises:
            InvalidRequestError: Spark did not say which micro-batch this is.
        """
        task = _task()
        query, number = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query or not number:
            raise InvalidRequestError(
                "Spark does not tell this task which micro-batch it works on, so that its rows "
                "would double when it is run again"
            )
        identity = Identity(f"spark-{query}-{task.partitionId()}", epoch=int(number))
        return write_rows(self._plan, identity, iterator)

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


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidRequestError("a writer of memq writes from within a Spark task")
    return task


def _sum(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = [each for each in messages if isinstance(each, Written)]
    records = sum(each.records for each in done)
    sent, repeated = sum(each.messages for each in done), sum(each.repeated for each in done)
    return (
        f"{records} LogMessages in {sent} Messages by {len(done)} tasks; {repeated} Messages were "
        "there from an earlier attempt"
    )


def _warn_aborted(topic: str, name: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    _log.warning(
        "%s to topic %r failed. What its tasks have stored stays readable, at least %s. "
        "Run again under the same name, it adds only what is missing",
        name,
        topic,
        _sum(messages),
    )
