"""Opens what `memq restore` needs, and closes it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from memq.broker.restore import (
    Bucket,
    CatalogTarget,
    QueueTarget,
    RestoreOutcome,
    Target,
    restore,
)
from memq.broker.restore_cluster import open_shared_catalog, open_shared_queue
from memq.broker.restore_local import LocalCatalog, LocalQueue
from memq.core.features import MIN_LEVEL, RESTORED
from memq.queue import is_embedded
from memq.runtime.system import SYSTEM, Runtime
from memq.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.config import BrokerConfig


async def restore_cluster(
    config: BrokerConfig,
    *,
    topic: str | None = None,
    execute: bool,
    progress: Callable[[str, int], None] = lambda _what, _count: None,
    runtime: Runtime = SYSTEM,
) -> list[RestoreOutcome]:
    """Restore what a configuration names, as `memq.broker.restore.restore` does.

    Args:
        config: of a broker; all brokers of its cluster are stopped.
        topic: which topic; None for all.
        execute: whether to change anything.
        progress: is called with what is being counted, and how many there are so far.
        runtime: clocks, chance and threads.

    Raises:
        ConfigError: an option is wrong.
        LockedError: a broker runs.
        MemqError: as `restore`.
    """
    directory = Path(config.data_dir).absolute()  # noqa: ASYNC240 - it asks for no file
    uri = config.storage or (directory / "objects").as_uri()
    async with AsyncExitStack() as opened:
        catalog = await _catalog(config, directory, runtime)
        opened.push_async_callback(catalog.close)
        queue = await _queue(config, directory, runtime)
        opened.push_async_callback(queue.close)
        target = Target(catalog, queue, MIN_LEVEL if is_embedded(config.queue) else RESTORED)
        storage = open_storage(uri, config.storage_options, runtime)
        opened.callback(storage.close)
        bucket = await asyncio.to_thread(Bucket, storage, config.cluster_id, progress)
        return await restore(bucket, target, topic=topic, execute=execute, progress=progress)


async def _catalog(config: BrokerConfig, directory: Path, runtime: Runtime) -> CatalogTarget:
    if not config.zookeeper:
        return LocalCatalog(directory)
    return await open_shared_catalog(config, runtime)


async def _queue(config: BrokerConfig, directory: Path, runtime: Runtime) -> QueueTarget:
    if is_embedded(config.queue):
        return LocalQueue(directory, runtime)
    return await open_shared_queue(config, runtime)
