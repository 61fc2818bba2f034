"""The columns of a read: from the Arrow schema of a topic to the rows that Spark takes.

A row has the topic's own columns, and columns that say where it comes from. Spark takes an
Arrow batch as it is when its schema is exactly the one that Spark derives from its own types, so
each topic type is mapped to the Spark type that holds all of its values, and each column is cast
once where the Arrow types differ. For the default schema they do not, and nothing is copied.

With `view=messages` there is one row for each Message in place of its records. It answers what a
range contains and in which state: counts, sizes, checksums, damage. These rows come
from the indexes of the Batches alone when neither `status` nor `error` is among the columns;
otherwise every Message is read and checked as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from memq.core.format.message import UNKNOWN_RANGE
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.format.schema import ORIGINS as ORIGIN_SCHEMA
from memq.errors import ConfigError, SchemaMismatchError
from memq.tables.fitting import check_names, fitted, has_equal_keys, widened, with_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memq.core.format.index import IndexEntry
    from memq.core.notification import PublishedBatch
    from memq.spark.plan import MessageRange

ORIGINS: dict[str, DataType] = {
    "topic": StringType(),
    **{field.name: from_arrow_type(field.type) for field in ORIGIN_SCHEMA},
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

MESSAGE_CHECKED = frozenset({"status", "error"})
"""Those of them that cannot be told without reading the Messages."""

OK, DAMAGED, MISSING = "ok", "damaged", "missing"
"""Values of `status`: read and sound; one that came before, and is not read; damaged; its object
is gone."""

_DEFAULT_ORDER = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")

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
        """Return the Arrow schema that each batch must have, exactly."""
        return to_arrow_schema(self.spark, timezone="UTC")


def shape_of(
    topic: str,
    schema: pa.Schema,
    chosen: Sequence[str] | None,
    wanted: StructType | None,
    maps: str | None = None,
) -> Shape:
    """Return the columns of a read.

    Args:
        topic: the topic.
        schema: its newest.
        chosen: names of the columns, when there is a choice.
        wanted: the schema that the user gave to Spark, if any; a choice as well.
        maps: the option.

    Raises:
        ConfigError: there is no such column, or it has another type.
        SchemaMismatchError: Spark has no type for a column, or takes two columns for one.
    """
    own = {field.name: _own_type(field, wanted, maps) for field in schema}
    names = wanted.names if wanted is not None else chosen or [*schema.names, *ORIGINS]
    known = {name: pa.field(name, pa.null()) for name in names} | {
        each.name: each for each in schema
    }
    check_names([known[name] for name in names], topic)
    offered = {name: (ORIGINS | own)[name] for name in _all_names(schema)}
    return Shape(choose(offered, chosen, wanted), frozenset(own))


def choose(
    offered: Mapping[str, DataType],
    chosen: Sequence[str] | None,
    wanted: StructType | None,
) -> StructType:
    """Choose the wanted columns among those on offer.

    Args:
        offered: the columns in their order.
        chosen: the option `columns`.
        wanted: the schema that the user gave to Spark, or that Spark was given before. It must not
            say that a column has no nulls: Spark believes it, and turns nulls into wrong values.

    Raises:
        ConfigError: there is no such column, it has another type, or is said to have no nulls.
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
        if field.dataType != offered[field.name] or not field.nullable:
            raise ConfigError(
                f"column {field.name!r} may be null, or hold nulls, for all that Spark knows, and "
                f"the schema given to .schema() says that it does not: {field.jsonValue()}. Leave "
                "out NOT NULL (nullable=False, containsNull=False, valueContainsNull=False), and "
                "filter in the query"
            )
    return wanted


def project(
    target: pa.Schema,
    own: frozenset[str],
    rows: pa.RecordBatch,
    origin: Mapping[str, object],
    maps: str | None = None,
) -> pa.RecordBatch:
    """Return the rows of a Message with the columns of a read.

    Args:
        target: the columns, as `Shape.arrow` has them.
        own: those of them that are the topic's.
        rows: of the Message, with the schema of its Batch.
        origin: what is the same for all rows of the Message, by origin column.
        maps: the option; unless it asks for maps, none may have a key twice.

    Raises:
        SchemaMismatchError: a column has another type than the topic's newest schema says, or
            would lose a key that a map has twice.
    """
    count = rows.num_rows
    columns = []
    for field in target:
        if field.name not in own:
            columns.append(_origin(field, origin, count))
        elif (at := rows.schema.get_field_index(field.name)) >= 0:
            columns.append(fitted(rows.column(at), field))
            if maps != "map" and has_equal_keys(columns[-1]):
                raise SchemaMismatchError(
                    f"column {field.name!r} has a key twice, of which a map shows one in Spark: "
                    "read it with the option 'maps' = 'pairs', as an array of all; 'map' keeps both"
                )
        else:  # the column was added later
            columns.append(pa.nulls(count, field.type))
    return pa.record_batch(columns, schema=target)


def _all_names(schema: pa.Schema) -> list[str]:
    if schema.equals(DEFAULT_SCHEMA):
        rest = [name for name in ORIGINS if name not in _DEFAULT_ORDER]
        return [*_DEFAULT_ORDER, *rest]
    return list(dict.fromkeys([*schema.names, *ORIGINS]))


def spark_type(field: pa.Field) -> DataType:
    """Return the type of Spark that holds all values of a column, with nulls allowed in all of its
    parts.

    A schema of Arrow may exclude them, but nobody checks each row for that, and Spark would take a
    null for a value.

    Raises:
        SchemaMismatchError: Spark has none.
    """
    try:
        return from_arrow_type(widened(field.type))
    except (PySparkException, TypeError) as exc:
        raise SchemaMismatchError(
            f"column {field.name!r} is {field.type}, for which Spark has no type: {exc}"
        ) from exc


def _own_type(field: pa.Field, wanted: StructType | None, maps: str | None) -> DataType:
    """Return the type of a topic's column: one of two if it has maps, which may be pairs."""
    kinds = [spark_type(field), spark_type(field.with_type(with_pairs(field.type)))]
    if maps == "pairs" or (maps is None and field.equals(DEFAULT_SCHEMA.field("headers"))):
        kinds.reverse()
    given = wanted[field.name] if wanted is not None and field.name in wanted.names else None
    asked = given and given.dataType.simpleString()
    return next((kind for kind in kinds if kind.simpleString() == asked), kinds[0])


def origin_of(batch: PublishedBatch, entry: IndexEntry) -> dict[str, object]:
    """Return what is the same for all rows of a Message: all origins but the position."""
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
    batch, start, end = messages
    origin = _batch_origin(batch) | {"status": status, "error": error}
    rows = [
        origin | {"producer_id": run.producer_id, "epoch": run.epoch, "sequence": sequence}
        for run in batch.notification.producers
        for sequence in range(run.first, run.last + 1)
    ]
    return _record_batch(target, rows[start:end])


def _record_batch(target: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in target]
    return pa.record_batch(columns, schema=target)
