"""AsyncConsumer: reads a topic Batch by Batch, alone or as a member of a group.

What happens when
-----------------
`poll` is where everything is decided. It gives up and takes up partitions, starts a commit when one
is due, and hands out the next Batch; so whatever was handed out by earlier polls counts as done.
Fetching ahead and heartbeats go on in the background, whether or not the application polls.

A member that gives up a partition stops handing it out, commits (`auto_commit`), calls `on_revoke`,
and only then lets go of it, so that the next holder begins where it ended. A member that has lost
its session calls `on_lost` and commits nothing: others may be working on its partitions already.

What is delivered. Each Batch of a partition, in the order of offsets, at least once: after a crash
a group goes on behind its last commit. Messages that were handed out before at another offset are
dropped and counted in `repeats`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from memq.client.cluster import Cluster
from memq.client.commits import Commits
from memq.client.consumer_options import ConsumerOptions
from memq.client.fetcher import Fetcher
from memq.client.group_session import GroupSession
from memq.client.membership import Membership
from memq.client.offsets import check_offsets, resolve
from memq.client.queue import QueueClient
from memq.client.repeats import RepeatWindow
from memq.client.source import BatchSource, Place
from memq.errors import ClosedError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    from memq.client.batch import Batch
    from memq.client.consumer_options import ConsumerArguments, OnPartitions
    from memq.client.offsets import Start
    from memq.client.source import Fetched

CLOSE_TIMEOUT_S = 10.0  # for the last commit


class AsyncConsumer:
    """Reads one topic, from one event loop. Use it with `async with`, or `start` and `close`.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for the environment variable
            `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        topic: the topic to read.
        **options: see `ConsumerArguments`.

    Attributes:
        repeats: Messages that were dropped because they had been handed out before.

    Raises:
        ConfigError: an option is of the wrong type, or out of its limits.
        InvalidRequestError: the topic or group cannot be a name.
    """

    def __init__(
        self, bootstrap: str | None = None, *, topic: str, **options: Unpack[ConsumerArguments]
    ) -> None:
        self._bootstrap = bootstrap
        self._options = ConsumerOptions.parse(topic=topic, **options)
        self._rim: _Rim | None = None
        ...
