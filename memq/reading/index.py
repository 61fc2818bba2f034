"""The index of a Batch against its notification: each has a checksum of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memq.core.format.batch import producer_runs
from memq.core.format.index import decode_tail
from memq.core.units import counted
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memq.core.format.index import BatchIndex
    from memq.core.notification import Notification


def read_index(notification: Notification, get_range: Callable[[int, int], Any]) -> BatchIndex:
    """Read the index of a Batch, in one read.

    Args:
        notification: of the Batch.
        get_range: reads the object: first byte, and how many; fewer where it ends sooner.

    Raises:
        CorruptDataError: it is damaged, or not the one that the notification speaks of.
        MemqError: as `get_range`.
    """
    start, size = notification.index_offset, notification.size_bytes
    tail = get_range(start, size - start)
    check_length(tail, size - start)
    index = decode_tail(tail, size)
    for difference in differences(notification, index, size):
        raise CorruptDataError(difference)
    return index


def check_length(data: Any, length: int) -> None:
    """Check that as many bytes are there as a notification says.

    Raises:
        CorruptDataError: they are not.
    """
    if len(data) != length:
        raise CorruptDataError(
            f"its notification says {counted(length, 'byte')}, but {len(data)} are there"
        )


def differences(notification: Notification, index: BatchIndex, size_bytes: int) -> Iterator[str]:
    """Yield what a notification says that is not so, as sentences.

    Args:
        notification: of a Batch; without the names of its Messages (`()`) these are not compared.
        index: of the object that it names.
        size_bytes: of that object.
    """
    actual: dict[str, Any] = {
        "batch_id": index.metadata.batch_id,
        "topic": index.metadata.topic,
        "write_partition": index.metadata.write_partition,
        "size_bytes": size_bytes,
        "index_offset": index.offset,
        "messages": len(index.entries),
        "records": sum(entry.records for entry in index.entries),
    }
    if isinstance(notification.producers, list):  # a plan keeps none, as a tuple
        actual["producers"] = producer_runs(index.entries)
    for name, value in actual.items():
        said = getattr(notification, name)
        if said != value:
            yield f"its notification says {name} = {said!r}; it is {value!r}"
