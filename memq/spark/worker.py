"""What a task does: read its Messages straight from storage, one Arrow batch for each Message.

Of each Batch the index is read first, then the Messages by range, and each is checked against its
CRC32C before it becomes rows. Whatever cannot be read is one error that names object, read
partition and offset; with `mode=permissive` it is skipped, logged and counted.
"""

from __future__ import annotations

import logging
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from memq.core.checksum import crc32c
from memq.core.format.envelope import view_bytes
from memq.core.format.reader import message_from_range, schema_from_range
from memq.core.format.schema import deserialize_schema
from memq.core.units import counted
from memq.errors import DataLossError, MemqError
from memq.reading.objects import read_index
from memq.spark.columns import (
    DAMAGED,
    MESSAGE_CHECKED,
    MISSING,
    OK,
    MessageStatus,
    Shape,
    origin_of,
    project,
    status_rows,
    unread_rows,
)
from memq.spark.topic import naming, open_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from memq.core.format.index import BatchIndex, IndexEntry
    from memq.core.notification import PublishedBatch
    from memq.spark.options import ReadOptions
    from memq.spark.plan import MessageRange, TaskInput
    from memq.spark.topic import GetRange

log = logging.getLogger("memq.spark")

READ_BYTES = 1 << 20  # small Messages are read together up to this; larger ones each by itself
MAX_COMPLAINTS = 20  # log lines of one task about what it skips; the last one counts the rest


class TaskReader:
    """Reads the inputs of tasks.

    Args:
        options: of the read.
        shape: the columns wanted.
        schemas: serialized schemas of the topics, by the CRC32C that Batches have of theirs. One
            that is not among them is read from its Batch.

    Attributes:
        options: of the read.
        shape: the columns wanted.
    """

    def __init__(self, options: ReadOptions, shape: Shape, schemas: Mapping[int, bytes]) -> None:
        self.options = options
        self.shape = shape
        self._schemas = schemas
        self._skipped = 0

    def read(self, task: TaskInput) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task.

        Raises:
            DataLossError: an object is gone.
            CorruptDataError: an object is damaged.
            SchemaMismatchError: a column has another type than the topic's newest schema says.
            MemqError: storage or brokers failed.
        """
        target = self.shape.arrow()
        view = self._statuses if self.options.view == "messages" else self._records
        with open_objects(self.options) as get_range:
            for wanted in task.ranges:
                try:
                    yield from view(target, wanted, get_range)
                except MemqError as exc:
                    if not self.options.passes(exc):
                        raise
                    yield from self._unread(target, wanted, exc)
        if self._skipped:
            skipped = counted(self._skipped, "Message")
            log.warning("MemQ %s: skipped %s", self.options.subject, skipped)

    def _records(
        self, target: pa.Schema, wanted: MessageRange, get_range: GetRange
    ) -> Iterator[pa.RecordBatch]:
        batch, start, end = wanted
        index = _index_of(batch, get_range)
        for entry, rows in self._read(batch, index, index.entries[start:end], get_range):
            if isinstance(rows, MemqError):
                self._skip(1, rows)
                continue
            with naming(batch):
                origin = origin_of(batch, entry)
                projected = project(target, self.shape.own, rows, origin, self.options.maps)
            yield projected

    def _statuses(
        self, target: pa.Schema, wanted: MessageRange, get_range: GetRange
    ) -> Iterator[pa.RecordBatch]:
        batch, start, end = wanted
        index = _index_of(batch, get_range)
        entries = index.entries[start:end]
        statuses = {entry.offset: MessageStatus(entry, OK) for entry in entries}
        if MESSAGE_CHECKED & set(target.names):
            for entry, rows in self._read(batch, index, entries, get_range):
                if isinstance(rows, MemqError):
                    self._skip(1, rows)
                    statuses[entry.offset] = MessageStatus(entry, DAMAGED, str(rows))
        yield status_rows(target, batch, statuses.values())

    def _read(
        self,
        batch: PublishedBatch,
        index: BatchIndex,
        entries: Sequence[IndexEntry],
        get_range: GetRange,
    ) -> Iterator[tuple[IndexEntry, pa.RecordBatch | MemqError]]:
        """Some Messages of a Batch, one after the other: their rows, or why there are none."""
        with naming(batch):
            schema = self._schema(batch, index, get_range)
        for group in _groups(entries):
            start = group[0].offset
            length = group[-1].offset + group[-1].length - start
            with naming(batch):
                data = view_bytes(get_range(batch, start, length))
            for entry in group:
                part = data[entry.offset - start : entry.offset - start + entry.length]
                yield entry, self._open(batch, entry, part, schema)

    def _open(
        self, batch: PublishedBatch, entry: IndexEntry, data: memoryview, schema: pa.Schema
    ) -> pa.RecordBatch | MemqError:
        try:
            with naming(batch, f", Message {entry.sequence} of producer {entry.producer_id!r}"):
                return message_from_range(data, entry, schema)
        except MemqError as exc:
            if not self.options.permissive:
                raise
            return exc

    def _schema(self, batch: PublishedBatch, index: BatchIndex, get_range: GetRange) -> pa.Schema:
        known = self._schemas.get(index.metadata.schema_crc32c)
        if known is not None:
            return _deserialized(known)
        return schema_from_range(get_range(batch, 0, index.schema_length), index)

    def _unread(
        self, target: pa.Schema, wanted: MessageRange, error: MemqError
    ) -> Iterator[pa.RecordBatch]:
        self._skip(wanted.end - wanted.start, error)
        if self.options.view == "messages":
            status = MISSING if isinstance(error, DataLossError) else DAMAGED
            yield unread_rows(target, wanted, status, str(error))

    def _skip(self, messages: int, error: MemqError) -> None:
        self._skipped += messages
        if self._skipped - messages < MAX_COMPLAINTS:
            log.warning("MemQ skipped %s: %s", counted(messages, "Message"), error)


def _index_of(batch: PublishedBatch, get_range: GetRange) -> BatchIndex:
    with naming(batch):
        return read_index(batch.notification, partial(get_range, batch))


def schemas_by_crc(schemas: Mapping[str, bytes]) -> dict[int, bytes]:
    """Serialized schemas by what a Batch says of its own."""
    return {crc32c(data): data for data in schemas.values()}


@lru_cache(maxsize=64)  # a topic has few
def _deserialized(schema: bytes) -> pa.Schema:
    return deserialize_schema(schema)


def _groups(entries: Sequence[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Messages that stand side by side, up to `READ_BYTES` together."""
    group: list[IndexEntry] = []
    for entry in entries:
        if group and (
            entry.offset != group[-1].offset + group[-1].length
            or entry.offset + entry.length - group[0].offset > READ_BYTES
        ):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
