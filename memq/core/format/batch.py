"""Building a Batch: gather Messages, seal them, hand the buffers to storage.

The builder keeps references to the bodies as they were received and never copies, decodes or
re-encodes them. A sealed Batch is a list of buffers ready for one gathered write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from memq.core.checksum import crc32c
from memq.core.decoding import Int64
from memq.core.format.envelope import ALIGNMENT, END_OF_STREAM, BytesLike
from memq.core.format.index import (
    FOOTER_BYTES,
    MAX_MESSAGES,
    MAX_PRODUCER_ID_BYTES,
    BatchMetadata,
    IndexEntry,
    encode_footer,
    encode_index,
)
from memq.core.format.message import TIMESTAMP_COLUMN, UNKNOWN_RANGE
from memq.core.units import counted
from memq.errors import ClosedError, InvalidRequestError, MemqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NUMBERS = struct.Struct("<7qI")  # the numbers of an IndexEntry, in the widths that the index has


class ProducerRun(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive sequences of one producer inside one Batch.

    Attributes:
        producer_id: the producer.
        epoch: its epoch.
        first: first sequence of the run.
        last: last sequence of the run, included.
        records: LogMessages in these Messages.
        crc_sum: sum of the CRC32C of the Messages, modulo 2**64.
    """

    producer_id: str
    epoch: Int64
    first: Int64
    last: Int64
    records: Int64
    crc_sum: int

    @property
    def messages(self) -> int:
        """Messages in the run."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class SealedBatch:
    """A complete Batch object, still in pieces.

    Attributes:
        metadata: of the Batch.
        entries: one per Message, in the order of their bytes.
        buffers: the bytes of the object, in order: schema message, Messages, end-of-stream marker,
            index, footer. The caller's to clear when they are no longer needed.
        size_bytes: of the object.
        index_offset: where the index begins in the object.
        records: LogMessages in the Batch.
    """

    metadata: BatchMetadata
    entries: Sequence[IndexEntry]
    buffers: list[BytesLike]
    size_bytes: int
    index_offset: int
    records: int

    @property
    def messages(self) -> int:
        """Messages in the Batch."""
        return len(self.entries)

    @property
    def timestamp_range_us(self) -> tuple[int, int]:
        """Least and greatest LogMessage timestamp; `UNKNOWN_RANGE` when no Message has one."""
        return entries_range_us(self.entries)

    @cached_property
    def producers(self) -> list[ProducerRun]:
        """Its Messages as runs of sequences; see `producer_runs`."""
        return producer_runs(self.entries)

    def __repr__(self) -> str:
        return (
            f"<SealedBatch {self.metadata.batch_id} [{self.messages} messages, "
            f"{self.records} records, {self.size_bytes} bytes]>"
        )


class BatchBuilder:
    """Gathers the Messages of one Batch until it is sealed.

    Args:
        schema_bytes: the serialized schema that all of its Messages have.
        batch_id: unique name of the Batch.
        topic: the topic.
        write_partition: the write partition that builds it.
        time_column: of the topic.
    """

    def __init__(
        self,
        schema_bytes: bytes,
        *,
        batch_id: str,
        topic: str,
        write_partition: int,
        time_column: str = TIMESTAMP_COLUMN,
    ) -> None:
        self._metadata = BatchMetadata(
            batch_id, topic, write_partition, crc32c(schema_bytes), time_column
        )
        self._buffers: list[BytesLike] = [schema_bytes]
        self._entries: list[IndexEntry] = []
        self._sealed = False
        self.size_bytes = len(schema_bytes)
        """Bytes gathered so far: what the object has before its end-of-stream marker."""
        self.messages = 0
        """Messages gathered so far."""
        self.records = 0
        """LogMessages gathered so far."""

    def __repr__(self) -> str:
        state = "sealed" if self._sealed else "open"
        return (
            f"<BatchBuilder {self._metadata.batch_id} [{state}, {self.messages} messages, "
            f"{self.records} records, {self.size_bytes} bytes]>"
        )

    def add(
        self,
        body: BytesLike,
        *,
        producer_id: str,
        epoch: int,
        sequence: int,
        records: int,
        min_timestamp_us: int,
        max_timestamp_us: int,
        crc32c: int,
    ) -> None:
        """Append a Message that `open_message` has passed. `body` must not change from now on.

        The CRC32C is taken as given: it was checked when the Message was received, and computing it
        again here would bless whatever happened to the bytes since.

        Raises:
            ClosedError: the Batch is sealed.
            InvalidRequestError: a number or the producer id does not fit the index, the body is no
                whole Message, or the Batch is full.
        """
        if self._sealed or self.messages == MAX_MESSAGES:
            raise self._closed()
        length = memoryview(body).nbytes
        numbers = (
            epoch,
            sequence,
            self.size_bytes,
            length,
            records,
            min_timestamp_us,
            max_timestamp_us,
            crc32c,
        )
        _check(producer_id, length, records, numbers)
        self._buffers.append(body)
        self._entries.append(IndexEntry(producer_id, *numbers))
        self.messages += 1
        self.size_bytes += length
        self.records += records

    def seal(self) -> SealedBatch:
        """End the Batch.

        Raises:
            ClosedError: it is sealed already.
            InvalidRequestError: it has no Message.
        """
        if self._sealed:
            raise self._closed()
        if not self._entries:
            raise InvalidRequestError(f"Batch {self._metadata.batch_id} has no Message to seal")
        self._sealed = True
        index = encode_index(self._entries, self._metadata)
        index_offset = self.size_bytes + len(END_OF_STREAM)
        buffers, self._buffers = self._buffers, []
        buffers += (END_OF_STREAM, index, encode_footer(index))
        return SealedBatch(
            metadata=self._metadata,
            entries=self._entries,
            buffers=buffers,
            size_bytes=index_offset + len(index) + FOOTER_BYTES,
            index_offset=index_offset,
            records=self.records,
        )

    def _closed(self) -> MemqError:
        if self._sealed:
            return ClosedError(f"Batch {self._metadata.batch_id} is sealed; start another")
        return InvalidRequestError(
            f"Batch {self._metadata.batch_id} has {MAX_MESSAGES} Messages, the most; seal it"
        )


def _check(producer_id: str, length: int, records: int, numbers: tuple[int, ...]) -> None:
    """Refuse what would make the Batch impossible to seal, now, while only one is concerned."""
    if length % ALIGNMENT or length == 0 or records < 1:
        raise InvalidRequestError(
            f"{length} bytes with {counted(records, 'record')} are no whole Message"
        )
    if not 0 < len(producer_id.encode(errors="replace")) <= MAX_PRODUCER_ID_BYTES:
        raise InvalidRequestError(
            f"producer id {producer_id[:MAX_PRODUCER_ID_BYTES]!r} does not have "
            f"1 to {MAX_PRODUCER_ID_BYTES} bytes"
        )
    try:
        _NUMBERS.pack(*numbers)
    except struct.error as exc:
        raise InvalidRequestError(
            f"a Message of {producer_id!r} has a number that is out of range: {numbers}: {exc}"
        ) from exc


def entries_range_us(entries: Iterable[IndexEntry]) -> tuple[int, int]:
    """Least and greatest LogMessage timestamp; `UNKNOWN_RANGE` when no Message has one."""
    ranges = [(entry.min_timestamp_us, entry.max_timestamp_us) for entry in entries]
    known = [times for times in ranges if times != UNKNOWN_RANGE]
    if not known:
        return UNKNOWN_RANGE
    return min(least for least, _ in known), max(greatest for _, greatest in known)


def producer_runs(entries: Iterable[IndexEntry]) -> list[ProducerRun]:
    """Group the Messages of a Batch into runs of consecutive sequences, per producer and epoch.

    Runs are as long as they can be whatever the order of the Messages, and stand in the order of
    their sequences. A Message that is there twice begins a run of its own, so that it shows.
    """
    order = sorted(entries, key=attrgetter("producer_id", "epoch", "sequence"))
    runs: list[ProducerRun] = []
    for entry in order:
        if runs and _follows(runs[-1], entry):
            runs[-1] = _joined(runs[-1], entry)
        else:
            sequence = entry.sequence
            name, counts = (entry.producer_id, entry.epoch), (entry.records, entry.crc32c)
            runs.append(ProducerRun(*name, sequence, sequence, *counts))
    return runs


def _follows(run: ProducerRun, entry: IndexEntry) -> bool:
    return run.last + 1 == entry.sequence and (run.producer_id, run.epoch) == (
        entry.producer_id,
        entry.epoch,
    )


def _joined(run: ProducerRun, entry: IndexEntry) -> ProducerRun:
    return ProducerRun(
        run.producer_id,
        run.epoch,
        run.first,
        entry.sequence,
        run.records + entry.records,
        (run.crc_sum + entry.crc32c) % 2**64,
    )
