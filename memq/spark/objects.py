"""Reading ranges of objects on workers and driver: from storage, or through a broker."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memq.client.objects import MAX_OBJECT_BYTES, RANGE_BYTES
from memq.core.format.index import decode_tail
from memq.core.retry import BROKER_BACKOFF
from memq.core.runtime import SYSTEM
from memq.core.storage.open import open_uri
from memq.core.wire.messages import FetchBatch
from memq.errors import CorruptDataError, DataLossError, MemqError, ObjectNotFoundError
from memq.spark.driver import REQUEST_TIMEOUT_S, Driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from memq.core.format.index import BatchIndex
    from memq.spark.options import ReadOptions
    from memq.spark.plan import StoredBatch


class Objects:
    """The objects of a topic, by range. Use it with `with`; any thread may read.

    Args:
        options: of the read.

    Attributes:
        topic: the topic.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.topic = options.topic
        self._driver = Driver(options) if options.read_through == "broker" else None

    def __repr__(self) -> str:
        return f"<Objects of {self.topic} through {self._driver or 'storage'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._driver is not None:
            self._driver.close()

    def get_range(self, uri: str, start: int, length: int) -> Any:
        """Bytes of an object; what may pass is tried again for `REQUEST_TIMEOUT_S`.

        Raises:
            CorruptDataError: no object can have these bytes.
            ObjectNotFoundError: there is no such object.
            MemqError: storage or brokers failed until the deadline.
        """
        if start < 0 or length < 0 or start + length > MAX_OBJECT_BYTES:
            raise CorruptDataError(
                f"bytes {start} to {start + length} are asked for; an object has up to "
                f"{MAX_OBJECT_BYTES}"
            )
        deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
        attempt = 0
        while True:
            try:
                return self._get(uri, start, length)
            except MemqError as exc:
                delay_s = BROKER_BACKOFF.full_jitter_s(attempt, SYSTEM.random)
                if not exc.retriable or time.monotonic() + delay_s >= deadline_s:
                    raise
            time.sleep(delay_s)
            attempt += 1

    def _get(self, uri: str, start: int, length: int) -> Any:
        if self._driver is None:
            storage, key = open_uri(uri)
            return storage.get_range(key, start, length)
        data = bytearray()
        while len(data) < length:
            wanted = min(RANGE_BYTES, length - len(data))
            body = self._driver.ask(
                FetchBatch(topic=self.topic, uri=uri, start=start + len(data), length=wanted)
            )
            data += body
            if len(body) < wanted:
                break
        return data


def name_of(topic: str, batch: StoredBatch) -> str:
    """A Batch, for error messages."""
    return (
        f"Batch {batch.batch_id} at {topic}, read partition {batch.partition}, offset "
        f"{batch.offset} ({batch.uri})"
    )


@contextmanager
def naming(topic: str, batch: StoredBatch, what: str = "") -> Iterator[None]:
    """Let errors name the Batch, and what of it.

    Raises:
        DataLossError: in place of `ObjectNotFoundError`.
        MemqError: of the type that it had.
    """
    try:
        yield
    except ObjectNotFoundError as exc:
        raise DataLossError(
            f"{name_of(topic, batch)} is gone, though its notification is held. If this machine "
            "does not share the brokers' storage, set readThrough to broker; mode=permissive or "
            "failOnDataLoss=false read on without it"
        ) from exc
    except MemqError as exc:
        raise type(exc)(f"{name_of(topic, batch)}{what}: {exc}") from exc


def read_index(objects: Objects, batch: StoredBatch) -> BatchIndex:
    """The index of a Batch, in one read.

    Raises:
        CorruptDataError: it is damaged, or belongs to another Batch.
        DataLossError: there is no such object.
        MemqError: storage or brokers failed.
    """
    with naming(objects.topic, batch):
        length = batch.size_bytes - batch.index_offset
        tail = objects.get_range(batch.uri, batch.index_offset, length)
        if len(tail) != length:
            raise CorruptDataError(
                f"its notification says {batch.size_bytes} bytes, but the last {length} were read "
                f"as {len(tail)}"
            )
        index = decode_tail(tail, batch.size_bytes)
        if index.metadata.batch_id != batch.batch_id:
            raise CorruptDataError(f"the object holds Batch {index.metadata.batch_id}")
        if len(index.entries) != batch.messages:
            raise CorruptDataError(
                f"its index names {len(index.entries)} Messages, its notification {batch.messages}"
            )
        return index
