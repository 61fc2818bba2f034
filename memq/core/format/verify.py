"""Verification: is every byte of an object what was written, and is the index true?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.core.format.envelope import view_bytes
from memq.core.format.index import BatchIndex, BatchMetadata, IndexEntry, decode_tail
from memq.core.format.message import timestamp_range_us
from memq.core.format.reader import check_crc32c, message_from_range, structure_findings
from memq.core.format.schema import deserialize_schema
from memq.errors import CorruptDataError, MemqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from memq.core.format.envelope import BytesLike


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        findings: what does not hold, one sentence each, naming where; empty for a sound Batch.
        size_bytes: of the object.
        metadata: of the Batch; None when the index could not be read.
        messages: Messages in the index.
        records: LogMessages, by the index.
    """

    findings: tuple[str, ...]
    size_bytes: int
    metadata: BatchMetadata | None = None
    messages: int = 0
    records: int = 0

    @property
    def ok(self) -> bool:
        """Whether the Batch is sound."""
        return not self.findings


def verify(buffer: BytesLike) -> VerifyReport:
    """Check every byte of an object; never raises for what it finds in it.

    Checked are footer, index and every CRC32C; that schema message, Messages and marker fill the
    object without a gap; that each Message decodes soundly to the records and within the timestamps
    that the index claims; and that no Message is in it twice.
    """
    view = view_bytes(buffer)
    try:
        index = decode_tail(view, len(view))
    except MemqError as exc:
        return VerifyReport((f"Index or footer: {exc}",), len(view))
    return VerifyReport(
        findings=tuple(_findings(view, index)),
        size_bytes=len(view),
        metadata=index.metadata,
        messages=len(index.entries),
        records=sum(entry.records for entry in index.entries),
    )


def _findings(view: memoryview, index: BatchIndex) -> Iterator[str]:
    structural = list(structure_findings(view, index))
    yield from structural
    schema = None
    if not structural:
        try:
            schema = deserialize_schema(view[: index.schema_length])
        except MemqError as exc:
            yield f"The schema message: {exc}"
    if sum(max(entry.length, 0) for entry in index.entries) > len(view):
        return  # they overlap, as was found: each could be as long as the object
    for entry in index.entries:
        data = view[max(entry.offset, 0) : max(entry.offset + entry.length, 0)]
        try:
            _check_message(data, entry, schema, index.metadata.time_column)
        except MemqError as exc:
            yield str(exc)
    yield from _duplicates(index.entries)


def _check_message(
    data: memoryview, entry: IndexEntry, schema: pa.Schema | None, time_column: str
) -> None:
    if schema is None:  # nothing to decode with
        check_crc32c(data, entry)
        return
    least, greatest = timestamp_range_us(message_from_range(data, entry, schema), time_column)
    if not entry.min_timestamp_us <= least <= greatest <= entry.max_timestamp_us:
        raise CorruptDataError(
            f"Message at byte {entry.offset}: its timestamps reach from {least} to {greatest} us; "
            f"the index says {entry.min_timestamp_us} to {entry.max_timestamp_us}"
        )


def _duplicates(entries: list[IndexEntry]) -> Iterator[str]:
    counts = Counter((entry.producer_id, entry.epoch, entry.sequence) for entry in entries)
    for (producer_id, epoch, sequence), count in counts.items():
        if count > 1:
            yield (
                f"Producer {producer_id!r}, epoch {epoch}, sequence {sequence} is in the Batch "
                f"{count} times"
            )
