"""Who asked an object store for what: requests are counted for a storage, and for one of its users.

A storage is shared by all readers of a process. One of them that wants to know its own requests
makes them within `metered`; the tasks and second attempts that come of them are counted too.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

_METER: ContextVar[Counter[str] | None] = ContextVar("memq_storage_meter", default=None)


@contextmanager
def metered(counts: Counter[str]) -> Iterator[None]:
    """Count what is asked in this block also here, by kind as in `ObjectStorage.requests`."""
    token = _METER.set(counts)
    try:
        yield
    finally:
        _METER.reset(token)


def count_request(of_storage: Counter[str], kind: str, count: int = 1) -> None:
    """Count for a storage, and for whoever asks."""
    of_storage[kind] += count
    of_user = _METER.get()
    if of_user is not None:
        of_user[kind] += count
