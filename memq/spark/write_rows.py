"""What a task of a write does: rows become Messages that are the same in every attempt.

All rows of the task are checked and cut before the first Message is sent: a row that cannot be
written fails the task while nothing of it can be read (`memq.spark.spool` holds them until then).

Each Arrow batch that Spark hands over is cut into Messages by itself, and never joined with the
next. When what makes the rows fails, Spark closes the stream, which looks just like its end; a
Message that was waiting for more rows would then be sent short, and the next attempt could not send
the whole one under the same name. Batches that come are always whole.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from memq.client.producer.producer import Producer
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.errors import SequenceConflictError, TopicRecreatedError
from memq.spark.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments
    from memq.spark.write_plan import WritePlan


class Identity(NamedTuple):
    """As whom a task writes, in every attempt: producer id and epoch."""

    producer_id: str
    epoch: int = 0


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote.

    Attributes:
        records: LogMessages.
        messages: Messages.
        repeated: of the Messages, those that an earlier attempt had published.
    """

    records: int = 0
    messages: int = 0
    repeated: int = 0


def write_rows(plan: WritePlan, identity: Identity, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write rows, and wait until all of them are stored.

    Raises, before anything is sent:
        SchemaMismatchError: a row does not fit the topic.
        MessageTooLargeError: a row fits no Message.
        StorageError: this machine has no room for the rows of the task.

    Raises:
        SequenceConflictError: an earlier attempt published other rows.
        TopicRecreatedError: the topic was deleted and made again since the write was planned.
        MemqError: a Message could not be delivered.
    """
    written = Written()
    options: ProducerArguments = {
        **plan.producer,
        "producer_id": identity.producer_id,
        "epoch": identity.epoch,
    }
    try:
        with Producer(plan.bootstrap, topic=plan.topic, **options) as producer, Spool() as spool:
            _check_topic(plan, producer)
            for batch in batches:
                spool.add(producer.conformed(timed(batch, plan)))
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
            f"{identity.producer_id!r}; nothing was doubled. Rows must come alike in each attempt: "
            "sort them within their partitions (df.sortWithinPartitions) and take nothing from "
            f"chance or the clock; {exc}"
        ) from exc
    return written


def timed(batch: pa.RecordBatch, plan: WritePlan) -> pa.Table:
    """The rows with the time of the write, where they have none."""
    table = pa.Table.from_batches([batch])
    if plan.timestamp_us is None:
        return table
    field = plan.schema.field(TIMESTAMP_COLUMN)
    moment = pa.scalar(plan.timestamp_us, pa.timestamp("us", "UTC")).cast(field.type, safe=False)
    return table.append_column(field, pa.repeat(moment, table.num_rows))


def _check_topic(plan: WritePlan, producer: Producer) -> None:
    if producer.incarnation != plan.incarnation:
        raise TopicRecreatedError(
            f"topic {plan.topic!r} was deleted and made again since this write was planned: "
            f"{plan.incarnation} is over, this is {producer.incarnation}. This task has written "
            "nothing to it; write the DataFrame, or start the query, again"
        )


def _settle(delivery: Delivery, written: Written) -> None:
    stored = delivery.result()
    written.messages += 1
    written.repeated += stored.duplicate
