"""A Notification: what the queue says about one Batch.

It is small JSON, so that it can be read in a terminal, and it holds all that a planner needs:
which object, how large, how many records, between which times, from which producers. Consumers,
Spark and the audit plan from Notifications alone and touch the object only to read it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from memq.core.decoding import Int64, check_version, decode_stored
from memq.core.format.batch import ProducerRun

NOTIFICATION_VERSION = 2


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """What the queue says about one Batch.

    Attributes:
        version: of this format.
        topic: the topic.
        topic_id: of the topic.
        write_partition: the write partition that sealed the Batch.
        batch_id: unique name of the Batch.
        uri: of the object, complete. Stored, it has the storage's root of that time; told by a
            broker, the present one.
        size_bytes: of the object.
        index_offset: where the index begins in the object; it reaches to the end.
        messages: Messages in the Batch.
        records: LogMessages in the Batch.
        min_timestamp_us: least LogMessage timestamp, microseconds since 1970 UTC.
        max_timestamp_us: greatest LogMessage timestamp.
        producers: runs of consecutive sequences per producer and epoch, sorted.
        schema_id: the schema of the Batch.
        broker_id: who sealed it.
        sealed_ms: when it was sealed, by the broker's clock.
        stored_through_ms: every Message that this write partition received before this time and
            acked is in this Batch or an earlier one.
    """

    version: Int64
    topic: str
    topic_id: str
    write_partition: Int64
    batch_id: str
    uri: str
    size_bytes: Int64
    index_offset: Int64
    messages: Int64
    records: Int64
    min_timestamp_us: Int64
    max_timestamp_us: Int64
    producers: list[ProducerRun]
    schema_id: str
    broker_id: str
    sealed_ms: Int64
    stored_through_ms: Int64


class PublishedBatch(NamedTuple):
    """A Batch as its topic has it: a Notification at its offset.

    Attributes:
        partition: read partition.
        offset: of the Notification in it.
        timestamp_ms: when it was published, milliseconds since 1970 UTC, by the broker's clock.
        notification: what it says.
    """

    partition: int
    offset: int
    timestamp_ms: int
    notification: Notification

    def __str__(self) -> str:
        """It as error messages name it."""
        it = self.notification
        return f"Batch {it.batch_id} at {it.topic}/{self.partition} offset {self.offset} ({it.uri})"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Notification)


def encode_notification(notification: Notification) -> bytes:
    """Encode a Notification as JSON."""
    return _encoder.encode(notification)


def decode_notification(payload: bytes) -> Notification:
    """Decode a Notification from its JSON.

    Raises:
        CorruptDataError: it is not a Notification, or of a version this reader does not know.
    """
    found = decode_stored(_decoder.decode, payload, "a notification")
    check_version(found.version, NOTIFICATION_VERSION, "notification")
    return found
