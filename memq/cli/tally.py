"""What becomes of records that were written: counted as deliveries end, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from memq.errors import MemqError

if TYPE_CHECKING:
    from memq.client.delivery import Delivery


class Tally:
    """Counts acked and failed records.

    What is open is bounded by the producer's memory, as each delivery is a Message that it holds.

    Attributes:
        acked: records whose Message was acked.
        failed: records whose Message was not.
        error: why the first of them failed.
    """

    def __init__(self) -> None:
        self.acked = 0
        self.failed = 0
        self.error: MemqError | None = None
        self._open: deque[tuple[Delivery, int]] = deque()

    def __repr__(self) -> str:
        return f"<Tally [{self.acked} acked, {self.failed} failed, {len(self._open)} open]>"

    @property
    def records(self) -> int:
        """Records that are counted, whose outcome is known."""
        return self.acked + self.failed

    def add(self, delivery: Delivery, records: int) -> None:
        """So many records share this delivery."""
        self._open.append((delivery, records))
        while self._open and self._open[0][0].done():
            self._settle_first()

    def finish(self) -> None:
        """Wait for what is open; every delivery ends at its deadline."""
        while self._open:
            self._settle_first()

    def check(self) -> None:
        """Refuse to call it done when something was not acked.

        Raises:
            MemqError: naming how many records, and the first reason.
        """
        if self.error is not None:
            raise MemqError(
                f"{self.failed} of {self.records} records were not acked: {self.error}"
            ) from self.error

    def _settle_first(self) -> None:
        delivery, records = self._open[0]
        error = delivery.exception()
        self._open.popleft()  # an interrupted wait may be taken up again
        if error is None:
            self.acked += records
        else:
            self.failed += records
            self.error = self.error or error
