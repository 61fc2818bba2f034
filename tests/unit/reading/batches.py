"""Batch objects for tests, made as a broker makes them."""

from typing import NamedTuple

import pyarrow as pa

from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder, SealedBatch
from memq.core.format.message import encode_message, encode_records, timestamp_range_us
from memq.core.format.schema import serialize_schema
from memq.core.notification import NOTIFICATION_VERSION, Notification


class Sent(NamedTuple):
    """A Message: who sent it, under which number, and its rows."""

    producer_id: str
    sequence: int
    rows: pa.RecordBatch
    epoch: int = 0


def records(*values: bytes | None, keys=None, headers=None, times_us=None) -> pa.RecordBatch:
    """Rows of the default schema."""
    return encode_records(keys, values, headers, times_us or list(range(len(values))))


def seal(*messages: Sent, compression: str | None = None, **names) -> SealedBatch:
    """A Batch of some Messages."""
    names = {"batch_id": "b", "topic": "t", "write_partition": 0} | names
    builder = BatchBuilder(serialize_schema(messages[0].rows.schema), **names)
    for message in messages:
        body = encode_message(message.rows, compression)
        least, greatest = timestamp_range_us(message.rows)
        builder.add(
            body,
            producer_id=message.producer_id,
            epoch=message.epoch,
            sequence=message.sequence,
            records=message.rows.num_rows,
            min_timestamp_us=least,
            max_timestamp_us=greatest,
            crc32c=crc32c(body),
        )
    return builder.seal()


def notify(sealed: SealedBatch, uri: str = "memory:b") -> Notification:
    """The notification of a Batch."""
    least, greatest = sealed.timestamp_range_us
    return Notification(
        version=NOTIFICATION_VERSION,
        topic=sealed.metadata.topic,
        topic_id="0" * 16,
        write_partition=sealed.metadata.write_partition,
        batch_id=sealed.metadata.batch_id,
        uri=uri,
        size_bytes=sealed.size_bytes,
        index_offset=sealed.index_offset,
        messages=sealed.messages,
        records=sealed.records,
        min_timestamp_us=least,
        max_timestamp_us=greatest,
        producers=sealed.producers,
        schema_id="s",
        broker_id="broker",
        sealed_ms=0,
        stored_through_ms=0,
    )


def object_bytes(sealed: SealedBatch) -> bytes:
    """The bytes of the object."""
    return b"".join(map(bytes, sealed.buffers))
