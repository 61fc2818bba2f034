"""Consumers: `Consumer` for threads, `AsyncConsumer` for asyncio.

Both read a topic Batch by Batch: all of its partitions, the ones they are assigned, or as members
of a group those that the group gives them.

What is delivered. The Batches of a partition come in the order of their offsets, each at least
once: after a crash a group goes on behind its last commit. A commit covers whole Batches. Messages
that were handed out before at another offset are dropped and counted in `repeats`. A consumer never
skips what it cannot read: it raises, and goes on where `seek` says.

Offsets, positions and lag count Batches, not LogMessages.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import TYPE_CHECKING

from memq.client.consumer.options import ConsumerOptions
from memq.client.consumer.rim import ConsumerRim
from memq.client.sync import Callbacks, EventLoopThread
from memq.core.runtime import SYSTEM, Runtime
from memq.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    from memq.client.batch import Batch
    from memq.client.consumer.options import ConsumerArguments

ITERATION_POLL_S = 1.0  # an iteration polls again and again; this only bounds one round
CLOSE_TIMEOUT_S = 10.0  # for the last commit


class AsyncConsumer:
    """Reads one topic, from one event loop. Use it with `async with`, or `start` and `close`.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for the environment variable
            `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        topic: the topic to read.
        runtime: clocks, chance and threads.
        **options: see `ConsumerArguments`.

    Raises:
        ConfigError: an option is of the wrong type, or out of its limits.
        InvalidRequestError: topic or group cannot be a name.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        topic: str,
        runtime: Runtime = SYSTEM,
        **options: Unpack[ConsumerArguments],
    ) -> None:
        self._bootstrap = bootstrap
        self._runtime = runtime
        self._options = ConsumerOptions.parse(topic=topic, **options)
        self._rim: ConsumerRim | None = None

    async def start(self) -> Self:
        """Find the topic, and begin; a group is joined by the first poll. Again it does nothing.

        Raises:
            UnknownTopicError: there is no such topic.
            UnavailableError: no broker can be reached.
        """
        if self._rim is None:
            self._rim = await ConsumerRim.start(
                self._bootstrap, self._options, runtime=self._runtime
            )
        return self

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._options.topic} {self._rim or 'not started'}>"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What was in work when the body failed is not done: it must not be committed.
        await self._started().close(CLOSE_TIMEOUT_S, orderly=exc is None)

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Batches without end; leave it with `break`."""
        while True:
            batch = await self.poll(ITERATION_POLL_S)
            if batch is not None:
                yield batch

    async def poll(self, timeout: float = 1.0) -> Batch | None:  # noqa: ASYNC109 - its own outcome
        """The next Batch; None when there is none within `timeout` seconds.

        What earlier polls handed out counts as done from now on: `auto_commit` may commit it.

        Raises:
            OffsetOutOfRangeError: retention has removed the next offset; `seek` elsewhere.
            DataLossError: the next Batch is gone though it should be there; `seek` past it.
            CorruptDataError: it is damaged; likewise.
            StorageError: the storage failed for the whole request timeout; poll again.
            UnavailableError: the broker did; poll again.
            InvalidRequestError: another poll of this consumer waits.
            ClosedError: the consumer is closed.
            MemqError: what else the brokers answered, to an auto-commit for instance.
        """
        return await self._started().poll(timeout)

    @property
    def repeats(self) -> int:
        """Messages that were dropped because they had been handed out before."""
        return self._started().repeats

    @property
    def assignment(self) -> list[int]:
        """Partitions that are read now; a group gives them out from the first poll on."""
        return self._started().assignment

    async def assign(self, partitions: Iterable[int] | Mapping[int, int]) -> None:
        """Read just these partitions.

        Args:
            partitions: their numbers, to begin where the group has committed or else at `start`;
                or the offset to begin at by partition. A group member leaves its group; it can
                still commit, as long as the group has no members.

        Raises:
            InvalidRequestError: there is no such partition, or an offset is negative.
            MemqError: the broker failed for the whole request timeout.
        """
        await self._started().assign(partitions)

    async def seek(self, partition: int, offset: int) -> None:
        """Go on with a partition at an offset; `commit` will commit it.

        Raises:
            InvalidRequestError: the partition is not read by this consumer.
            MemqError: the broker failed for the whole request timeout.
        """
        await self._started().seek({partition: offset}, [partition])

    async def seek_to_beginning(self, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all that are read) at the first offset held.

        Raises:
            as `seek`.
        """
        await self._started().seek("earliest", partitions)

    async def seek_to_end(self, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all that are read) behind the last Batch.

        Raises:
            as `seek`.
        """
        await self._started().seek("latest", partitions)

    async def seek_to_time(self, at: datetime, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all) at the first Batch published at `at` or later.

        Raises:
            ConfigError: the time has no time zone.
            as `seek`.
        """
        await self._started().seek(at, partitions)

    def position(self, partition: int) -> int:
        """Offset of the next Batch of a partition.

        Raises:
            InvalidRequestError: the partition is not read by this consumer.
        """
        return self._started().position(partition)

    async def lag(self) -> dict[int, int]:
        """Batches that are published and not handed out yet, of each partition that is read.

        Raises:
            MemqError: the broker failed for the whole request timeout.
        """
        return await self._started().lag()

    async def committed(self) -> dict[int, int]:
        """Next offsets that the group has committed; partitions without one are absent.

        Raises:
            InvalidRequestError: there is no group.
            MemqError: the broker failed for the whole request timeout.
        """
        return await self._started().committed()

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit for the group.

        Args:
            offsets: next offset by partition; None for all Batches handed out so far.

        Raises:
            InvalidRequestError: there is no group, or the consumer was assigned its partitions by
                hand and the group has members.
            NotOwnerError: another member holds one of the partitions by now.
            OffsetOutOfRangeError: an offset is not held.
            MemqError: the broker failed for the whole request timeout.
        """
        await self._started().commit(offsets)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:  # noqa: ASYNC109 - its own error
        """Commit what was handed out (`auto_commit`), leave the group, stop. Idempotent.

        Raises:
            RequestTimeoutError: the commit takes longer than `timeout` seconds.
            MemqError: the commit failed.
        """
        if self._rim is not None:
            await self._rim.close(timeout, orderly=True)

    def _started(self) -> ConsumerRim:
        if self._rim is None:
            raise ClosedError("this consumer is not started; use `async with`, or `await start()`")
        return self._rim


class Consumer:
    """Reads one topic, from one thread at a time. Use it with `with`, or `close` it.

    It finds the topic when it is made; an event loop in a background thread does the rest, while
    the callbacks run in the thread that polls or closes. In a child process after a fork it raises
    `ClosedError`: make another one there.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for the environment variable
            `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        topic: the topic to read.
        **options: see `ConsumerArguments`.

    Raises:
        ConfigError: an option is of the wrong type, or out of its limits.
        InvalidRequestError: topic or group cannot be a name.
        UnknownTopicError: there is no such topic.
        UnavailableError: no broker can be reached.
    """

    def __init__(
        self, bootstrap: str | None = None, *, topic: str, **options: Unpack[ConsumerArguments]
    ) -> None:
        self._closed = True  # until there is something to close
        parsed = ConsumerOptions.parse(topic=topic, **options)
        self._pid = os.getpid()
        self._loop = EventLoopThread(f"memq-consumer-{topic}")
        self._callbacks = Callbacks(self._loop)
        handed_over = dataclasses.replace(
            parsed,
            on_assign=parsed.on_assign and self._callbacks.wrap(parsed.on_assign),
            on_revoke=parsed.on_revoke and self._callbacks.wrap(parsed.on_revoke),
            on_lost=parsed.on_lost and self._callbacks.wrap(parsed.on_lost),
        )
        try:
            self._rim = self._loop.run(ConsumerRim.start(bootstrap, handed_over))
        except BaseException:
            self._loop.close()
            raise
        self._closed = False

    def __repr__(self) -> str:
        return f"<Consumer {self._rim.options.topic} {self._rim!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What was in work when the body failed is not done: it must not be committed.
        self._end(CLOSE_TIMEOUT_S, orderly=exc is None)

    def __del__(self) -> None:
        if not self._closed and os.getpid() == self._pid:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __iter__(self) -> Iterator[Batch]:
        """Batches without end; leave it with `break`."""
        while True:
            batch = self.poll(ITERATION_POLL_S)
            if batch is not None:
                yield batch

    def poll(self, timeout: float = 1.0) -> Batch | None:
        """The next Batch; None when there is none within `timeout` seconds.

        What earlier polls handed out counts as done from now on: `auto_commit` may commit it.

        Raises:
            as `AsyncConsumer.poll`.
        """
        return self._callbacks.run(self._rim.poll(timeout))

    @property
    def repeats(self) -> int:
        """Messages that were dropped because they had been handed out before."""
        return self._rim.repeats

    @property
    def assignment(self) -> list[int]:
        """Partitions that are read now; a group gives them out from the first poll on."""
        return self._rim.assignment

    def assign(self, partitions: Iterable[int] | Mapping[int, int]) -> None:
        """Read just these partitions; see `AsyncConsumer.assign`."""
        self._loop.run(self._rim.assign(partitions))

    def seek(self, partition: int, offset: int) -> None:
        """Go on with a partition at an offset; see `AsyncConsumer.seek`."""
        self._loop.run(self._rim.seek({partition: offset}, [partition]))

    def seek_to_beginning(self, partitions: Iterable[int] | None = None) -> None:
        """Go on at the first offsets held; see `AsyncConsumer.seek_to_beginning`."""
        self._loop.run(self._rim.seek("earliest", partitions))

    def seek_to_end(self, partitions: Iterable[int] | None = None) -> None:
        """Go on behind the last Batches; see `AsyncConsumer.seek_to_end`."""
        self._loop.run(self._rim.seek("latest", partitions))

    def seek_to_time(self, at: datetime, partitions: Iterable[int] | None = None) -> None:
        """Go on at what was published at `at` or later; see `AsyncConsumer.seek_to_time`."""
        self._loop.run(self._rim.seek(at, partitions))

    def position(self, partition: int) -> int:
        """Offset of the next Batch of a partition; see `AsyncConsumer.position`."""
        return self._rim.position(partition)

    def lag(self) -> dict[int, int]:
        """Batches not handed out yet, by partition; see `AsyncConsumer.lag`."""
        return self._loop.run(self._rim.lag())

    def committed(self) -> dict[int, int]:
        """Next offsets that the group has committed; see `AsyncConsumer.committed`."""
        return self._loop.run(self._rim.committed())

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit these next offsets, or all Batches handed out; see `AsyncConsumer.commit`."""
        self._loop.run(self._rim.commit(offsets))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit what was handed out (`auto_commit`), leave the group, stop. Idempotent.

        Raises:
            RequestTimeoutError: the commit takes longer than `timeout` seconds.
            MemqError: the commit failed.
        """
        self._end(timeout, orderly=True)

    def _end(self, timeout_s: float, *, orderly: bool) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            self._callbacks.run(self._rim.close(timeout_s, orderly=orderly))
        finally:
            self._loop.close()
