"""The seam to Kafka: what the queue needs of a client, so that a simulation can stand in for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memq.errors import MemqError

    OnFailure = Callable[[str, Exception], None]

log = logging.getLogger(__name__)


def log_failure(where: str, error: Exception) -> None:
    """Log what nothing expected, whole, where nobody else is told of it."""
    log.critical("%s: the queue in Kafka does not work any more", where, exc_info=error)


class Place(NamedTuple):
    """A partition of a topic of Kafka."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class KafkaRecord(NamedTuple):
    """A record as it is read.

    Attributes:
        offset: in its partition.
        timestamp_ms: as it was written, milliseconds since 1970 UTC.
        value: its bytes; None for one that only says that its key is gone.
        key: its key.
        running_ms: as it was written.
    """

    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None = None
    running_ms: int = 0


class NewRecord(NamedTuple):
    """A record to write; see `KafkaRecord`."""

    place: Place
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    running_ms: int = 0


class Bounds(NamedTuple):
    """What a partition has.

    Attributes:
        start: first offset that is retained.
        stable: all before it is committed or aborted, and can be read.
        written: one past the last record or marker of any transaction, open ones too.
    """

    start: int
    stable: int
    written: int


class Reader(Protocol):
    """A follower of a partition; called on the event loop, in the order of the offsets.

    It may be told late, and of a marker at the end never: a caller that must know reads by itself.
    """

    def read(self, records: Sequence[KafkaRecord], reached: int) -> None:
        """Take the next entries; everything before the offset `reached` has been read."""

    def failed(self, error: MemqError) -> None:
        """There is nothing to follow any more: the topic or the offset is gone."""


class Transactions(Protocol):
    """The one producer of a transactional id.

    Attributes:
        over: it takes nothing more; to go on, the caller makes another one.
    """

    @property
    def over(self) -> bool: ...  # noqa: D102 - above

    async def commit(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records in one transaction, in order and durably. Returns their offsets.

        Raises:
            PublishUncertainError: it may have been committed; it is `over`. The transaction has
                ended one way or the other once another producer of this id was made.
            FencedError: another producer of this id was made, and nothing was committed; `over`.
            QueueError: nothing was committed.
        """

    def close(self) -> None:
        """End without waiting; a transaction that is open is left to Kafka's time limit."""


class KafkaClient(Protocol):
    """A client of Kafka. Every method may raise `QueueError`, when nothing is known to be done."""

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> int:
        """Make a topic and wait until it serves. Returns its partitions: of one that is there, too.

        Args:
            name: of the topic.
            partitions: how many.
            settings: Kafka's, over those that the user gave for every topic.
        """

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and wait until it is gone; an unknown one is fine."""

    async def cluster_id(self) -> str:
        """Return Kafka's name for its cluster; empty when it does not say."""

    async def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic there is."""

    async def bounds(self, places: Sequence[Place]) -> list[Bounds]:
        """Ask the leaders what each of these partitions has now.

        Raises:
            UnknownTopicError: there is no such partition.
        """

    async def read(
        self, place: Place, start: int, end: int, *, max_records: int, max_bytes: int
    ) -> list[KafkaRecord]:
        """Committed records between two offsets, from the first on; none when there are none.

        At least one, if there is one, whatever `max_bytes` says; a page may end before any limit.
        `end` is not after `stable`.

        Raises:
            OffsetOutOfRangeError: `start` is not retained.
            UnknownTopicError: there is no such partition.
        """

    def follow(self, place: Place, offset: int, reader: Reader) -> None:
        """Tell this reader, and no other, what is committed from an offset on."""

    def unfollow(self, place: Place) -> None:
        """Tell of it no more."""

    async def delete_records(self, place: Place, offset: int) -> None:
        """Forget what is before an offset."""

    async def append(self, place: Place, records: Sequence[NewRecord]) -> None:
        """Write records after those that are there, durably, at neighbouring offsets.

        It is for a partition that nobody else writes to.

        Raises:
            QueueError: some may be written.
        """

    async def transactions(self, transactional_id: str) -> Transactions:
        """Make a producer, the only one of its id from now on.

        What an earlier one has begun is committed or aborted when this returns.
        """

    async def close(self) -> None:
        """Let go of threads and connections."""
