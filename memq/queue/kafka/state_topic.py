"""The topic in which brokers say things to each other (`state`), as one of them reads it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.core.units import counted
from memq.errors import ClosedError, ConfigError, MemqError
from memq.queue.kafka.client import NewRecord, Place
from memq.queue.kafka.reached import Reached, lost, see
from memq.queue.kafka.state import KafkaState
from memq.runtime.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memq.queue.kafka.client import KafkaClient, OnFailure, Record
    from memq.queue.kafka.state import StateRecord
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

FOLLOW_AGAIN = Backoff(0.5, 30.0)
_SETTINGS = {
    "cleanup.policy": "compact",
    # What is not compacted yet is read by each broker that starts.
    "segment.ms": "3600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.after.max.ms": str((1 << 63) - 1),  # whatever clocks show
}


class StateTopic:
    """Reads all that was said, and goes on reading; a `Reader`.

    Args:
        client: of Kafka.
        cluster_id: of the cluster whose topic it is.
        on_forgotten: told of each topic of the queue that is said to be gone.
        on_read: called when something was read.
        on_failure: told that Kafka has lost what was said.
        runtime: chance, and the time for records.

    Attributes:
        place: where it is in Kafka.
        state: all that was said, up to where it was read.
        reached: how far that is.
    """

    def __init__(
        self,
        client: KafkaClient,
        cluster_id: str,
        *,
        on_forgotten: Callable[[str], None],
        on_read: Callable[[], None],
        on_failure: OnFailure,
        runtime: Runtime,
    ) -> None:
        self._client = client
        self._on_forgotten = on_forgotten
        self._on_read = on_read
        self._on_failure = on_failure
        self._runtime = runtime
        self._failures = 0  # to follow it, one after the other
        self._written = 0  # one past the last record that was written here
        self._looking: asyncio.Task[None] | None = None
        self.reached = Reached(0)
        self.place = Place(f"{cluster_id}.memq-state", 0)
        self.state = KafkaState()

    def __repr__(self) -> str:
        return f"<StateTopic {self.place} [{self.reached!r}]>"

    async def start(self) -> None:
        """Make it where there is none, and read it, but for what an open transaction hides.

        Raises:
            ConfigError: somebody else made it, with more than one partition.
        """
        partitions = await self._client.create_topic(self.place.topic, 1, _SETTINGS)
        if partitions != 1:
            raise ConfigError(
                f"topic {self.place.topic} of Kafka has {counted(partitions, 'partition')}, not 1: "
                "memq did not make it; choose another cluster_id"
            )
        bounds = (await self._client.bounds([self.place]))[0]
        self.reached = Reached(bounds.start)
        self._client.follow(self.place, bounds.start, self)
        await see(self._client, self.place, self, bounds._replace(written=bounds.stable))

    async def see(self) -> None:
        """See all that was said up to now, by whichever broker.

        Raises:
            QueueError: Kafka does not show it.
            DataLossError: Kafka has less of it than it had.
        """
        end = max(self.reached.offset, self._written)
        bounds = (await self._client.bounds([self.place]))[0]
        if bounds.written < end and self.reached.error is None:
            error = lost(self.place, end, bounds)
            self.reached.fail(error)
            self._on_failure("what brokers have said", error)
        await see(self._client, self.place, self, bounds)

    def note_written(self, end: int) -> None:
        """This was written here, and may be read a little later."""
        self._written = max(self._written, end)

    def new_records(self, records: Iterable[StateRecord]) -> list[NewRecord]:
        """These records as they are written to it."""
        now_ms = self._runtime.wall_ms()
        return [NewRecord(self.place, each.value, each.key, now_ms) for each in records]

    def read(self, records: Sequence[Record], reached: int) -> None:
        """Take over what was said."""
        for record in records:
            if record.offset < self.reached.offset:
                continue
            gone = self.state.read(record)
            if gone is not None:
                self._on_forgotten(gone)
        self._failures = 0
        self.reached.advance(reached)
        self._on_read()

    def failed(self, error: MemqError) -> None:
        """It cannot be followed; it is again, as Kafka may only have to come to itself."""
        if isinstance(error, ClosedError):
            self.reached.fail(error)
            if self._looking is not None:
                self._looking.cancel()
            return
        again_s = FOLLOW_AGAIN.equal_jitter_s(self._failures, self._runtime.random)
        self._failures += 1
        log.error("%s cannot be followed, again in %.1f s: %s", self.place, again_s, error)
        asyncio.get_running_loop().call_later(again_s, self._follow_again)

    def _follow_again(self) -> None:
        if self.reached.error is None:
            self._client.follow(self.place, self.reached.offset, self)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Learn whether there is nothing to follow any more."""
        try:
            await self.see()
        except MemqError as exc:
            log.warning("%s is not read: %s", self.place, exc)
