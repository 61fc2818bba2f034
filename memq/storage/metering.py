"""Who asked an object store for what: requests are counted for a storage, and for one of its users.

A storage is shared by all readers of a process. One of them that wants to know its own requests
makes them by `metered`; the tasks and second attempts that come of them are counted too.
"""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

T = TypeVar("T")

_METER: ContextVar[Counter[str] | None] = ContextVar("memq_storage_meter", default=None)


def metered(counts: Counter[str], work: Callable[[], T]) -> T:
    """Do work, and count what it asks for also here, by kind as in `ObjectStorage.requests`."""
    context = copy_context()
    context.run(_METER.set, counts)
    return context.run(work)


def count_request(of_storage: Counter[str], kind: str, count: int = 1) -> None:
    """Count for a storage, and for whoever asks."""
    of_user = _METER.get()
    for counts in (of_storage,) if of_user is None else (of_storage, of_user):
        counts[kind] += count
