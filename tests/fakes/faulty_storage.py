"""A storage that fails as planned."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from memq.errors import StorageError
from tests.fakes.faults import Faults, Strike, kill_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memq.storage.handler import Buffer, ObjectInfo, StorageHandler
    from tests.fakes.faults import Fault

_Result = TypeVar("_Result")

_READ = frozenset({"corrupt", "truncate"})
_APPLICABLE = {
    "put": frozenset({"disk_full", "lose_answer"}),
    "get": _READ,
    "get_range": _READ,
    "list": frozenset({"partial"}),
    "delete": frozenset({"lose_answer"}),
}


class FaultyStorage:
    """A `StorageHandler` around another one, with faults. Safe to use from many threads.

    Args:
        inner: the storage that does the work.
        plan: which calls fail how; see `tests.fakes.faults`.
        seed: of the chances in the plan.
        sleep: waits for so many seconds; for "delay".
        crash: called by "crash_before" and "crash_after".

    Attributes:
        faults: counts calls and faults.
        hung: is set once a call hangs.

    Raises:
        ConfigError: the plan makes no sense for a storage.
    """

    def __init__(
        self,
        inner: StorageHandler,
        plan: Sequence[Fault],
        *,
        seed: int = 0,
        sleep: Callable[[float], None] = time.sleep,
        crash: Callable[[], None] = kill_this_process,
    ) -> None:
        self.faults = Faults(plan, seed=seed, applicable=_APPLICABLE)
        self.hung = threading.Event()
        self._hangs_ended = threading.Event()
        self._inner = inner
        self._sleep = sleep
        self._crash = crash

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

    def end_hangs(self) -> None:
        """Let the calls that hang go on; those that would hang later do not."""
        self._hangs_ended.set()

    def put(self, key: str, buffers: Sequence[Buffer], *, timeout_s: float) -> None:
        """As the storage does, or as planned."""
        self._call("put", key, lambda _: self._inner.put(key, buffers, timeout_s=timeout_s))

    def get(self, key: str) -> Buffer:
        """As the storage does, or as planned."""
        return self._call("get", key, lambda strike: _damaged(self._inner.get(key), strike))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """As the storage does, or as planned."""
        return self._call(
            "get_range",
            key,
            lambda strike: _damaged(self._inner.get_range(key, start, length), strike),
        )

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """As the storage does, or as planned."""
        shown = ", ".join(prefixes)
        return self._call("list", shown, lambda strike: self._listing(prefixes, shown, strike))

    def delete(self, *keys: str) -> None:
        """As the storage does, or as planned."""
        self._call("delete", ", ".join(keys), lambda _: self._inner.delete(*keys))

    def close(self) -> None:
        """As the storage does; and calls that hang go on."""
        self.end_hangs()
        self._inner.close()

    def uri(self, key: str) -> str:
        """As the storage does; there is nothing in it that could fail."""
        return self._inner.uri(key)

    def _call(self, operation: str, key: str, effect: Callable[[Strike], _Result]) -> _Result:
        strike = self.faults.strike(operation)
        if strike.delay_s:
            self._sleep(strike.delay_s)
        if "hang" in strike:
            self.hung.set()
            self._hangs_ended.wait()
        if "crash_before" in strike:
            self._crash()
        if "fail" in strike:
            raise StorageError(f"{strike}: {key!r}")
        if "disk_full" in strike:
            raise StorageError(f"{strike}: {key!r}: No space left on device")
        result = effect(strike)
        if "crash_after" in strike:
            self._crash()
        if "lose_answer" in strike:
            raise StorageError(f"{strike}: {key!r}: it was done, but the answer is lost")
        return result

    def _listing(self, prefixes: Sequence[str], shown: str, strike: Strike) -> Iterator[ObjectInfo]:
        found = self._inner.list(*prefixes)
        return _first_half(tuple(found), shown, strike) if "partial" in strike else found


def _first_half(found: Sequence[ObjectInfo], prefix: str, strike: Strike) -> Iterator[ObjectInfo]:
    yield from found[: len(found) // 2]
    raise StorageError(f"{strike}: the listing of {prefix!r} broke off")


def _damaged(content: Buffer, strike: Strike) -> Buffer:
    """The content, short of its end and with a bit flipped where the strike says so."""
    if "truncate" not in strike and "corrupt" not in strike:
        return content
    damaged = bytearray(content)
    if "truncate" in strike and damaged:
        del damaged[strike.chance.randrange(len(damaged)) :]
    if "corrupt" in strike and damaged:
        damaged[strike.chance.randrange(len(damaged))] ^= 1 << strike.chance.randrange(8)
    return bytes(damaged)
