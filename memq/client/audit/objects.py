"""Looking into a Batch for the audit: its index alone, or every byte.

An object is called gone only when the broker does not find it either: a machine that cannot reach
the brokers' storage, or sees another one under the same name, would else report everything as lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memq.client.source import MAX_OBJECT_BYTES, RANGE_BYTES
from memq.core.format.batch import producer_runs
from memq.core.format.index import decode_tail
from memq.core.format.reader import check_crc32c, message_from_range, read_index, schema_from_range
from memq.core.format.verify import verify
from memq.core.storage.open import open_uri
from memq.core.wire.messages import FetchBatch
from memq.errors import (
    ConfigError,
    CorruptDataError,
    InvalidRequestError,
    MemqError,
    ObjectNotFoundError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from memq.client.topic import TopicClient
    from memq.core.format.batch import ProducerRun
    from memq.core.format.index import BatchIndex, IndexEntry
    from memq.core.notification.notification import Notification

BROKER_TIMEOUT_S = 10.0  # of one range; an object that the broker cannot read either costs this

GetRange = Callable[[int, int], Any]
"""The bytes of an object from a start on, of a length; fewer where it ends sooner."""


@dataclass(frozen=True)
class Inspection:
    """What was found in one Batch.

    Attributes:
        sound: Messages that are there, as far as was looked.
        damaged: Messages that cannot be read, as runs.
        findings: what does not hold, in plain sentences.
        gone: the object does not exist.
    """

    sound: Sequence[IndexEntry] = ()
    damaged: Sequence[ProducerRun] = ()
    findings: Sequence[str] = ()
    gone: bool = False


class ObjectReader:
    """Reads ranges of objects from worker threads: from storage, or else through the broker.

    Args:
        queue: of the topic.
        loop: on which the broker is asked.
    """

    def __init__(self, queue: TopicClient, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop

    def get_range(self, uri: str, start: int, length: int) -> Any:
        """Bytes of an object; fewer where it ends sooner.

        Raises:
            CorruptDataError: no object can have these bytes.
            ObjectNotFoundError: neither this machine nor the broker finds it.
            StorageError: neither can read it.
            MemqError: the broker cannot be asked.
        """
        if start < 0 or length < 0 or start + length > MAX_OBJECT_BYTES:
            raise CorruptDataError(
                f"bytes {start} to {start + length} of {uri} are asked for, as its notification "
                f"says; an object has up to {MAX_OBJECT_BYTES}"
            )
        try:
            storage, key = open_uri(uri)
            return storage.get_range(key, start, length)
        except (ObjectNotFoundError, StorageError, ConfigError) as exc:
            try:
                asking = asyncio.run_coroutine_threadsafe(
                    self._through_broker(uri, start, length), self._loop
                )
                return asking.result()
            except InvalidRequestError as refusal:
                raise StorageError(f"{exc}; and through the broker: {refusal}") from exc

    async def _through_broker(self, uri: str, start: int, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            wanted = min(RANGE_BYTES, length - len(data))
            request = FetchBatch(
                topic=self._queue.topic, uri=uri, start=start + len(data), length=wanted
            )
            _, body = await self._queue.ask(request, timeout_s=BROKER_TIMEOUT_S)
            data += body
            if len(body) < wanted:
                break
        return data


def inspect(notification: Notification, get_range: GetRange, *, deep: bool) -> Inspection:
    """Look into the object that a notification names.

    Args:
        notification: the notification.
        get_range: reads the object.
        deep: check every byte, in place of the index alone.

    Raises:
        MemqError: neither storage nor broker could be asked, so nothing is known.
    """
    look = _look_deep if deep else _look
    try:
        return look(notification, get_range)
    except ObjectNotFoundError:
        return Inspection(findings=["the object does not exist"], gone=True)
    except (CorruptDataError, StorageError) as exc:
        return Inspection(damaged=notification.producers, findings=[str(exc)])


def _look(notification: Notification, get_range: GetRange) -> Inspection:
    index = read_index(get_range, notification.size_bytes)
    return Inspection(index.entries, findings=_disagreements(notification, index))


def _look_deep(notification: Notification, get_range: GetRange) -> Inspection:
    size = notification.size_bytes
    data = memoryview(get_range(0, size + 1)).cast("B")
    if len(data) != size:
        there = "more" if len(data) > size else str(len(data))
        raise CorruptDataError(f"its notification says {size} bytes, but {there} are there")
    index = decode_tail(data, size)
    disagreements = _disagreements(notification, index)
    report = verify(data)
    if report.ok:
        return Inspection(index.entries, findings=disagreements)
    schema = _schema(data, index)
    sound: list[IndexEntry] = []
    damaged: list[IndexEntry] = []
    for entry in index.entries:
        (sound if _is_sound(data, entry, schema) else damaged).append(entry)
    return Inspection(sound, producer_runs(damaged), [*disagreements, *report.findings])


def _disagreements(notification: Notification, index: BatchIndex) -> list[str]:
    """How notification and index contradict each other; both have their own checksum.

    Raises:
        CorruptDataError: the object is another Batch.
    """
    if index.metadata.batch_id != notification.batch_id:
        raise CorruptDataError(f"the object holds another Batch, {index.metadata.batch_id}")
    if producer_runs(index.entries) != notification.producers:
        return ["its notification and its index name different Messages"]
    return []


def _schema(data: memoryview, index: BatchIndex) -> pa.Schema | None:
    """The schema of a Batch, or None when it is damaged; `verify` has named how."""
    try:
        return schema_from_range(data[: index.schema_length], index)
    except MemqError:
        return None


def _is_sound(data: memoryview, entry: IndexEntry, schema: pa.Schema | None) -> bool:
    """Whether a Message is as it was sent; without a schema, as far as its CRC32C says."""
    part = data[max(0, entry.offset) : max(0, entry.offset + entry.length)]
    try:
        check_crc32c(part, entry)
        if schema is not None:
            message_from_range(part, entry, schema)
    except MemqError:
        return False
    return True
