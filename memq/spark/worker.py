"""What a task does: read its pieces straight from storage, one Arrow batch for each Message.

Of each Batch the index is read first, then the Messages by range, and each is checked against its
CRC32C before it becomes rows. Whatever cannot be read is one error that names object, read
partition and offset; with `mode=permissive` it is skipped, logged and counted.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from memq.core.checksum import crc32c
from memq.core.format.envelope import view_bytes
from memq.core.format.reader import message_from_range, schema_from_range
from memq.core.format.schema import deserialize_schema
from memq.errors import DataLossError, MemqError
from memq.spark.columns import Shape, origin_of, project
from memq.spark.messages import (
    CHECKED,
    DAMAGED,
    MISSING,
    OK,
    REPEAT,
    State,
    state_rows,
    unread_rows,
)
from memq.spark.objects import Objects, naming, read_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from memq.core.format.index import BatchIndex, IndexEntry
    from memq.spark.options import ReadOptions
    from memq.spark.plan import Piece, Split

log = logging.getLogger("memq.spark")

READ_BYTES = 1 << 20  # small Messages are read together up to this; larger ones each by itself
MAX_COMPLAINTS = 20  # log lines of one task about what it skips; the last one counts the rest


class Rows(NamedTuple):
    """A Message that was read: its rows, or why there are none."""

    entry: IndexEntry
    rows: pa.RecordBatch | None
    error: MemqError | None = None


class Task:
    """Reads splits.

    Args:
        options: of the read.
        shape: the columns wanted.
        schemas: serialized schemas of the topic, by the CRC32C that Batches have of theirs.

    Attributes:
        options: of the read.
        shape: the columns wanted.
    """

    def __init__(self, options: ReadOptions, shape: Shape, schemas: Mapping[int, bytes]) -> None:
        self.options = options
        self.shape = shape
        self._schemas = schemas
        self._skipped = 0

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split.

        Raises:
            DataLossError: an object is gone.
            CorruptDataError: an object is damaged.
            SchemaMismatchError: a column has another type than the topic's newest schema says.
            MemqError: storage or brokers failed.
        """
        target = self.shape.arrow()
        view = self._messages if self.options.view == "messages" else self._records
        with Objects(self.options) as objects:
            for piece in split.pieces:
                try:
                    yield from view(target, piece, objects)
                except MemqError as exc:
                    if not self.options.passes(exc):
                        raise
                    yield from self._unread(target, piece, exc)
        if self._skipped:
            topic = self.options.topic
            log.warning("MemQ topic %s: skipped %d Messages in all", topic, self._skipped)

    def _records(
        self, target: pa.Schema, piece: Piece, objects: Objects
    ) -> Iterator[pa.RecordBatch]:
        index = read_index(objects, piece.batch)
        wanted = [
            index.entries[at] for at in range(piece.first, piece.last) if at not in piece.repeats
        ]
        for entry, rows, error in self._read(piece, index, wanted, objects):
            if rows is not None:
                origin = origin_of(self.options.topic, piece.batch, entry)
                with naming(self.options.topic, piece.batch):
                    projected = project(target, self.shape.own, rows, origin)
                yield projected
            elif error is not None:
                self._skip(1, error)

    def _messages(
        self, target: pa.Schema, piece: Piece, objects: Objects
    ) -> Iterator[pa.RecordBatch]:
        index = read_index(objects, piece.batch)
        states: dict[int, State] = {}
        wanted = []
        for at in range(piece.first, piece.last):
            entry = index.entries[at]
            states[entry.offset] = State(entry, REPEAT if at in piece.repeats else OK)
            if at not in piece.repeats:
                wanted.append(entry)
        if CHECKED & set(target.names):
            for entry, _, error in self._read(piece, index, wanted, objects):
                if error is not None:
                    self._skip(1, error)
                    states[entry.offset] = State(entry, DAMAGED, str(error))
        yield state_rows(target, self.options.topic, piece.batch, states.values())

    def _read(
        self, piece: Piece, index: BatchIndex, wanted: Sequence[IndexEntry], objects: Objects
    ) -> Iterator[Rows]:
        """Some Messages of a Batch, one after the other."""
        with naming(self.options.topic, piece.batch):
            schema = self._schema(piece, index, objects)
        for group in _groups(wanted):
            start = group[0].offset
            length = group[-1].offset + group[-1].length - start
            with naming(self.options.topic, piece.batch):
                data = view_bytes(objects.get_range(piece.batch.uri, start, length))
            for entry in group:
                part = data[entry.offset - start : entry.offset - start + entry.length]
                yield self._open(piece, entry, part, schema)

    def _open(self, piece: Piece, entry: IndexEntry, data: memoryview, schema: pa.Schema) -> Rows:
        try:
            with naming(
                self.options.topic,
                piece.batch,
                f", Message {entry.sequence} of producer {entry.producer_id!r}",
            ):
                return Rows(entry, message_from_range(data, entry, schema))
        except MemqError as exc:
            if not self.options.permissive:
                raise
            return Rows(entry, None, exc)

    def _schema(self, piece: Piece, index: BatchIndex, objects: Objects) -> pa.Schema:
        known = self._schemas.get(index.metadata.schema_crc32c)
        if known is not None:
            return _deserialized(known)
        data = objects.get_range(piece.batch.uri, 0, index.schema_length)
        return schema_from_range(data, index)

    def _unread(
        self, target: pa.Schema, piece: Piece, error: MemqError
    ) -> Iterator[pa.RecordBatch]:
        self._skip(piece.last - piece.first, error)
        if self.options.view == "messages":
            status = MISSING if isinstance(error, DataLossError) else DAMAGED
            yield unread_rows(target, self.options.topic, piece, status, str(error))

    def _skip(self, messages: int, error: MemqError) -> None:
        self._skipped += messages
        if self._skipped - messages < MAX_COMPLAINTS:
            log.warning("MemQ skipped %d Messages: %s", messages, error)


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
