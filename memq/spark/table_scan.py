"""One DataFrame over a table and the topic that it is made from.

Where the table ends and Batches begin is fixed once, when it is made, as `memq.tables.scan` does
it. From then on it names files of one snapshot, which Spark reads itself, and exact offsets, which
the format `memq` reads. Both stay what they are: whatever is published, put in or compacted later,
each action on the DataFrame gives the same rows, or an error where they have been removed.

Files are planned by pyiceberg, on the driver, which alone needs it. Spark reads them by the names
of columns, so a table for which that is not exact is refused (`memq.tables.columns`).
"""

from __future__ import annotations

import json
import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from pyspark.sql.utils import to_str

from memq.core.named_values import NO_VALUES
from memq.core.units import counted
from memq.errors import ConfigError, LimitReachedError, SchemaMismatchError, StorageError
from memq.spark.columns import spark_type
from memq.spark.iceberg import for_spark
from memq.spark.options import parse_read_options
from memq.spark.outputs import allow_times, literal
from memq.spark.topic import SparkTopic
from memq.tables.fitting import NAMING_COLUMNS, with_pairs
from memq.tables.iceberg import open_table
from memq.tables.scan import settle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from memq.core.named_values import GivenValues
    from memq.core.ranges import Interval, OffsetRange
    from memq.tables.iceberg import IcebergTable
    from memq.tables.scan import Settled

MAX_READS = 32
"""Of Batches: a read takes one range of each read partition, and each is planned by itself."""

_NAMING = dict(
    zip(NAMING_COLUMNS, (StringType(), StringType(), IntegerType(), LongType()), strict=True)
)
_SMALLER = re.compile(r"\b(tinyint|smallint)\b")
"""Types of Spark for which Iceberg has `int`; the topic's values fit, as they come from there."""

_SETTLED = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "view",
)


def scan(
    spark: SparkSession,
    *,
    topic: str,
    table: str | IcebergTable,
    until: Mapping[int, int] | None = None,
    catalog_options: GivenValues = NO_VALUES,
    **options: str | bool | int | None,
) -> DataFrame:
    """Read all rows that a topic ever had: what the table has from it, the rest from Batches.

    What is read is fixed before this returns, with no gap and no overlap, up to what is published
    by then. The rows have the columns of `spark.read.format("memq")`; those that the table does not
    have are nulls.

    Args:
        spark: the session.
        topic: the topic.
        table: "[catalog:]namespace.table", that ranges of the topic are put into.
        until: one past the last offset to read, by read partition; what is published by now where
            it says nothing.
        catalog_options: of the table's catalog, besides those of this machine; as a table or as
            "NAME=VALUE,NAME=VALUE".
        **options: of `spark.read.format("memq")`, such as `bootstrap` and `columns`; there is no
            choice of offsets and times.

    Raises:
        ConfigError: there is no such table, its files cannot be read by the names of columns, or an
            option is wrong.
        DataLossError: offsets between those of the table, or after them, were removed by retention
            before they were put in.
        LimitReachedError: the table has too many gaps.
        SchemaMismatchError: a column has another type in the table.
        StorageError: catalog or storage failed, or Spark passes over some files.
        MemqError: the topic cannot be read.
    """
    texts = {name: to_str(value) for name, value in options.items()}
    given = {name: text for name, text in texts.items() if text is not None} | {"topic": topic}
    chosen = [name for name in _SETTLED if name.lower() in map(str.lower, given)]
    if chosen:
        raise ConfigError(
            f"option '{chosen[0]}': not with a table; filter the DataFrame, or give until"
        )
    opened = open_table(table, catalog_options) if isinstance(table, str) else table
    with SparkTopic(parse_read_options(given)) as asked:
        asked.info()  # from here on it is of one topic_id
        settled = settle(opened, asked, topic, until or {}, lambda rest: rest)
        given["topicId"] = asked.topic_id
    reads = _reads(settled, topic)
    schema = spark.read.format("memq").options(**given).load().schema
    naming = {"topic": topic, "memq_topic_id": given["topicId"]}
    found = _from_table(spark, settled, schema, naming)
    for each in reads:
        found = found.unionByName(_from_batches(spark, schema, given, each))
    return found


# -- the rest, from Batches -----------------------------------------------------------------


def _reads(settled: Settled[OffsetRange], topic: str) -> list[list[OffsetRange]]:
    """Return the ranges of the rest, one of each read partition at a time: a read takes no more."""
    reads: list[list[OffsetRange]] = []
    before = -1
    number = 0
    for each in settled.plans:  # by read partition
        number = number + 1 if each.partition == before else 0
        before = each.partition
        if number == len(reads):
            reads.append([])
        reads[number].append(each)
    if len(reads) > MAX_READS:
        raise LimitReachedError(
            f"table {settled.table.identifier} has {counted(len(reads) - 1, 'gap')} in a read "
            f"partition of topic {topic!r}, and Spark would read each by itself: at most "
            f"{MAX_READS} reads. Put in the ranges between them first, or use memq.scan"
        )
    return reads


def _from_batches(
    spark: SparkSession,
    schema: StructType,
    options: Mapping[str, str],
    ranges: Sequence[OffsetRange],
) -> DataFrame:
    bounds = {
        "startingOffsets": json.dumps({each.partition: each.start for each in ranges}),
        "endingOffsets": json.dumps({each.partition: each.end for each in ranges}),
    }
    return spark.read.format("memq").schema(schema).options(**options, **bounds).load()


# -- what the table has ---------------------------------------------------------------------


def _from_table(
    spark: SparkSession,
    settled: Settled[OffsetRange],
    schema: StructType,
    naming: Mapping[str, str],
) -> DataFrame:
    """Read the rows that come from the table, with the columns of `schema`."""
    table, base, seam, _ = settled
    wanted = {name: StructField(name, kind) for name, kind in _NAMING.items()}
    wanted |= {field.name: field for field in schema}
    files = table.plain_files(base, naming, wanted) if any(seam.stored.values()) else []
    if not files:
        return spark.createDataFrame([], schema)
    fields = _stored_fields(settled, wanted)
    reading = spark.read.schema(StructType(list(fields.values())))
    # Iceberg knows no other calendar; without a word in the file Spark may take it for an old one.
    reading = reading.option("datetimeRebaseMode", "CORRECTED")
    allow_times(spark)
    rows = reading.parquet(*(literal(for_spark(each)) for each in files))
    if len(set(rows.inputFiles())) != len(set(files)):
        raise StorageError(
            f"table {table.identifier} has {counted(len(set(files)), 'file')}, of which Spark sees "
            f"{len(set(rows.inputFiles()))}: it does not read names that begin with _ or ., nor "
            "what is gone where spark.sql.files.ignoreMissingFiles is set"
        )
    for name, value in naming.items():
        rows = rows.filter(F.col(name) == value)
    return rows.filter(_within(seam.stored)).select(
        [_column(field, fields.get(field.name)) for field in schema]
    )


def _stored_fields(
    settled: Settled[OffsetRange], wanted: Mapping[str, StructField]
) -> dict[str, StructField]:
    """Return the columns that the table has, with the types that it has for them."""
    fields = {}
    for column in settled.base.schema().as_arrow():
        if column.name not in wanted:
            continue
        found, kind = spark_type(column), wanted[column.name].dataType
        as_pairs = spark_type(column.with_type(with_pairs(column.type)))
        if _SMALLER.sub("int", kind.simpleString()) not in {
            found.simpleString(),
            as_pairs.simpleString(),
        }:
            raise SchemaMismatchError(
                f"column {column.name!r} is {found.simpleString()} in table "
                f"{settled.table.identifier}, and {kind.simpleString()} in the topic; name others "
                "in the option 'columns', or use memq.scan, which converts it"
            )
        fields[column.name] = StructField(column.name, found)
    return fields


def _within(stored: Mapping[int, Sequence[Interval]]) -> Column:
    """Rows of offsets that come from the table; those of others may be in it as well."""
    partition, offset = F.col("partition"), F.col("offset")
    return reduce(
        or_,
        (
            (partition == number) & (offset >= start) & (offset < end)
            for number, intervals in stored.items()
            for start, end in intervals
        ),
    )


def _column(field: StructField, stored: StructField | None) -> Column:
    quoted = field.name.replace("`", "``")
    column = F.lit(None) if stored is None else F.col(f"`{quoted}`")
    if stored and (stored.dataType.typeName(), field.dataType.typeName()) == ("map", "array"):
        column = F.map_entries(column)
    return column.cast(field.dataType).alias(field.name)
