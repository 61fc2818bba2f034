"""Opens what `memq restore` needs, and closes it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from memq.broker.restore import Bucket, RestoreOutcome, restore
from memq.broker.restore_local import DataDirectory
from memq.queue import is_embedded
from memq.runtime.system import SYSTEM, Runtime
from memq.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.config import BrokerConfig


def run(
    config: BrokerConfig,
    *,
    topic: str | None,
    execute: bool,
    progress: Callable[[str, int], None],
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
    directory = Path(config.data_dir).absolute()
    with ExitStack() as opened:
        uri = config.storage or (directory / "objects").as_uri()
        storage = open_storage(uri, config.storage_options, runtime)
        opened.callback(storage.close)
        if not is_embedded(config.queue):
            raise NotImplementedError
        target = DataDirectory(directory, runtime, execute=execute)
        opened.callback(target.close)
        bucket = Bucket(storage, config.cluster_id, progress)
        return restore(bucket, target, topic=topic, execute=execute, progress=progress)
