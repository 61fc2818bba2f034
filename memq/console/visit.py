"""What a page is made from: the client of the person who looks, and what the address says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.topic import TopicClient
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from asyncio import Semaphore
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from memq.client.admin import AsyncAdminClient
    from memq.runtime.system import Runtime

MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True)
class Visit:
    """See above.

    Attributes:
        admin: the client.
        path: parts of the path.
        query: what follows it, or a form.
        runtime: clocks.
        executor: threads that read and decode.
        heavy: bounds how many pages look into Batches at a time.
    """

    admin: AsyncAdminClient
    path: Mapping[str, str]
    query: Mapping[str, str]
    runtime: Runtime
    executor: Executor
    heavy: Semaphore

    def topic(self) -> TopicClient:
        """Return a client of the topic that the path names."""
        return TopicClient(self.admin.cluster, self.path["topic"])

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a number of the query or path, 0 or more; the default where it is not given.

        Raises:
            InvalidRequestError: it is none.
        """
        text = (self.path.get(name) or self.query.get(name, "")).strip()
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_NUMBER):
            raise InvalidRequestError(f"{name} = {text[:100]!r}: give a number, 0 or more")
        return int(text)
