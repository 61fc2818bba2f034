"""Store one Batch: attempts with full jitter until its deadline."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from memq.core.write_partition_effects import BatchState
from memq.errors import MemqError, StorageError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from memq.broker.services import Services
    from memq.core.write_partition_effects import RingBatch

log = logging.getLogger(__name__)

RETRY_BASE_S = 0.05
RETRY_CAP_S = 5.0


async def put_until_deadline(
    batch: RingBatch, services: Services, in_thread: dict[RingBatch, Future[None]]
) -> None:
    """Put the Batch's object, again and again while the error is retriable and time is left.

    Every attempt puts the same bytes under the same key, so a success whose answer was lost is
    recognised by the next one.

    Args:
        batch: a sealed Batch.
        services: storage, threads and clock.
        in_thread: holds the running attempt for as long as a thread has the Batch's buffers.

    Raises:
        MemqError: why the last attempt failed.
    """
    attempt = 0
    while True:
        try:
            await _attempt(batch, services, in_thread)
        except MemqError as exc:
            attempt += 1
            services.disk.failed(exc, services.now().mono_ms)
            delay_s = services.backoff_s(RETRY_BASE_S, RETRY_CAP_S, attempt)
            if not exc.retriable or _left_s(batch, services) <= delay_s:
                raise
            log.warning("Batch %s: attempt %d failed: %s", batch.batch_id, attempt, exc)
            await asyncio.sleep(delay_s)
            if batch.state is BatchState.FAILED:  # a Batch before this one took it along
                raise
        else:
            return


async def _attempt(
    batch: RingBatch, services: Services, in_thread: dict[RingBatch, Future[None]]
) -> None:
    sealed, left_s = batch.sealed, _left_s(batch, services)
    assert sealed is not None  # noqa: S101 - only sealed Batches are uploaded
    thread = services.executor.submit(
        services.storage.put, batch.key, sealed.buffers, timeout_s=left_s
    )
    in_thread[batch] = thread
    try:
        async with asyncio.timeout(left_s):
            await asyncio.wrap_future(thread)
    except MemqError:
        raise
    except Exception as exc:
        if not thread.done() and not thread.cancel():
            raise StorageError(
                f"{batch.key}: not stored within its deadline; the attempt still hangs"
            ) from exc
        if thread.cancelled():
            raise StorageError(
                f"{batch.key}: no worker thread came free within its deadline"
            ) from exc
        raise StorageError(f"{batch.key}: {type(exc).__name__}: {exc}") from exc
    finally:
        if thread.done():
            in_thread.pop(batch, None)  # one that hangs stays: a deletion waits for it


def _left_s(batch: RingBatch, services: Services) -> float:
    return (batch.deadline_mono_ms - services.now().mono_ms) / 1000
