"""How fast Batches are read: `python -m benchmarks.consumer`.

Batches of the default 8 MiB lie as files in the page cache. One thread does what a consumer's
fetch threads do: read the object, check every CRC32C, decode. Then the application's part: the rows
as an Arrow table, or as one LogMessage after the other. The best of some repetitions counts. The
limit is reading the same files and touching nothing of them.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder, SealedBatch
from memq.core.format.message import encode_message, encode_records
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.notification import NOTIFICATION_VERSION, Notification, PublishedBatch
from memq.reading.objects import decode
from memq.storage.local import LocalStorage
from memq.storage.open import open_uri

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.reading.batch import Batch, Order

BATCH_BYTES = 8 << 20
BATCHES = 8
REPETITIONS = 5
ITERATE_AIM, ARROW_AIM = 1.5e6, 20e6  # records/s at 100 B

Row = tuple[str, str, str]


def seal(value_bytes: int, message_records: int, batch_id: str) -> SealedBatch:
    """A Batch of about `BATCH_BYTES`."""
    builder = BatchBuilder(
        serialize_schema(DEFAULT_SCHEMA), batch_id=batch_id, topic="t", write_partition=0
    )
    noise = os.urandom(value_bytes + message_records)
    values = [noise[n : n + value_bytes] for n in range(message_records)]
    body = encode_message(encode_records(None, values, None, range(message_records)))
    crc = crc32c(body)
    while builder.size_bytes < BATCH_BYTES:
        builder.add(
            body,
            producer_id="p",
            epoch=0,
            sequence=builder.messages,
            records=message_records,
            min_timestamp_us=0,
            max_timestamp_us=message_records - 1,
            crc32c=crc,
        )
    return builder.seal()


def store(storage: LocalStorage, value_bytes: int, message_records: int) -> list[Notification]:
    """Put some Batches; what the queue would say about them."""
    notifications = []
    for number in range(BATCHES):
        batch_id = f"{value_bytes}-{message_records}-{number}"
        sealed = seal(value_bytes, message_records, batch_id)
        storage.put(batch_id, sealed.buffers, timeout_s=60)
        notifications.append(
            Notification(
                version=NOTIFICATION_VERSION,
                topic="t",
                topic_id="0" * 16,
                write_partition=0,
                batch_id=batch_id,
                uri=storage.uri(batch_id),
                size_bytes=sealed.size_bytes,
                index_offset=sealed.index_offset,
                messages=sealed.messages,
                records=sealed.records,
                min_timestamp_us=0,
                max_timestamp_us=0,
                producers=sealed.producers,
                schema_id="",
                broker_id="",
                sealed_ms=0,
                stored_through_ms=0,
            )
        )
    return notifications


def read(notification: Notification) -> object:
    """The bytes of an object."""
    storage, key = open_uri(notification.uri)
    return storage.get(key)


def fetch(notification: Notification, order: Order = "none") -> Batch:
    """A Batch, checked and decoded."""
    return decode(read(notification), PublishedBatch(0, 0, 1, notification), order).batch


def iterate(notification: Notification, order: Order = "none") -> None:
    """Go through all LogMessages of a Batch."""
    for _ in fetch(notification, order):
        pass


def rate(notifications: list[Notification], work: Callable[[Notification], object]) -> float:
    """LogMessages a second, the best of some repetitions."""
    best_s = float("inf")
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        for notification in notifications:
            work(notification)
        best_s = min(best_s, time.perf_counter() - start)
    return sum(notification.records for notification in notifications) / best_s


def show(records_s: float, limit_s: float, value_bytes: int, aim: float | None) -> tuple[str, str]:
    """Figure and note of a rate."""
    figure = f"{records_s / 1e6:.1f} M records/s, {records_s * value_bytes / 1e6:,.0f} MB/s"
    note = f"{records_s / limit_s:.0%} of only reading the files"
    return figure, f"{note}; {records_s / aim:.1f} x the aim" if aim else note


def run() -> list[Row]:
    """Measure all."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(Path(folder))
        for value_bytes, message_records in ((100, 8000), (100, 500), (1024, 1000)):
            stored = store(storage, value_bytes, message_records)
            limit_s = rate(stored, read)
            typical = value_bytes == 100 and message_records == 8000
            for what, work, aim in (
                ("as an Arrow table", lambda n: fetch(n).to_arrow(), ARROW_AIM),
                ("as LogMessages", iterate, ITERATE_AIM),
                ("as LogMessages in key order", lambda n: iterate(n, "key"), None),
            ):
                figures = show(rate(stored, work), limit_s, value_bytes, aim if typical else None)
                name = f"{value_bytes} B values, {message_records} in a Message, {what}"
                rows.append((name, *figures))
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
