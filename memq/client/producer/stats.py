"""What became of a producer's Messages, counted; and the failures that nobody has looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memq.client.producer.delivery import Delivery
    from memq.client.producer.state import Entry
    from memq.errors import MemqError

MAX_FAILED = 1_000  # failed deliveries kept to raise one that nobody has seen; one is enough


class ProducerStats(NamedTuple):
    """What a producer did so far.

    Attributes:
        acked_messages: Messages acked; with acks=0, sent.
        acked_records: records in them.
        acked_bytes: bytes in them.
        failed_messages: Messages given up.
        failed_records: records in them.
        in_flight: Messages without an answer now.
        unsettled: Messages sealed and not settled now.
        buffer_bytes: memory in use now.
    """

    acked_messages: int
    acked_records: int
    acked_bytes: int
    failed_messages: int
    failed_records: int
    in_flight: int
    unsettled: int
    buffer_bytes: int


class Outcomes:
    """Counts settled Messages, and remembers the failed ones until they are raised."""

    def __init__(self) -> None:
        self._acked_messages = self._acked_records = self._acked_bytes = 0
        self._failed_messages = self._failed_records = 0
        self._failed: list[Delivery] = []

    def __repr__(self) -> str:
        return f"<Outcomes [{self._acked_messages} acked | {self._failed_messages} failed]>"

    def settled(self, entry: Entry, error: MemqError | None) -> None:
        """The Message was acked, or given up with `error`."""
        message = entry.message
        if error is None:
            self._acked_messages += 1
            self._acked_records += message.records
            self._acked_bytes += message.size_bytes
            return
        self._failed_messages += 1
        self._failed_records += message.records
        if len(self._failed) < MAX_FAILED:
            self._failed.append(message.delivery)

    def raise_unseen(self) -> None:
        """Raise the first error that nobody was told by its delivery; each is raised once.

        Raises:
            MemqError: that error, with a note of how many there are.
        """
        failed, self._failed = self._failed, []
        errors = [delivery.exception() for delivery in failed if not delivery.seen]
        unseen = [error for error in errors if error is not None]
        if unseen:
            unseen[0].add_note(f"{len(unseen)} Messages failed and nobody had looked at them")
            raise unseen[0]

    def stats(self, *, in_flight: int, unsettled: int, buffer_bytes: int) -> ProducerStats:
        """The counts, with what is going on now."""
        return ProducerStats(
            self._acked_messages,
            self._acked_records,
            self._acked_bytes,
            self._failed_messages,
            self._failed_records,
            in_flight,
            unsettled,
            buffer_bytes,
        )
