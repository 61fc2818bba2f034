"""What a consumer hands out: one Batch, as LogMessages or as an Arrow table.

A Batch is decoded and checked in full before it is handed out, so iterating it raises nothing that
is wrong with the data. The table is a view on the bytes that were read; LogMessages are made as
the iteration goes, one Message at a time: whole columns become Python objects at once, which costs
a fraction of looking at each value.

The order of LogMessages is made on read, within each Batch.

none: as they stand in the Batch, which is the order in which the broker received the Messages.

producer: by producer id, epoch, sequence and position. In a topic with `ordering="producer"` each
producer's LogMessages come in the order they were sent, across Batches too, in either order; in
other topics a later Batch may hold an earlier Message.

key: by key, then timestamp, then as they stand in the Batch; LogMessages without a key come last.
Nothing is promised across Batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, compress, count, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.message import TICKS_PER_SECOND, TIMESTAMP_COLUMN, time_position
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import ConfigError, InvalidRequestError, MessageTooLargeError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.core.format.index import IndexEntry
    from memq.core.notification import Notification

    MessageRows = tuple[IndexEntry, pa.RecordBatch]
    """What the index says about a Message, and its rows."""

Order = Literal["none", "producer", "key"]
KEY_COLUMN = "key"

_Columns = tuple[Iterable[Any], Iterable[Any], Iterable[Any], Iterable[int]]
"""Keys, values, headers and timestamps in microseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogMessage(NamedTuple):
    """One LogMessage and where it comes from.

    Attributes:
        key: its key, or None.
        value: its value; None is a tombstone. A LogMessage of a typed topic has a dict here, its
            row by column name, and neither key nor headers.
        headers: its headers as pairs of name and value, or None.
        timestamp_us: microseconds since 1970 UTC; 0 in a typed topic without its `time_column`.
        topic: the topic.
        partition: read partition of its Batch.
        offset: of its Batch.
        write_partition: that its Message belongs to.
        producer_id: who sent it.
        epoch: of the producer.
        sequence: of its Message; a producer counts by write partition.
        position: in its Message, from 0. The last five together name a LogMessage for ever.
    """

    key: bytes | None
    value: Any
    headers: list[tuple[str, bytes | None]] | None
    timestamp_us: int
    topic: str
    partition: int
    offset: int
    write_partition: int
    producer_id: str
    epoch: int
    sequence: int
    position: int

    @property
    def timestamp(self) -> datetime:
        """`timestamp_us` as a time in UTC.

        Raises:
            OverflowError: it is beyond the years 1 to 9999.
        """
        return _EPOCH + timedelta(microseconds=self.timestamp_us)


_log_message: Callable[[Iterable[Any]], LogMessage] = partial(tuple.__new__, LogMessage)
"""What `LogMessage._make` does, without a Python frame for each LogMessage."""


class Section(NamedTuple):
    """Rows of a Batch, and for each row the Message it belongs to and its position there.

    The iterables have at least as many elements as there are rows and can be gone through again.
    """

    rows: pa.RecordBatch
    producer_ids: Iterable[str]
    epochs: Iterable[int]
    sequences: Iterable[int]
    positions: Iterable[int]


class Batch:
    """The LogMessages of one stored object.

    Attributes:
        notification: what the queue says about the Batch.
        topic: the topic.
        partition: read partition of the notification.
        offset: of the notification in it.
        schema: of the rows.
        sections: the rows with their origins, in the order that the consumer was asked for.
        time_column: that has the time of a row.
    """

    def __init__(
        self,
        notification: Notification,
        partition: int,
        offset: int,
        schema: pa.Schema,
        sections: list[Section],
    ) -> None:
        self.notification = notification
        self.topic = notification.topic
        self.partition = partition
        self.offset = offset
        self.schema = schema
        self.sections = sections
        self.time_column = TIMESTAMP_COLUMN
        self._records = sum(section.rows.num_rows for section in sections)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}/{self.partition}/{self.offset} "
            f"[{len(self)} records, {self.notification.size_bytes} bytes]>"
        )

    def __len__(self) -> int:
        """LogMessages in the Batch."""
        return int(self._records)

    def __iter__(self) -> Iterator[LogMessage]:
        """Yield the LogMessages, in the order that the consumer was asked for.

        Raises:
            InvalidRequestError: a typed topic has a value that no Python object can hold, such as
                a time in nanoseconds; use `to_arrow`.
        """
        columns = _default_columns if self.schema.equals(DEFAULT_SCHEMA) else _typed_columns
        return chain.from_iterable(self._rows(section, columns) for section in self.sections)

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table, one chunk a Message unless they were sorted; nothing is
        copied.
        """
        return pa.Table.from_batches(
            [section.rows for section in self.sections], schema=self.schema
        )

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            return self.to_arrow().to_pandas()
        except ImportError as exc:
            raise ConfigError(f"to_pandas() needs pandas: pip install pandas ({exc})") from exc

    def slice(self, start: int, length: int) -> Batch:
        """Up to `length` of its LogMessages, from the one at `start` on."""
        places = count(-start)

        def wanted(rows: pa.RecordBatch) -> pa.BooleanArray:
            return pa.array([0 <= next(places) < length for _ in range(len(rows))], pa.bool_())

        return self.where(wanted)

    def where(self, wanted: Callable[[pa.RecordBatch], pa.BooleanArray]) -> Batch:
        """Keep the LogMessages whose rows are wanted: a function says so for many at a time."""
        return self.of([_chosen(section, wanted(section.rows)) for section in self.sections])

    def of(self, sections: list[Section]) -> Batch:
        """Make a copy of this Batch with other rows."""
        batch = Batch(self.notification, self.partition, self.offset, self.schema, sections)
        batch.time_column = self.time_column
        return batch

    def _rows(
        self, section: Section, columns: Callable[[pa.RecordBatch, str], _Columns]
    ) -> Iterator[LogMessage]:
        return map(
            _log_message,
            zip(
                *columns(section.rows, self.time_column),
                repeat(self.topic),
                repeat(self.partition),
                repeat(self.offset),
                repeat(self.notification.write_partition),
                section.producer_ids,
                section.epochs,
                section.sequences,
                section.positions,
                strict=False,  # what is the same for all rows repeats without end
            ),
        )


def _chosen(section: Section, wanted: pa.BooleanArray) -> Section:
    """Some rows of a section, with their origins."""
    if wanted.true_count == len(wanted):
        return section
    flags = wanted.to_pylist()
    origins: list[Any] = [
        each if isinstance(each, repeat) else list(compress(each, flags)) for each in section[1:]
    ]
    return Section(section.rows.filter(wanted), *origins)


def _default_columns(rows: pa.RecordBatch, _: str) -> _Columns:
    keys, values, headers, timestamps = rows.columns
    return (
        repeat(None) if keys.null_count == len(keys) else keys.to_pylist(),
        values.to_pylist(),
        repeat(None) if headers.null_count == len(headers) else headers.to_pylist(),
        timestamps.view(pa.int64()).to_pylist(),
    )


def _typed_columns(rows: pa.RecordBatch, time_column: str) -> _Columns:
    try:
        values = rows.to_pylist()
    except (*ARROW_ERRORS, OverflowError) as exc:
        raise InvalidRequestError(
            f"some value has no Python object of its type, use to_arrow(): {exc}"
        ) from exc
    return repeat(None), values, repeat(None), timestamps_us(rows, time_column)


def timestamps_us(rows: pa.RecordBatch, time_column: str) -> Iterable[int]:
    """Times of rows in microseconds since 1970 UTC; 0 where they have none."""
    position = time_position(rows.schema, time_column)
    if position < 0:
        return repeat(0)
    column = rows.column(position)
    per_second = TICKS_PER_SECOND[column.type.unit]
    ticks = column.view(pa.int64()).to_pylist()
    return [0 if tick is None else tick * 10**6 // per_second for tick in ticks]


# -- the order on read ----------------------------------------------------------------------


def arrange(messages: Sequence[MessageRows], schema: pa.Schema, order: Order) -> list[Section]:
    """Arrange the rows of a Batch's Messages as sections, in the order asked for.

    Args:
        messages: in the order of the object.
        schema: of the rows.
        order: asked for.

    Raises:
        SchemaMismatchError: they shall be sorted by key, but have no column that can be sorted.
        MessageTooLargeError: they shall be sorted by key, but do not fit into one Arrow array.
    """
    if order == "key" and messages:
        return [_sorted_by_key(messages, schema)]
    if order == "producer":
        messages = sorted(messages, key=lambda message: _origin(message[0]))
    return [_section(entry, rows) for entry, rows in messages]


def _origin(entry: IndexEntry) -> tuple[str, int, int]:
    return entry.producer_id, entry.epoch, entry.sequence


def _section(entry: IndexEntry, rows: pa.RecordBatch) -> Section:
    producer_id, epoch, sequence = _origin(entry)
    return Section(rows, repeat(producer_id), repeat(epoch), repeat(sequence), range(rows.num_rows))


def _sorted_by_key(messages: Sequence[MessageRows], schema: pa.Schema) -> Section:
    rows, places = _sort(pa.Table.from_batches([rows for _, rows in messages], schema=schema))
    entries = [entry for entry, rows in messages for _ in range(rows.num_rows)]
    positions = list(chain.from_iterable(range(rows.num_rows) for _, rows in messages))
    return Section(
        rows,
        [entries[place].producer_id for place in places],
        [entries[place].epoch for place in places],
        [entries[place].sequence for place in places],
        [positions[place] for place in places],
    )


def _sort(table: pa.Table) -> tuple[pa.RecordBatch, list[int]]:
    """Sort the rows; return where each stood before. Arrow's sort is stable and puts nulls last."""
    if KEY_COLUMN not in table.column_names:
        raise SchemaMismatchError(
            f"order = 'key' needs a column {KEY_COLUMN!r}; there are {table.column_names}"
        )
    columns = [name for name in (KEY_COLUMN, TIMESTAMP_COLUMN) if name in table.column_names]
    try:
        places = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
        chunks = table.take(places).combine_chunks().to_batches()
    except ARROW_ERRORS as exc:
        raise SchemaMismatchError(f"order = 'key' cannot sort by {columns}: {exc}") from exc
    if len(chunks) != 1:
        raise MessageTooLargeError(
            f"a column of {table.num_rows} records exceeds the 2 GiB of one Arrow array, so they "
            "cannot be sorted by key; read with another order, or lower the topic's batch_bytes"
        )
    return chunks[0], places.to_pylist()
