"""The log of a topic, as readers need it: which Batches it has, and which of them are retained.

The brokers keep it. A reader is given something that makes the calls of `TopicLog`:
`memq.client.topic.TopicClient`, or a list in a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from memq.core.notification import PublishedBatch, decode_notification
from memq.core.ranges import offsets_in_words, retained_in_words
from memq.errors import CorruptDataError, InvalidRequestError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from memq.core.named_values import NamedValues
    from memq.core.ranges import OffsetRange
    from memq.core.wire.messages import NotificationEntry, PartitionOffsets, TopicInfo, TopicRequest
    from memq.runtime.retry import Retry


class RetainedSince(NamedTuple):
    """Since when all that was published to a read partition is retained.

    Attributes:
        partition: read partition.
        since_ms: what was published at this time or later is retained, milliseconds since 1970 UTC;
            minus infinity where nothing was ever removed.
    """

    partition: int
    since_ms: float


class TopicLog(Protocol):
    """The calls that reading makes; `memq.client.topic.TopicClient` says what they promise."""

    topic: str
    topic_id: str

    @property
    def storage_options(self) -> NamedValues:
        """Options of the object store, as they were given."""

    async def options_for(self, uri: str) -> NamedValues:
        """Return the options with which an object of the topic is read."""

    def retry(self) -> Retry:
        """Begin the attempts of a call that is made of several."""

    async def info(self) -> TopicInfo:
        """Return the topic as it is now."""

    async def offsets(self, at_ms: int | None = None) -> list[PartitionOffsets]:
        """Return start and end of every partition, and the first offset since a time."""

    async def retained_since(self) -> list[RetainedSince]:
        """Return since when each read partition is retained in full."""

    def batches(self, ranges: Iterable[OffsetRange]) -> AsyncGenerator[PublishedBatch, None]:
        """Yield the Batches of some ranges, one range after the other."""

    async def read(
        self, request: TopicRequest, *, timeout_s: float | None = None
    ) -> tuple[Any, memoryview]:
        """Ask a broker: header and body of the answer."""


def published_batch(topic: str, entry: NotificationEntry) -> PublishedBatch:
    """Decode an entry of a topic's log.

    Raises:
        CorruptDataError: it is no notification; the message says where it stands.
    """
    try:
        notification = decode_notification(entry.payload)
    except CorruptDataError as exc:
        raise CorruptDataError(f"{topic}/{entry.partition} offset {entry.offset}: {exc}") from exc
    return PublishedBatch(entry.partition, entry.offset, entry.timestamp_ms, notification)


def check_retained(topic: str, wanted: OffsetRange, retained: Sequence[PartitionOffsets]) -> None:
    """Check that a range can be read in full.

    Raises:
        InvalidRequestError: the topic has no such partition, or this is no range.
        OffsetOutOfRangeError: some of the offsets are not retained, or not published yet.
    """
    partition, start, end, _ = wanted
    if not 0 <= partition < len(retained):
        raise InvalidRequestError(
            f"topic {topic!r} has no partition {partition}; it has 0 to {len(retained) - 1}"
        )
    if not 0 <= start <= end:
        raise InvalidRequestError(
            f"{topic}/{partition} from {start} to {end} is no range of offsets; write the first "
            "offset, 0 or more, and then one past the last"
        )
    there = retained[partition]
    if start < end and not there.start <= start <= end <= there.end:
        raise OffsetOutOfRangeError(
            f"{offsets_in_words(start, end)} of {topic}/{partition}: not retained in full; "
            f"{retained_in_words(there.start, there.end)}. What comes before was removed by "
            "retention, what comes after is not published yet"
        )
