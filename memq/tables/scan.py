"""One read over a table and the topic that it is made from.

Theory of operation
-------------------
What the table has comes from the table, and the rest from Batches. Where the one ends and the other
begins is fixed once, before the first row:

1. The table is looked at. From here on its snapshot is the one that is read: what is put in, or
   taken out, later does not change it.
2. Then the topic is. So whatever the ledger has is published, and lies before the ends.
3. The offsets up to those ends, or to those that were asked for, that the ledger does not have are
   the rest.

Both sides are of the same topic id, and no offset is in both, whatever is committed meanwhile:
there is no gap and no overlap. Rows come from the table first, and have the topic's columns.

The read begins with the first offset that the table or the topic has. Offsets after it that are in
neither, because retention has removed what was not put in, are an error. So are offsets of the
table that the topic has not come to: it has lost them, as by a restore from an older copy, and
gives their numbers to other data.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from memq.client.read_range import Scan, TopicReader, reader_of
from memq.client.read_range import scan as scan_topic
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.named_values import NO_VALUES
from memq.core.ranges import Interval, OffsetRange, difference, intersection
from memq.errors import (
    ConfigError,
    DataLossError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
)
from memq.reading.plan import Selection
from memq.tables.fitting import cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    from pyiceberg.table import Table

    from memq.client.read_range import ReadArguments
    from memq.core.named_values import GivenValues
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.plan import ReadPlan
    from memq.tables.iceberg import IcebergTable
    from memq.tables.ledger import Ledger

T = TypeVar("T")

NO_OFFSETS: Mapping[int, int] = MappingProxyType({})
ATTEMPTS = 3  # ranges may be put in and removed by retention between two looks


class Seam(NamedTuple):
    """Where a table ends and Batches begin.

    Attributes:
        stored: the offsets that come from the table, by read partition.
        rest: those that come from Batches.
    """

    stored: dict[int, list[Interval]]
    rest: list[OffsetRange]


def scan(
    bootstrap: str | None = None,
    *,
    topic: str,
    table: str | IcebergTable | None = None,
    until: Mapping[int, int] | None = None,
    catalog_options: GivenValues = NO_VALUES,
    **options: Unpack[ReadArguments],
) -> Scan:
    """Read as `read_range` does, for data of any size: RecordBatches that are read on demand.

    A few Batches are read ahead, and no more is in memory, whatever the range holds. What is read
    is fixed before this returns: what is published later is not part of it.

    With a table that ranges of the topic are put into, what it has is read from there, and the rest
    from Batches: all that there ever was, up to what is published now, with no gap and no overlap.

    Args:
        bootstrap: as in `read_range`, like all others.
        topic: the topic.
        table: "[catalog:]namespace.table"; None for the topic alone.
        until: with a table: one past the last offset to read, by read partition; what is published
            by now where it says nothing.
        catalog_options: of the table's catalog, besides those of this machine; as a table or as
            "NAME=VALUE,NAME=VALUE".
        **options: see `ReadArguments`; with a table there is no choice of times and offsets.

    Returns:
        An Arrow stream for pyarrow, pandas, Polars, DuckDB; see `Scan`.

    Raises:
        ConfigError: there is no such table, or the options do not go together.
        DataLossError: offsets between those of the table, or after them, were removed by retention
            before they were put in; or the topic has lost offsets that the table has.
        SchemaMismatchError: a column has a type in the table that does not become the topic's.
        MemqError: as `read_range`, also while rows are read; but there is no timeout of the whole.
            Retention that removes some of what is not read yet is an error.
    """
    if table is None:
        if until is not None:
            raise ConfigError("until: goes with a table; a topic alone has partition and end")
        return scan_topic(bootstrap, topic=topic, **options)
    from memq.tables.columns import check_unchanged  # noqa: PLC0415 - needs an extra

    unopened, selection = reader_of(bootstrap, topic, options)
    for name, value in (selection._asdict() | {"limit": options.get("limit")}).items():
        if value is not None:
            raise ConfigError(
                f"{name} = {value!r}: not with a table; filter the rows, or give until"
            )
    opened = _opened(table, catalog_options)
    reader = TopicReader(unopened)
    try:
        settled = settle(
            opened, reader, topic, until or {}, lambda rest: reader.plan(Selection(*rest[:3]))
        )
        if any(settled.seam.stored.values()):
            check_unchanged(settled.base, reader.schema.names)
    except BaseException:
        reader.close()
        raise
    return Scan(reader.schema, lambda: _rows(settled, reader, topic), reader.close)


def _opened(table: str | IcebergTable, catalog_options: GivenValues) -> IcebergTable:
    from memq.tables.iceberg import open_table  # noqa: PLC0415 - needs an extra

    return open_table(table, catalog_options) if isinstance(table, str) else table


class TopicOffsets(Protocol):
    """A topic, as far as its offsets go."""

    @property
    def topic_id(self) -> str:
        """Of the topic."""

    def offsets(self) -> Sequence[PartitionOffsets]:
        """Start and end of every read partition."""


class Settled(NamedTuple, Generic[T]):
    """What a read reads: a table as it was, and plans for the rest.

    Attributes:
        table: the table.
        base: it, as it was.
        seam: where it ends and Batches begin.
        plans: for each range of the rest.
    """

    table: IcebergTable
    base: Table
    seam: Seam
    plans: list[T]


def settle(
    table: IcebergTable,
    topic: TopicOffsets,
    name: str,
    until: Mapping[int, int],
    plan: Callable[[OffsetRange], T],
    *,
    since: Mapping[int, int] = NO_OFFSETS,
) -> Settled[T]:
    """Pin a table and its topic, and plan what is to be read from Batches.

    Args:
        table: the table.
        topic: the topic.
        name: of the topic.
        until: one past the last offset, by read partition; where the topic ends when not given.
        plan: makes the plan for a range of the rest.
        since: the first offset that matters, by read partition; what is there when not given.

    Raises:
        ConfigError: there is no such table.
        MemqError: as `seam_of` and `plan`, or the table or the topic cannot be looked at.
    """
    for left in reversed(range(ATTEMPTS)):
        begun = topic.offsets()  # before the table: what retention removes meanwhile is missed
        state = table.look()  # before the topic: then all that it has is published
        try:
            found = topic.offsets()
            seam = seam_of(
                state.ledger, name, topic.topic_id, found, until, begun=begun, since=since
            )
            plans = [plan(each) for each in seam.rest]
        except (OffsetOutOfRangeError, DataLossError):
            if not left:
                raise
        else:
            break
    return Settled(table, state.base, seam, plans)


def seam_of(
    ledger: Ledger,
    topic: str,
    topic_id: str,
    retained: Sequence[PartitionOffsets],
    until: Mapping[int, int],
    *,
    begun: Sequence[PartitionOffsets] = (),
    since: Mapping[int, int] = NO_OFFSETS,
) -> Seam:
    """Find where the table ends and Batches begin.

    Args:
        ledger: of the table.
        topic: the topic.
        topic_id: of it.
        retained: by the topic, looked up after the ledger.
        until: one past the last offset, by read partition; where the topic ends when not given.
        begun: retained before the ledger was looked up; what has gone since is in one of the two.
        since: the first offset that matters, by read partition; what is there when not given.

    Raises:
        InvalidRequestError: there is no such read partition, or it has not come that far.
        DataLossError: offsets are in neither, or the topic has lost some that the table has.
    """
    for partition, end in until.items():
        if partition not in range(len(retained)) or not 0 <= end <= retained[partition].end:
            ends = {each.partition: each.end for each in retained}
            raise InvalidRequestError(
                f"until = {dict(until)}: topic {topic!r} ends at {ends}, by read partition"
            )
    seam = Seam({}, [])
    for partition, start, end in ((each.partition, each.start, each.end) for each in retained):
        held = ledger.partition(topic, topic_id, partition).intervals
        if held and held[-1].end > end:
            raise DataLossError(
                f"read partition {partition} of topic {topic!r} ends at {end}, and the table has "
                f"offsets up to {held[-1].end}: the topic has lost its newest Batches, as by a "
                "restore from an older copy, and what is published now has the numbers of what the "
                "table has. Read each of the two by itself, and put the topic into a new table"
            )
        earlier = [each.start for each in begun if each.partition == partition]
        first = min([start, *earlier, *(each.start for each in held[:1])])
        first = max(first, since.get(partition, first))
        whole = Interval(first, max(first, until.get(partition, end)))
        seam.stored[partition] = intersection(held, whole)
        rest = difference([whole], held) if whole.start < whole.end else []
        if rest and rest[0].start < start:
            gone = Interval(rest[0].start, min(rest[0].end, start))
            raise DataLossError(
                f"topic {topic!r} {OffsetRange(partition, *gone)}: neither in the table nor "
                "retained; retention removed them before they were put in"
            )
        seam.rest.extend(OffsetRange(partition, *each, topic_id) for each in rest)
    return seam


# -- rows -----------------------------------------------------------------------------------


def _rows(settled: Settled[ReadPlan], reader: TopicReader, topic: str) -> Iterator[pa.RecordBatch]:
    table, base, seam, plans = settled
    if any(seam.stored.values()):
        naming = {"topic": topic, "memq_topic_id": reader.topic_id}
        named = [*reader.schema.names, "partition", "offset"]
        for batch in table.matching(base, naming, named):
            wanted = batch.filter(_stored(batch, seam.stored))
            if wanted.num_rows:
                yield conform(wanted, reader.schema, table.identifier)
    for plan in plans:
        for each in reader.rows(plan):
            yield from each.rows


def _stored(batch: pa.RecordBatch, stored: Mapping[int, list[Interval]]) -> pa.BooleanArray:
    """Return which rows are of offsets that come from the table; those of others may be in it as
    well.
    """
    partitions, offsets = batch.column("partition"), batch.column("offset")
    wanted = pa.repeat(pa.scalar(False), batch.num_rows)
    for partition, intervals in stored.items():
        for start, end in intervals:
            inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
            wanted = pc.or_(wanted, pc.and_(pc.equal(partitions, partition), inside))
    return wanted


def conform(rows: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    """Rows of a table with the columns of a topic; those that it has not are nulls.

    Raises:
        SchemaMismatchError: a column cannot become what the topic has.
    """
    columns = []
    for field in schema:
        if rows.schema.get_field_index(field.name) < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        try:
            columns.append(cast(column, field.type))
        except ARROW_ERRORS as exc:
            raise SchemaMismatchError(
                f"column {field.name!r} is {column.type} in table {table}, which does not become "
                f"the topic's {field.type}: {exc}"
            ) from exc
    return pa.record_batch(columns, schema=schema)
