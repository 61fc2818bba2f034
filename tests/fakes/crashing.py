"""A broker that kills itself at an exact step, for tests of what survives.

With the crash point `put:before:3` a broker ends with SIGKILL right before its third `put`. A crash
point is `STEP:MOMENT:NTH`: the moment is `before` or `after`, and the calls are counted
from 1, from the start of the process. What a step is:

- `put` and `delete` of the storage; `create_topic`, `publish`, `fence`, `release`, `commit` and
  `truncate` of the notification queue: the steps of the protocol, at the broker's two seams.
- `os.writev`, `os.fsync`, `os.link`, `os.replace` and `os.unlink`: system calls, which cut these
  steps in pieces. A put is a writev to a temporary name, an fsync, a link to the key, an fsync of
  the folder, an unlink. A publish is memory written and then an fsync for each file it changed. A
  commit is an fsync, a replace, an fsync.

SIGKILL loses what the process had in its memory and keeps what it had told the kernel. It is not a
power cut: what was written and not synced survives it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.broker.config import BrokerConfig
from memq.broker.server import Broker, serve
from memq.queue.embedded.queue import EmbeddedQueue
from memq.runtime.log_format import configure
from memq.storage.local import LocalStorage
from tests.fakes.faults import Fault, kill_this_process
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.faulty_storage import FaultyStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from memq.core.queue import NotificationQueue
    from memq.storage.handler import StorageHandler
    from tests.fakes.faults import Kind

STORAGE_STEPS = ("put", "delete")
QUEUE_STEPS = ("create_topic", "publish", "fence", "release", "commit", "truncate")
SYSTEM_CALLS = ("os.writev", "os.fsync", "os.link", "os.replace", "os.unlink")
STEPS = (*STORAGE_STEPS, *QUEUE_STEPS, *SYSTEM_CALLS)
MOMENTS = ("before", "after")


class CrashPoint(NamedTuple):
    """Where a broker kills itself.

    Attributes:
        step: one of `STEPS`.
        moment: "before" or "after" the call.
        nth: call of the step, from 1.
    """

    step: str
    moment: str
    nth: int

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        """A crash point from `STEP:MOMENT:NTH`."""
        step, moment, nth = text.split(":")
        return cls(step, moment, int(nth))

    def __str__(self) -> str:
        return f"{self.step}:{self.moment}:{self.nth}"

    def arm(
        self, storage: StorageHandler, queue: NotificationQueue
    ) -> tuple[StorageHandler, NotificationQueue]:
        """Storage and queue for a broker of this process that is to die at this point."""
        kind: Kind = "crash_before" if self.moment == "before" else "crash_after"
        fault = Fault(self.step, kind, first=self.nth)
        if self.step in STORAGE_STEPS:
            return FaultyStorage(storage, [fault]), queue
        if self.step in QUEUE_STEPS:
            return storage, FaultyQueue(queue, [fault])
        name = self.step.removeprefix("os.")
        setattr(os, name, self._around(getattr(os, name)))
        return storage, queue

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        counter = itertools.count(1)

        def call(*args: Any, **kwargs: Any) -> Any:
            reached = next(counter) == self.nth
            if reached and self.moment == "before":
                kill_this_process()
            result = function(*args, **kwargs)
            if reached:
                kill_this_process()
            return result

        return call


def run(
    options: Mapping[str, object],
    crash_at: CrashPoint | None,
    on_ready: Callable[[Broker], None],
    *,
    storage: Callable[[Path], StorageHandler] = LocalStorage,
    queue: Callable[[Path], NotificationQueue | Awaitable[NotificationQueue]] = EmbeddedQueue,
) -> int:
    """Run a broker in this process until it kills itself, or is told to stop.

    Args:
        options: of the broker, as human values.
        crash_at: where it kills itself; None for nowhere.
        on_ready: called once, when the broker serves.
        storage: makes its storage from a folder.
        queue: makes its notification queue from a folder, or begins to.

    Returns:
        Exit code, as `memq.broker.server.run`.

    Raises:
        MemqError: it could not start.
    """
    config = BrokerConfig.create(options)
    configure(config.log_format, config.log_level)
    directory = Path(config.data_dir).absolute()
    directory.mkdir(parents=True, exist_ok=True)

    async def life() -> int:
        made = queue(directory / "queue")
        seams = storage(directory / "objects"), await made if isawaitable(made) else made
        if crash_at is not None:
            seams = crash_at.arm(*seams)
        return await serve(Broker(config, storage=seams[0], queue=seams[1]), on_ready)

    return asyncio.run(life())
