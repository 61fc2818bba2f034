"""Upload: storing the object of one Batch, again and again until its deadline.

Every attempt puts the same bytes under the same key, in a worker thread. So a success whose answer
was lost is recognised by the next attempt, and two attempts at a time do no harm: one that takes
long is made a second time where that helps (`memq.runtime.hedging`), and the first to succeed ends
the upload. A thread cannot be interrupted: an attempt that hangs goes on, and holds the Batch's
memory, after the upload has ended.

A Batch may fail meanwhile, taken along by one before it. Its upload is cancelled then: it begins no
further attempt, and the Batch's memory is free once no attempt is under way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.errors import MemqError, StorageError
from memq.runtime.hedging import first_success
from memq.runtime.retry import STORAGE_BACKOFF, Retry

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from memq.broker.context import BrokerContext
    from memq.core.write_partition import RingBatch


class Upload:
    """The upload of one sealed Batch.

    Args:
        batch: the Batch.
        context: of the broker.
        topic: of the Batch, which pays for the attempts.
    """

    def __init__(self, batch: RingBatch, context: BrokerContext, topic: str) -> None:
        assert batch.sealed is not None  # noqa: S101 - only sealed Batches are uploaded
        self._batch = batch
        self._size_bytes = batch.sealed.size_bytes
        # Its own: the Batch forgets them once it is stored, and a thread may only begin to read.
        self._buffers = tuple(batch.sealed.buffers)
        self._context = context
        self._attempted = context.metrics.attempted.labels(topic)
        self._threads: list[Future[None]] = []
        self._failed: MemqError | None = None  # the attempt before

    def __repr__(self) -> str:
        return f"<Upload of {self._batch.batch_id} [{len(self.running())} attempts under way]>"

    def running(self) -> list[Future[None]]:
        """Attempts that a thread has not ended."""
        return [thread for thread in self._threads if not thread.done()]

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` on the event loop once no attempt is under way; it may be called at once."""
        running = self.running()
        if not running:
            then()
            return
        loop = asyncio.get_running_loop()

        def ended(_: Future[None]) -> None:  # called by the thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.when_over, then)

        running[0].add_done_callback(self._context.fatal_errors.guarded("upload", ended))

    async def run(self) -> None:
        """Store the object, trying again while the error is retriable and time is left.

        Raises:
            MemqError: why the last attempt failed.
        """
        retry = Retry(self._left_s(), self._context.runtime, STORAGE_BACKOFF)
        while True:
            try:
                await self._put()
            except MemqError as exc:
                self._failed = exc
                delay_s = retry.after(exc)
                what = f"Batch {self._batch.batch_id}: attempt {retry.failures} failed: {exc}"
                self._context.warn("upload", what)
            else:
                return
            await asyncio.sleep(delay_s)

    # -- one put, with its hedge --------------------------------------------------------------

    async def _put(self) -> None:
        context, self._threads = self._context, self.running()
        before = len(self._threads)
        try:
            async with asyncio.timeout(self._left_s()), context.upload_slots:
                self._batch.put_mono_ms = self._batch.put_mono_ms or context.now().mono_ms
                with context.services.storage.call():
                    await first_success(
                        self._attempt,
                        context.hedging,
                        self._size_bytes,
                        context.runtime.mono_s,
                        may_hedge=context.storage.remote,
                    )
        except MemqError:
            raise
        except Exception as exc:
            raise self._not_stored(self._threads[before:], exc) from exc
        finally:
            for thread in self._threads[before:]:
                thread.cancel()  # what no thread has begun yet

    def _attempt(self) -> asyncio.Future[None]:
        thread = self._context.uploads.submit(self._store, self._left_s())
        self._threads.append(thread)
        attempt = asyncio.wrap_future(thread)
        attempt.add_done_callback(_heed)
        return attempt

    def _store(self, timeout_s: float) -> None:
        self._attempted.inc()  # here: an attempt that no thread takes up asks for nothing
        self._context.storage.put(self._batch.key, self._buffers, timeout_s=timeout_s)

    def _not_stored(self, threads: list[Future[None]], exc: Exception) -> StorageError:
        key = self._batch.key
        if not all(thread.cancel() or thread.done() for thread in threads):
            return StorageError(f"{key}: not stored within its deadline; the attempt still hangs")
        if all(thread.cancelled() for thread in threads):
            before = "" if self._failed is None else f"; the attempt before failed: {self._failed}"
            return StorageError(f"{key}: its turn did not come within its deadline{before}")
        return StorageError(f"{key}: {type(exc).__name__}: {exc}")

    def _left_s(self) -> float:
        return (self._batch.deadline_mono_ms - self._context.now().mono_ms) / 1000


def _heed(attempt: asyncio.Future[None]) -> None:
    """Take note of an error that nobody waits for any more: another attempt has succeeded."""
    if not attempt.cancelled():
        attempt.exception()
