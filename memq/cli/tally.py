"""What becomes of records that were written: counted as deliveries end, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from memq.errors import MemqError

if TYPE_CHECKING:
    from memq.client.producer.delivery import Delivery


class Tally:
    """Counts records and how many of them were acked.

    What is open is bounded by the producer's memory, as each delivery is a Message that it holds.

    Attributes:
        records: that were written.
        acked: of these, whose Message was acked.
        error: why the first Message that failed did so.
    """

    def __init__(self) -> None:
        self.records = 0
        self.acked = 0
        self.error: MemqError | None = None
        self._open: deque[tuple[Delivery, int]] = deque()

    def __repr__(self) -> str:
        return f"<Tally [{self.acked} of {self.records} records acked | {len(self._open)} open]>"

    def add(self, delivery: Delivery, records: int) -> None:
        """So many records share this delivery."""
        self.records += records
        self._open.append((delivery, records))
        self.collect()

    def collect(self) -> None:
        """Count what has ended."""
        while self._open and self._open[0][0].done():
            self._count_first()

    def finish(self) -> None:
        """Wait for what is open and count it; every delivery ends at its deadline."""
        while self._open:
            self._count_first()

    def check(self) -> None:
        """Refuse to call it done when something was not acked.

        Raises:
            MemqError: naming how many records, and the first reason.
        """
        if self.error is not None:
            failed = self.records - self.acked
            raise MemqError(
                f"{failed} of {self.records} records were not acked: {self.error}"
            ) from self.error

    def _count_first(self) -> None:
        delivery, records = self._open[0]
        error = delivery.exception()
        self._open.popleft()  # not before: an interrupted wait may be taken up again
        if error is None:
            self.acked += records
        else:
            self.error = self.error or error
