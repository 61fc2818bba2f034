"""Records are placed by their key: a Message gathers for each write partition.

Theory of operation
-------------------
A `KeyedAccumulator` is an `Accumulator` for each write partition, and one for records without a
key, whose Messages the state machine places as it does for every producer. They share the budget,
so a record that waits for room waits for all of them.

Rule 1. A key has one write partition for the producer's life: that of `memq.core.keys`, among the
    write partitions that the producer found when it started. One that is added later is not used,
    or a key would move while Messages with it are under way.
Rule 2. Open Messages take half of the budget at most, for each has its share of that half and a
    record that is larger than the share is sealed at once. The other half is for what is sealed,
    which is acked or fails by its deadline. So a write that waits for room does get it, also where
    nothing seals Messages by time.
Rule 3. Messages of one write partition are sealed in the order of their records. The deadline of a
    Message counts from then, so that deadlines come in the order of sealing, whichever write
    partition Messages belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from memq.client.producer.accumulator import ENVELOPE_BYTES, Accumulator, checked_bytes
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.keys import is_key_type, partition_of, partitions_of
from memq.core.units import KIB, counted
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from memq.client.producer.accumulator import BytesLike
    from memq.client.producer.delivery import Delivery
    from memq.core.format.message import Headers
    from memq.errors import MemqError

KEY_COLUMN = "key"  # of the default schema
MIN_SHARE_BYTES = 4 * KIB  # of an open Message: with less there would be little but envelopes


class KeyedAccumulator:
    """Gathers records into Messages by their key. Thread safe.

    Args:
        column: that is the key.
        make: makes the accumulator of a write partition, or that of records without a key (None).
        partitions: write partitions that keys are spread over.
        message_bytes: size that the Messages of a table are cut to.
    """

    def __init__(
        self,
        column: str,
        make: Callable[[int | None], Accumulator],
        partitions: int,
        message_bytes: int,
    ) -> None:
        self._column = column
        self._partitions = partitions
        self._by_key = [make(number) for number in range(partitions)]
        self._without_key = make(None)
        self._all = (*self._by_key, self._without_key)
        self._message_bytes = message_bytes
        self.first_tick_s = self._without_key.first_tick_s

    def __repr__(self) -> str:
        return f"<KeyedAccumulator by {self._column} [{self._partitions} write partitions]>"

    @property
    def open_records(self) -> int:
        """Records in Messages that are not sealed yet."""
        return sum(each.open_records for each in self._all)

    @property
    def limits_bytes(self) -> tuple[int, int]:
        """What a RecordBatch should have, and what it must not exceed, before the envelope."""
        most = self._without_key.limits_bytes[1]
        return min(self._message_bytes - ENVELOPE_BYTES, most), most

    @property
    def max_value_bytes(self) -> int:
        """What the value of a record without key and headers must not exceed."""
        return self._without_key.max_value_bytes

    # -- records and rows -------------------------------------------------------------------

    def write(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Delivery | None:
        """Add a record; as `Accumulator.write`."""
        if key is None:
            return self._without_key.write(value, None, headers, timestamp)
        if type(key) is not bytes:
            key = checked_bytes("key", key) or b""
        place = self._by_key[partition_of(key, self._partitions)]
        return place.write(value, key, headers, timestamp)

    def spread(self, rows: pa.Table) -> list[pa.Table]:
        """Return the rows of each write partition in their order, then those without a key."""
        places = partitions_of(rows.column(self._column), self._partitions)
        if isinstance(places, pa.ChunkedArray):
            places = places.combine_chunks()
        counts = {
            each["values"].as_py(): each["counts"].as_py() for each in pc.value_counts(places)
        }
        if len(counts) == 1:
            return [rows]
        # Stable, and nulls last.
        sorted_rows = rows.take(pc.array_sort_indices(places))
        parts, start = [], 0
        for place in sorted(counts, key=lambda place: (place is None, place)):
            parts.append(sorted_rows.slice(start, counts[place]))
            start += counts[place]
        return parts

    def write_batch(self, batch: pa.RecordBatch, schema_id: str) -> Delivery | None:
        """Make rows that `spread` has put together one Message; as `Accumulator.write_batch`."""
        [place] = partitions_of(batch.column(self._column).slice(0, 1), self._partitions)
        number = place.as_py()
        return (self._without_key if number is None else self._by_key[number]).write_batch(
            batch, schema_id
        )

    # -- all of them ------------------------------------------------------------------------

    def seal(self) -> None:
        """Seal the open Messages."""
        for each in self._all:
            each.seal()

    def tick(self, *, may_seal: bool) -> float | None:
        """Let time pass; as `Accumulator.tick`."""
        next_s = (each.tick(may_seal=may_seal) for each in self._all)
        return min((each for each in next_s if each is not None), default=None)

    def drop_open(self, error: MemqError) -> None:
        """Give up the Messages that are not sealed yet: their deliveries fail so."""
        for each in self._all:
            each.drop_open(error)

    def end(self, error: MemqError) -> None:
        """Seal what is open, then refuse everything with this error, or an earlier one."""
        for each in self._all:
            each.end(error)

    def fail(self, error: MemqError) -> None:
        """Refuse everything with this error; as `Accumulator.fail`."""
        for each in self._all:
            each.fail(error)


def check_key_column(column: str, schema: pa.Schema, topic: str) -> None:
    """Refuse a column by which the records of a topic cannot be placed.

    Raises:
        ConfigError: naming the columns that can be keys.
    """
    if schema.equals(DEFAULT_SCHEMA):
        possible = [KEY_COLUMN]
    else:
        possible = [field.name for field in schema if is_key_type(field.type)]
    if column not in possible:
        raise ConfigError(
            f"partition_by = {column!r} cannot place the records of topic {topic!r}; "
            + (
                f"choose none or one of {', '.join(possible)}"
                if possible
                else "it has no column of texts, bytes, or 32 or 64 bit integers"
            )
        )


def open_message_bytes(message_bytes: int, buffer_bytes: int, partitions: int) -> int:
    """Return the size to which an open Message grows so that half of the buffer holds all of them.

    Raises:
        ConfigError: the buffer is too small for so many write partitions.
    """
    share = buffer_bytes // 2 // (partitions + 1)
    least = MIN_SHARE_BYTES * 2 * (partitions + 1)
    if share < min(message_bytes, MIN_SHARE_BYTES):
        raise ConfigError(
            f"buffer_bytes = {buffer_bytes} is too little for partition_by over "
            f"{counted(partitions, 'write partition')}, with a Message open for each; it must be "
            f"at least {least}"
        )
    return min(message_bytes, share)
