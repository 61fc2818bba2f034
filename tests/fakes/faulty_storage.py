"""A storage that fails as planned."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from memq.errors import StorageError
from memq.storage.handler import Buffer, ObjectInfo, StorageHandler
from tests.fakes.faults import Fault, Faults, Strike

_Result = TypeVar("_Result")


class FaultyStorage:
    """A `StorageHandler` around another one, with faults. Safe to use from many threads.

    Args:
        inner: the storage that does the work.
        plan: which calls fail how; see `tests.fakes.faults`.
        seed: of the chances in the plan.

    Attributes:
        faults: counts calls and faults.
    """

    def __init__(self, inner: StorageHandler, plan: Sequence[Fault], *, seed: int = 0) -> None:
        self.faults = Faults(plan, seed=seed)
        self._inner = inner
        self.uri, self.close = inner.uri, inner.close

    @property
    def remote(self) -> bool:
        """As the storage has it."""
        return self._inner.remote

    @property
    def requests(self) -> Mapping[str, int]:
        """As the storage counts them."""
        return self._inner.requests

    def __repr__(self) -> str:
        return f"<FaultyStorage {self.faults!r} around {self._inner!r}>"

    def put(self, key: str, buffers: Sequence[Buffer], *, timeout_s: float) -> None:
        """As the storage does, or as planned."""
        self._call("put", lambda _: self._inner.put(key, buffers, timeout_s=timeout_s))

    def get(self, key: str) -> Buffer:
        """As the storage does, or as planned."""
        return self._call("get", lambda _: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """As the storage does, or as planned."""
        return self._call("get_range", lambda _: self._inner.get_range(key, start, length))

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """As the storage does, or as planned."""
        return self._call("list", lambda strike: _listing(self._inner.list(*prefixes), strike))

    def delete(self, *keys: str) -> None:
        """As the storage does, or as planned."""
        self._call("delete", lambda _: self._inner.delete(*keys))

    def _call(self, operation: str, effect: Callable[[Strike], _Result]) -> _Result:
        strike = self.faults.strike(operation)
        if strike.delay_s:
            time.sleep(strike.delay_s)
        strike.before(StorageError)
        result = effect(strike)
        strike.after(StorageError)
        return result


def _listing(found: Iterator[ObjectInfo], strike: Strike) -> Iterator[ObjectInfo]:
    if "partial" not in strike:
        yield from found
        return
    every = tuple(found)
    yield from every[: len(every) // 2]
    raise StorageError(f"{strike}: the listing broke off")
