"""What a range contains, and what of it a job will read: every LogMessage is accounted for.

Notifications say what a range contains. Where a Message may be skipped, all are looked at first
(`view=messages`), and those that are left out are named. What an index tells of them is taken from
there; where the index itself cannot be read, from the notification of the Batch. Both together must
come to what the notifications say, so a Message that one of them does not know of is found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from memq.core.audit.reports import CRC_MODULUS
from memq.core.manifest import MAX_LEFT_OUT, LeftOut, Totals
from memq.core.units import counted
from memq.errors import DataLossError, StorageError
from memq.spark.columns import DAMAGED, MISSING, OK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from memq.client.topic import SyncTopicClient
    from memq.core.notification import PublishedBatch
    from memq.core.ranges import OffsetRange

_NAME = ("offset", "write_partition", "producer_id", "epoch")


class MessageTotals(NamedTuple):
    """Some Messages: how many, their LogMessages, and the sum of their CRC32C."""

    messages: int = 0
    records: int = 0
    crc_sum: int = 0

    def plus(self, other: MessageTotals) -> MessageTotals:
        """Both together."""
        return MessageTotals(
            self.messages + other.messages,
            self.records + other.records,
            (self.crc_sum + other.crc_sum) % CRC_MODULUS,
        )


class RangeAccount(NamedTuple):
    """What a range contains, and what of it is read and is not.

    Attributes:
        published: all of it, as the notifications say.
        read: what can be read.
        skipped: what is damaged or gone.
        left_out: the skipped Messages, up to `MAX_LEFT_OUT` runs.
        unnamed_messages: those beyond.
    """

    published: Totals
    read: MessageTotals
    skipped: MessageTotals = MessageTotals()
    left_out: list[LeftOut] = []  # noqa: RUF012 - never changed
    unnamed_messages: int = 0


def examine(
    spark: SparkSession, topic: SyncTopicClient, wanted: OffsetRange, options: Mapping[str, str]
) -> RangeAccount:
    """Account for a range.

    Args:
        spark: the session.
        topic: the topic.
        wanted: the range.
        options: of a Spark read of it.

    Raises:
        DataLossError, CorruptDataError: something cannot be read, and must not be skipped; or
            Batches do not contain what their notifications say.
        StorageError: something could be read in part, and what became of it is not certain.
        MemqError: brokers or storage failed.
        PySparkException: Spark failed; errors of tasks come as such as well.
    """
    published = Totals()
    for batch in topic.batches([wanted]):
        published = published.plus(batch.notification)
    if options["mode"] != "permissive":
        return RangeAccount(published, _messages_of(published))
    view = spark.read.format("memq").options(**options, view="messages").load()
    return _account(topic, wanted, published, view.cache())


def _messages_of(totals: Totals) -> MessageTotals:
    return MessageTotals(totals.messages, totals.records, totals.crc_sum)


def _account(
    topic: SyncTopicClient, wanted: OffsetRange, published: Totals, view: DataFrame
) -> RangeAccount:
    """Account by a look at every Message; the view must be the same each time it is asked."""
    try:
        by_status = _by_status(view.filter("records IS NOT NULL"))
        unread = _unread(view)
        named = _runs(view.filter("records IS NOT NULL").filter(F.col("status") != OK))
    finally:
        view.unpersist()
    read = by_status.pop(OK, MessageTotals())
    skipped = by_status.pop(DAMAGED, MessageTotals())
    if unread:
        for run in _of_notifications(topic.batches([wanted]), unread):
            skipped = skipped.plus(MessageTotals(run.messages, run.records, run.crc_sum))
            if len(named) < MAX_LEFT_OUT:
                named.append(run)
    promised, found = _messages_of(published), read.plus(skipped)
    if found != promised:
        raise DataLossError(
            f"the notifications of {wanted} name {promised}, and its Batches have {found}: an "
            "index does not list what was published. Audit the topic with --deep"
        )
    named = sorted(named, key=lambda run: (run.offset, run.write_partition, run.first))
    unnamed = skipped.messages - sum(run.messages for run in named)
    return RangeAccount(published, read, skipped, named, unnamed)


def _by_status(view: DataFrame) -> dict[str, MessageTotals]:
    """Group the Messages of an index by status."""
    rows = view.groupBy("status").agg(
        F.count("*").alias("messages"),
        F.sum("records").alias("records"),
        F.sum("crc32c").alias("crc_sum"),
    )
    return {
        row["status"]: MessageTotals(row["messages"], row["records"], row["crc_sum"] % CRC_MODULUS)
        for row in rows.collect()
    }


def _unread(view: DataFrame) -> dict[int, tuple[str, int]]:
    """Status and number of the Messages whose index cannot be read, by offset of their Batch."""
    rows = (
        view.filter("records IS NULL")
        .groupBy("offset")
        .agg(F.min("status").alias("status"), F.count("*").alias("messages"))
    )
    return {row["offset"]: (row["status"], row["messages"]) for row in rows.collect()}


def _runs(left_out: DataFrame) -> list[LeftOut]:
    """Messages as runs of consecutive sequences; the first `MAX_LEFT_OUT` of them."""
    key: list[Column | str] = ["status", *_NAME]
    number = F.row_number().over(Window.partitionBy(*key).orderBy("sequence"))
    runs = (
        left_out.withColumn("_run", F.col("sequence") - number)
        .groupBy(*key, "_run")
        .agg(
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.sum("records").alias("records"),
            F.sum("crc32c").alias("crc_sum"),
        )
        .orderBy(*_NAME, "first")
        .limit(MAX_LEFT_OUT)
    )
    return [_left_out(row) for row in runs.collect()]


def _left_out(row: Row) -> LeftOut:
    return LeftOut(
        reason=row["status"],
        **{name: row[name] for name in (*_NAME, "first", "last", "records")},
        crc_sum=row["crc_sum"] % CRC_MODULUS,
    )


def _of_notifications(
    batches: Iterable[PublishedBatch], unread: Mapping[int, tuple[str, int]]
) -> Iterator[LeftOut]:
    """Yield the Messages of Batches with unreadable indexes, from their notifications."""
    for batch in batches:
        it = batch.notification
        status, messages = unread.get(batch.offset, (OK, 0))
        if not messages:
            continue
        if messages != it.messages:
            raise StorageError(
                f"{batch} could be read only in part: {messages} of "
                f"{counted(it.messages, 'Message')} {status}. Run the job again"
            )
        for run in it.producers:
            yield LeftOut(
                reason="missing" if status == MISSING else "damaged",
                offset=batch.offset,
                write_partition=it.write_partition,
                **msgspec.structs.asdict(run),
            )
