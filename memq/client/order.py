"""The order of LogMessages on read, made within each Batch.

none: as they stand in the Batch, which is the order in which the broker received the Messages.

producer: by producer id, epoch, sequence and position. In a topic with `ordering="producer"` each
producer's LogMessages come in the order they were sent, across Batches too, in either order; in
other topics a later Batch may hold an earlier Message.

key: by key, then timestamp, then as they stand in the Batch; LogMessages without a key come last.
Nothing is promised across Batches.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from memq.client.batch import Section
from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.index import IndexEntry
from memq.core.format.message import TIMESTAMP_COLUMN
from memq.errors import MessageTooLargeError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

Order = Literal["none", "producer", "key"]
Message = tuple[IndexEntry, pa.RecordBatch]
"""What the index says about a Message, and its rows."""

KEY_COLUMN = "key"


def arrange(messages: Sequence[Message], schema: pa.Schema, order: Order) -> list[Section]:
    """The rows of some Messages of one Batch as sections, in the order asked for.

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


def _sorted_by_key(messages: Sequence[Message], schema: pa.Schema) -> Section:
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
    """The rows sorted, and where each stood before. Arrow's sort is stable and puts nulls last."""
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
            "cannot be sorted by key; read with another order, or make Batches smaller"
        )
    return chunks[0], places.to_pylist()
