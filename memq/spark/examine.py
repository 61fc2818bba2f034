"""What a range holds, and what of it a job will read: every LogMessage is accounted for.

Notifications say what a range holds. Where a Message could be a repeat, or may be skipped, all
Messages are looked at first (`view=messages`), and those that are left out are named. What an
index tells of them is taken from there; where the index itself cannot be read, from the
notification of the Batch. Both together must come to what the notifications say, so a Message that
one of them does not know of is found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from memq.core.audit.reports import CRC_MODULUS
from memq.core.manifest import MAX_LEFT_OUT, LeftOut, Totals
from memq.errors import DataLossError, StorageError
from memq.spark.batch import FOR_EVER_MS
from memq.spark.driver import Driver
from memq.spark.messages import OK, REPEAT
from memq.spark.options import parse_read_options
from memq.spark.ranges import resolve
from memq.spark.seen import History, Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry
    from memq.spark.options import ReadOptions

_NAME = ("offset", "write_partition", "producer_id", "epoch")


class Amount(NamedTuple):
    """Some Messages: how many, their LogMessages, and the sum of their CRC32C."""

    messages: int = 0
    records: int = 0
    crc_sum: int = 0

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(
            self.messages + other.messages,
            self.records + other.records,
            (self.crc_sum + other.crc_sum) % CRC_MODULUS,
        )


class Account(NamedTuple):
    """What a range holds, and what of it is read and is not.

    Attributes:
        held: all of it, as the notifications say.
        read: what can be read.
        repeated: what the range holds twice.
        skipped: what is damaged or gone.
        left_out: the Messages repeated and skipped, up to `MAX_LEFT_OUT` runs.
        unnamed_messages: those beyond.
    """

    held: Totals
    read: Amount
    repeated: Amount = Amount()
    skipped: Amount = Amount()
    left_out: list[LeftOut] = []  # noqa: RUF012 - never changed
    unnamed_messages: int = 0


def examine(spark: SparkSession, read_options: Mapping[str, str]) -> Account:
    """The account of a range of one read partition.

    Raises:
        DataLossError, CorruptDataError: something cannot be read, and must not be skipped; or
            Batches do not hold what their notifications say.
        StorageError: something could be read in part, and what became of it is not certain.
        MemqError: brokers or storage failed.
        PySparkException: Spark failed; errors of tasks come as such as well.
    """
    options = parse_read_options(read_options)
    seen, history = Names(), History(FOR_EVER_MS)
    held = Totals()
    for entry, notification in _notifications(options):
        history.add(notification, entry.timestamp_ms, seen)
        held = Totals(
            held.batches + 1,
            held.messages + notification.messages,
            held.records + notification.records,
            held.bytes + notification.size_bytes,
            (held.crc_sum + sum(run.crc_sum for run in notification.producers)) % CRC_MODULUS,
        )
    if not seen and not options.permissive:
        return Account(held, Amount(held.messages, held.records, held.crc_sum))
    view = spark.read.format("memq").options(**read_options, view="messages").load()
    return _account(options, held, view.cache())


def _account(options: ReadOptions, held: Totals, view: DataFrame) -> Account:
    """The account by a look at every Message; the view must be the same each time it is asked."""
    try:
        amounts = _amounts(view.filter("records IS NOT NULL"))
        unread = _unread(view)
        named = _runs(view.filter("records IS NOT NULL").filter(F.col("status") != OK))
    finally:
        view.unpersist()
    repeated = amounts.pop(REPEAT, Amount())
    read = amounts.pop(OK, Amount())
    skipped = sum_of(amounts.values())
    if unread:
        for run in _of_notifications(options, unread):
            skipped = skipped.plus(Amount(run.messages, run.records, run.crc_sum))
            if len(named) < MAX_LEFT_OUT:
                named.append(run)
    _check(options, held, sum_of([read, repeated, skipped]))
    named = sorted(named, key=lambda run: (run.offset, run.write_partition, run.first))
    left = repeated.messages + skipped.messages
    unnamed = left - sum(run.messages for run in named)
    return Account(held, read, repeated, skipped, named, unnamed)


def _check(options: ReadOptions, held: Totals, found: Amount) -> None:
    promised = Amount(held.messages, held.records, held.crc_sum)
    if found != promised:
        raise DataLossError(
            f"the notifications of a range of {options.topic!r} name {promised}, and its Batches "
            f"hold {found}: an index does not have what was published. Audit the topic with --deep"
        )


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """All of some amounts together."""
    total = Amount()
    for amount in amounts:
        total = total.plus(amount)
    return total


def _amounts(view: DataFrame) -> dict[str, Amount]:
    """What an index tells of, by status."""
    rows = view.groupBy("status").agg(
        F.count("*").alias("messages"),
        F.sum("records").alias("records"),
        F.sum("crc32c").alias("crc_sum"),
    )
    return {
        row["status"]: Amount(row["messages"], row["records"], row["crc_sum"] % CRC_MODULUS)
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
    options: ReadOptions, unread: Mapping[int, tuple[str, int]]
) -> Iterator[LeftOut]:
    """The Messages of the Batches whose index cannot be read, as their notifications have them."""
    for entry, notification in _notifications(options):
        status, messages = unread.get(entry.offset, (OK, 0))
        if not messages:
            continue
        if messages != notification.messages:
            raise StorageError(
                f"Batch {notification.batch_id} at {options.topic}/{entry.partition} offset "
                f"{entry.offset} could be read in part, and then not: of {notification.messages} "
                f"Messages {messages} are {status}. Run the job again"
            )
        for run in notification.producers:
            yield LeftOut(
                reason="missing" if status == "missing" else "damaged",
                offset=entry.offset,
                write_partition=notification.write_partition,
                producer_id=run.producer_id,
                epoch=run.epoch,
                first=run.first,
                last=run.last,
                records=run.records,
                crc_sum=run.crc_sum,
            )


def _notifications(options: ReadOptions) -> Iterator[tuple[NotificationEntry, Notification]]:
    with Driver(options) as driver:
        for stretch in resolve(driver, options):
            yield from driver.notifications(*stretch[:3])
