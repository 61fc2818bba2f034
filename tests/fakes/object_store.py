"""A model of an object store: no crash takes what it has; its answers are late, lost or refused.

It differs from the folder of a machine in what matters to a broker: it is reached over a network,
so a request may take seconds while others beside it are answered at once; a request that its client
has given up may take effect all the same, later; and each client sees at once what any has stored.

A put takes effect at some moment before its answer, whether or not that is waited for or arrives.
It does not when the process is dead by then: the store has seen its connection close. The first
one to store a key stays (`If-None-Match: *`).

Its URIs are of a scheme of their own, which is entered beside the others (`memq.storage.open`)
while a run lasts; so brokers and readers find it as they find any storage.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar

from memq.errors import ObjectNotFoundError, StorageError
from memq.runtime.hedging import Hedging
from memq.storage import open as opening
from memq.storage.handler import ObjectInfo
from memq.storage.keys import check_key, check_prefix
from memq.storage.object_store import SLOW_BYTES_S, STALL_S
from tests.fakes.loop import takes, worker
from tests.simulation.world import World

SCHEME = "sim"
ROOT = "sim://store/root"
LATENCY_S = (0.002, 0.04)  # of a request that does not stall, least and most
LIST_S = 0.05
"""Listings that are asked for together are given up after so long. A topic is listed by hundreds of
requests, 16 at a time, which are one job, whose time is known when it begins: it must not go on for
long once the store is mended.
"""


class ObjectStoreModel:
    """The store of a run.

    Args:
        world: of the run.
        on_stored: told of each key when it takes effect.
        clock_ns: its clock.

    Attributes:
        objects: content and time of each, by key.
        slowness: how many times longer everything takes.
        refuses: how likely a request is refused (503).
        stalls: how likely one takes seconds.
        loses: how likely an answer is lost.
        away: nobody is answered; "refuse" at once, "silent" not at all.
    """

    def __init__(
        self, world: World, on_stored: Callable[[str], None], clock_ns: Callable[[], int]
    ) -> None:
        self.world = world
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.slowness = 1.0
        self.refuses = self.stalls = self.loses = 0.0
        self.away = ""
        self._on_stored = on_stored
        self._clock_ns = clock_ns
        self._rng = world.rng("store")
        self._hedging = Hedging()

    def __repr__(self) -> str:
        return f"<ObjectStoreModel [{len(self.objects)} objects]>"

    def mend(self) -> None:
        """The end of all faults."""
        self.slowness = 1.0
        self.refuses = self.stalls = self.loses = 0.0
        self.away = ""

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """URIs of its scheme lead to it meanwhile."""
        opening._SCHEMES[SCHEME] = opening._Scheme(
            lambda _uri, _options, _runtime: StoreView(self),
            lambda uri, _options: (StoreView(self), uri.removeprefix(ROOT + "/")),
            lambda _: None,
        )
        try:
            yield
        finally:
            del opening._SCHEMES[SCHEME]

    def held(self, uri: str) -> bytes:
        """What is there, by no request.

        Raises:
            ObjectNotFoundError: nothing.
        """
        found = self.objects.get(uri.removeprefix(ROOT + "/"))
        if found is None:
            raise ObjectNotFoundError(f"no object {uri}")
        return found[0]

    def destroy(self, uri: str) -> bool:
        """Take it away, by no request; False when it is not there."""
        return self.objects.pop(uri.removeprefix(ROOT + "/"), None) is not None

    # -- requests ---------------------------------------------------------------------------

    def request(
        self,
        what: str,
        limit_s: float,
        effect: Callable[[], None] | None = None,
        *,
        hedged: bool = False,
    ) -> None:
        """Let a request take its time, and its effect at a moment of that, if it has any.

        With `hedged` it is made a second time by the rule, as `ObjectStorage` reads.

        Raises:
            StorageError: it was refused, or its answer did not come.
        """
        rng = self._rng
        if self.away:
            takes(limit_s if self.away == "silent" else 0.002)
            raise StorageError(f"cannot {what}: the store is away")
        if rng.random() < self.refuses:
            takes(rng.uniform(0.001, 0.1))
            raise StorageError(f"cannot {what}: 503 SlowDown")
        latency_s = self._hedged_latency_s() if hedged else self._latency_s()
        if effect is not None:
            loop = worker()
            when_us = int(latency_s * rng.random() * 1e6)
            self.world.timeline.after(when_us, lambda: loop.alive and effect())
        takes(min(latency_s, limit_s))
        if latency_s > limit_s:
            raise StorageError(f"cannot {what}: the store did not answer in time")
        if rng.random() < self.loses:
            raise StorageError(f"cannot {what}: connection reset")

    def store(self, key: str, content: bytes) -> None:
        """A put takes effect."""
        if key not in self.objects:
            self.objects[key] = content, self._clock_ns() // 1_000_000
            self._on_stored(key)

    def _hedged_latency_s(self) -> float:
        latency_s = self._latency_s()
        request = self._hedging.began(1)
        delay_s = request.delay_s
        if delay_s is not None and latency_s > delay_s and self._hedging.overdue(request):
            latency_s = min(latency_s, delay_s + self._latency_s())
        self._hedging.ended(request, latency_s, succeeded=True)
        return latency_s

    def _latency_s(self) -> float:
        rng = self._rng
        if rng.random() < self.stalls:
            return rng.uniform(1.0, 12.0)
        return rng.uniform(*LATENCY_S) * self.slowness


class StoreView:
    """A `StorageHandler` on the store; keys are without the root, as there is one."""

    remote = True
    requests: ClassVar[dict[str, int]] = {}

    def __init__(self, model: ObjectStoreModel) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"<StoreView of {self._model!r}>"

    def put(self, key, buffers, *, timeout_s):
        content = b"".join(buffers)
        model = self._model
        check_key(key)
        model.request(
            f"write {key!r}",
            min(timeout_s, STALL_S + len(content) / SLOW_BYTES_S),
            lambda: model.store(key, content),
        )
        held = model.objects.get(key, (content, 0))[0]
        if held != content:
            raise StorageError(f"cannot write {key!r}: the key holds other bytes")

    def get(self, key):
        self._model.request(f"read {check_key(key)!r}", STALL_S, hedged=True)
        held = self._model.objects.get(key)
        if held is None:
            raise ObjectNotFoundError(f"no object {key!r}")
        return held[0]

    def get_range(self, key, start, length):
        return self.get(key)[start : start + length]

    def list(self, *prefixes):
        for prefix in prefixes:
            check_prefix(prefix)
        self._model.request(f"list {prefixes!r}", LIST_S)
        return iter(
            [
                ObjectInfo(key, len(content), modified_ms)
                for prefix in prefixes
                for key, (content, modified_ms) in self._model.objects.items()
                if key.startswith(prefix)
            ]
        )

    def delete(self, *keys):
        for key in keys:
            self._model.objects.pop(check_key(key), None)
        self._model.request(f"delete {len(keys)} objects", STALL_S)

    def close(self):
        """Nothing: threads of the simulation end when they must."""

    def uri(self, key):
        return f"{ROOT}/{check_key(key)}"
