"""How far a partition was read, for those who wait until it was read further."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.errors import QueueError

if TYPE_CHECKING:
    from memq.errors import MemqError

SEEN_S = 30.0  # for what was written to be seen; an open transaction of the dead takes up to 20


class Reached:
    """How far a partition was read, and who waits for more.

    Attributes:
        offset: everything before it was read.
        error: why it is read no further.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.error: MemqError | None = None
        self._waiting: dict[asyncio.Future[None], int] = {}

    def __repr__(self) -> str:
        return f"<Reached {self.offset} [{len(self._waiting)} waiting]>"

    def advance(self, offset: int) -> None:
        """Everything before the offset was read."""
        self.offset = max(self.offset, offset)
        for future, wanted in list(self._waiting.items()):
            if wanted <= self.offset and not future.done():
                future.set_result(None)

    def fail(self, error: MemqError) -> None:
        """It is read no further."""
        self.error = error
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)

    async def wait_for(self, offset: int, timeout_s: float, name: object) -> None:
        """Wait until everything before an offset was read.

        Raises:
            QueueError: it was not, in that time.
            MemqError: it is read no further.
        """
        if self.error is not None:
            raise self.error
        if offset <= self.offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = offset
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError as exc:
            raise QueueError(
                f"{name} was read up to offset {self.offset} and not to {offset} within "
                f"{timeout_s:g} s: Kafka is slow or away, or a broker that has died has left a "
                "transaction open, which Kafka ends after some seconds. Try again"
            ) from exc
        finally:
            del self._waiting[future]
