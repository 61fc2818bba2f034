"""The columns of a read: from the Arrow schema of a topic to the rows that Spark takes.

A row has the topic's own columns, and columns that say where it comes from. Spark takes an
Arrow batch as it is when its schema is exactly the one that Spark derives from its own types, so
each topic type is mapped to the Spark type that holds all of its values, and each column is cast
once where the Arrow types differ. For the default schema they do not, and nothing is copied.

With `view=messages` there is one row for each Message in place of its records. It answers what a
range contains and in which state: counts, sizes, checksums, duplicates, damage. These rows come
from the indexes of the Batches alone when neither `status` nor `error` is among the columns;
otherwise every Message is read and checked as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pat
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import UNKNOWN_RANGE
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.units import counted
from memq.errors import ConfigError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memq.core.format.index import IndexEntry
    from memq.core.notification.notification import PublishedBatch
    from memq.spark.plan import MessageRange

ORIGINS: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "batch": StringType(),
    "write_partition": IntegerType(),
    "producer_id": StringType(),
    "epoch": LongType(),
    "sequence": LongType(),
    "position": LongType(),
}
"""Where a row comes from: topic, read partition, offset and id of its Batch; write partition,
sender, epoch and sequence of its Message; its position in the Message. The last five name it."""

MESSAGE_COLUMNS: dict[str, DataType] = {
    **{name: kind for name, kind in ORIGINS.items() if name != "position"},
    "records": LongType(),
    "bytes": LongType(),
    "crc32c": LongType(),
    "min_timestamp": TimestampType(),
    "max_timestamp": TimestampType(),
    "status": StringType(),
    "error": StringType(),
}
"""Columns of `view=messages`. What only an index can tell is null where it cannot be read."""

MESSAGE_NEVER_NULL = frozenset(
    {"topic", "partition", "offset", "batch", "write_partition", "status"}
)
"""Those of them that every row has."""

MESSAGE_CHECKED = frozenset({"status", "error"})
"""Those of them that cannot be told without reading the Messages."""

OK, DUPLICATE, DAMAGED, MISSING = "ok", "repeat", "damaged", "missing"
"""Values of `status`: read and sound; one that came before, and is not read; damaged; its object
is gone."""

_DEFAULT_ORDER = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")

_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
}
"""Types that Spark does not have, and the smallest ones with room for their values."""

_MAX_POSITIONS = 1 << 16
_POSITIONS = pa.array(range(_MAX_POSITIONS), pa.int64())


class Shape(NamedTuple):
    """The columns of a read.

    Attributes:
        spark: what Spark was told.
        own: those of them that are the topic's, not the rows' origins.
    """

    spark: StructType
    own: frozenset[str]

    def arrow(self) -> pa.Schema:
        """What each Arrow batch must have, exactly."""
        return to_arrow_schema(self.spark, timezone="UTC")


def shape_of(
    topic: str, schema: pa.Schema, chosen: Sequence[str] | None, wanted: StructType | None
) -> Shape:
    """The columns of a read.

    Args:
        topic: the topic.
        schema: its newest.
        chosen: names of the columns, when there is a choice.
        wanted: the schema that the user gave to Spark, if any; a choice as well.

    Raises:
        ConfigError: there is no such column, it has another type, or a column of the topic has the
            name of an origin.
        SchemaMismatchError: Spark has no type for a column.
    """
    own = {field.name: spark_type(field) for field in schema}
    taken = sorted(set(own) & set(ORIGINS))
    if taken and chosen is None and wanted is None:
        raise ConfigError(
            f"topic {topic!r} has a column {taken[0]!r} of its own, which is also the name of an "
            "origin column: choose columns by the option 'columns' or by .schema(); that name is "
            "then the topic's column"
        )
    offered = {name: (ORIGINS | own)[name] for name in _all_names(schema)}
    never_null = {name for name in offered if name not in own or not schema.field(name).nullable}
    return Shape(choose(offered, chosen, wanted, never_null), frozenset(own))


def choose(
    offered: Mapping[str, DataType],
    chosen: Sequence[str] | None,
    wanted: StructType | None,
    never_null: Collection[str],
) -> StructType:
    """The columns that are wanted of those on offer.

    Args:
        offered: the columns in their order.
        chosen: the option `columns`.
        wanted: the schema that the user gave to Spark, or that Spark was given before.
        never_null: columns that cannot be null. For any other column a schema must not say so:
            Spark believes it, and turns nulls into wrong values.

    Raises:
        ConfigError: there is no such column, it has another type, or it may be null.
    """
    names = wanted.names if wanted is not None else chosen or list(offered)
    unknown = [name for name in names if name not in offered]
    if unknown:
        raise ConfigError(f"no column {unknown[0]!r}; there are {', '.join(offered)}")
    if wanted is None:
        return StructType([StructField(name, offered[name]) for name in names])
    for field in wanted:
        if field.dataType.simpleString() != offered[field.name].simpleString():
            raise ConfigError(
                f"column {field.name!r} is {offered[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}; read it as it is and cast it in the query"
            )
        if field.dataType != _allows_nulls(field.dataType) or not (
            field.nullable or field.name in never_null
        ):
            raise ConfigError(
                f"column {field.name!r} may be null, or hold nulls, and the schema given to "
                f".schema() says that it does not: {field.jsonValue()}. Spark would give wrong "
                "rows; leave out NOT NULL (nullable=False, containsNull=False, "
                "valueContainsNull=False), and filter in the query"
            )
    return wanted


def project(
    target: pa.Schema,
    own: frozenset[str],
    rows: pa.RecordBatch,
    origin: Mapping[str, object],
) -> pa.RecordBatch:
    """The rows of a Message with the columns of a read.

    Args:
        target: the columns, as `Shape.arrow` has them.
        own: those of them that are the topic's.
        rows: of the Message, with the schema of its Batch.
        origin: what is the same for all rows of the Message, by origin column.

    Raises:
        SchemaMismatchError: a column has another type than the topic's newest schema says, or is
            null where that says that it is not.
    """
    count = rows.num_rows
    columns = []
    for field in target:
        if field.name not in own:
            columns.append(_origin(field, origin, count))
        elif (at := rows.schema.get_field_index(field.name)) >= 0:
            columns.append(_cast(rows.column(at), field))
        else:  # the column was added later
            columns.append(pa.nulls(count, field.type))
    return exactly(columns, target)


def exactly(columns: Sequence[pa.Array], target: pa.Schema) -> pa.RecordBatch:
    """Columns as Spark expects them; it believes what its schema says about nulls.

    Raises:
        SchemaMismatchError: there is a null in a column that the topic says has none.
    """
    for column, field in zip(columns, target, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatchError(
                f"column {field.name!r} is null in {column.null_count} of "
                f"{counted(len(column), 'row')}, but the schemas of the topic and of .schema() say "
                "that it never is; leave out NOT NULL (nullable=False) to read it"
            )
    return pa.record_batch(columns, schema=target)


def _all_names(schema: pa.Schema) -> list[str]:
    if schema.equals(DEFAULT_SCHEMA):
        rest = [name for name in ORIGINS if name not in _DEFAULT_ORDER]
        return [*_DEFAULT_ORDER, *rest]
    return list(dict.fromkeys([*schema.names, *ORIGINS]))


def spark_type(field: pa.Field) -> DataType:
    """The type of Spark that holds all values of a column, with nulls allowed in all of its parts.

    Raises:
        SchemaMismatchError: Spark has none.
    """
    try:
        return _allows_nulls(from_arrow_type(_widened(field.type)))
    except (PySparkException, TypeError) as exc:
        raise SchemaMismatchError(
            f"column {field.name!r} is {field.type}, for which Spark has no type: {exc}"
        ) from exc


def _allows_nulls(kind: DataType) -> DataType:
    """The type with nulls allowed in all of its parts, as the columns of a topic are offered.

    A schema of Arrow may exclude them, but nobody checks each row for that, and Spark would take a
    null for a value.
    """
    if isinstance(kind, StructType):
        return StructType(
            [StructField(f.name, _allows_nulls(f.dataType), metadata=f.metadata) for f in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_allows_nulls(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_allows_nulls(kind.keyType), _allows_nulls(kind.valueType))
    return kind


def _widened(kind: pa.DataType) -> pa.DataType:
    """The type with all parts replaced that Spark does not have, at any depth."""
    if kind in _WIDENED:
        return _WIDENED[kind]
    if pat.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pat.is_struct(kind):
        return pa.struct([field.with_type(_widened(field.type)) for field in kind])
    if pat.is_map(kind):
        item = kind.item_field
        return pa.map_(_widened(kind.key_type), item.with_type(_widened(item.type)))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(item.with_type(_widened(item.type)))
    return kind


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        # Not safe: times finer than a microsecond, which Spark does not have, are cut.
        return column.cast(field.type, safe=not _may_be_finer(column.type))
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(
            f"column {field.name!r} is {column.type} in this Batch, which does not become "
            f"{field.type}: {exc}"
        ) from exc


def _may_be_finer(kind: pa.DataType) -> bool:
    if pat.is_nested(kind):
        return True
    return bool(pat.is_timestamp(kind) or pat.is_duration(kind)) and kind.unit == "ns"


def origin_of(batch: PublishedBatch, entry: IndexEntry) -> dict[str, object]:
    """What is the same for all rows of a Message: all origins but the position."""
    return _batch_origin(batch) | {
        "producer_id": entry.producer_id,
        "epoch": entry.epoch,
        "sequence": entry.sequence,
    }


def _batch_origin(batch: PublishedBatch) -> dict[str, object]:
    return {
        "topic": batch.notification.topic,
        "partition": batch.partition,
        "offset": batch.offset,
        "batch": batch.notification.batch_id,
        "write_partition": batch.notification.write_partition,
    }


def _origin(field: pa.Field, origin: Mapping[str, object], count: int) -> pa.Array:
    if field.name != "position":
        return pa.repeat(pa.scalar(origin[field.name], field.type), count)
    if count <= _MAX_POSITIONS:
        return _POSITIONS.slice(0, count)
    return pa.array(range(count), pa.int64())


# -- one row for each Message ---------------------------------------------------------------


class MessageStatus(NamedTuple):
    """How one Message was found."""

    entry: IndexEntry
    status: str
    error: str | None = None


def status_rows(
    target: pa.Schema, batch: PublishedBatch, statuses: Iterable[MessageStatus]
) -> pa.RecordBatch:
    """Rows for Messages of a Batch whose index was read.

    Args:
        target: the columns.
        batch: that has them.
        statuses: of the Messages.
    """
    rows: list[dict[str, object]] = []
    for entry, status, error in statuses:
        times = (entry.min_timestamp_us, entry.max_timestamp_us)
        least, greatest = (None, None) if times == UNKNOWN_RANGE else times
        rows.append(
            origin_of(batch, entry)
            | {
                "records": entry.records,
                "bytes": entry.length,
                "crc32c": entry.crc32c,
                "min_timestamp": least,
                "max_timestamp": greatest,
                "status": status,
                "error": error,
            }
        )
    return _record_batch(target, rows)


def unread_rows(
    target: pa.Schema, messages: MessageRange, status: str, error: str
) -> pa.RecordBatch:
    """Rows for Messages of which only the notification tells."""
    batch, start, end, _ = messages
    origin = _batch_origin(batch) | {"status": status, "error": error}
    rows = [
        origin | {"producer_id": run.producer_id, "epoch": run.epoch, "sequence": sequence}
        for run in batch.notification.producers
        for sequence in range(run.first, run.last + 1)
    ]
    return _record_batch(target, rows[start:end])


def _record_batch(target: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in target]
    return exactly(columns, target)
