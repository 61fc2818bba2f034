"""Which call fails how: plans of faults, the same in every run.

A plan is a list of `Fault`, plain data. `FaultyStorage` and `FaultyQueue` carry it out around any
storage or queue. Chance comes from a seed and from the number of the call, so it does not depend on
the order in which threads or tasks get to run: the k-th put of a run always meets the same faults.

    plan = [
        Fault("put", "lose_answer", first=3),                        # the third put
        Fault("put", "delay", times=None, delays_ms=(2, 2, 2, 500)),  # every put, 1 in 4 slow
    ]
    storage = FaultyStorage(InMemoryStorage(), plan, seed=7)
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memq.errors import MemqError

Kind = Literal[
    "fail", "lose_answer", "uncertain", "partial", "delay", "hang", "crash_before", "crash_after"
]
"""What a fault does to the call that it strikes:

- fail: nothing happens, and the call raises.
- lose_answer: it happens, and the call raises all the same.
- uncertain: (publish) nothing happens, and the call raises `PublishUncertainError`.
- partial: (list) ends in the middle with an error; (publish) the first half happens, and the call
  raises `PublishUncertainError`.
- delay: the call begins later, by one of `delays_ms`.
- hang: (of a queue) the call begins when `end_hangs` is called.
- crash_before, crash_after: the process kills itself.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan.

    Attributes:
        operation: the method that it strikes.
        kind: what it does.
        first: number of the first call that it may strike; the first call of each method is 1.
        times: calls from `first` on that it may strike; None for all of them.
        probability: that it strikes such a call.
        delays_ms: for "delay": one of these is chosen, each with the same chance, so the list is
            the distribution.
    """

    operation: str
    kind: Kind
    first: int = 1
    times: int | None = 1
    probability: float = 1.0
    delays_ms: tuple[float, ...] = ()

    def covers(self, operation: str, number: int) -> bool:
        """Whether the fault may strike the call of that number."""
        last = number if self.times is None else self.first + self.times - 1
        return operation == self.operation and self.first <= number <= last


@dataclass(frozen=True, slots=True)
class Strike:
    """What meets one call.

    Attributes:
        operation: the method.
        number: of the call, from 1.
        kinds: what happens to it.
        delay_s: how much later it begins.
    """

    operation: str
    number: int
    kinds: frozenset[str]
    delay_s: float

    def __contains__(self, kind: Kind) -> bool:
        return kind in self.kinds

    def __str__(self) -> str:
        return f"injected fault in call {self.number} of {self.operation}"

    def before(self, error: type[MemqError]) -> None:
        """End what must not happen."""
        if "crash_before" in self:
            kill_this_process()
        if "fail" in self:
            raise error(str(self))

    def after(self, error: type[MemqError]) -> None:
        """End what has happened, before anybody is told so."""
        if "crash_after" in self:
            kill_this_process()
        if "lose_answer" in self:
            raise error(f"{self}: it was done, but the answer is lost")


class Faults:
    """Carries out a plan: counts the calls and says what meets each. Thread-safe.

    Args:
        plan: the faults; several may strike the same call.
        seed: of the chances.

    Attributes:
        calls: how often each operation was called.
        struck: how often each kind struck each operation.
    """

    def __init__(self, plan: Sequence[Fault], *, seed: int) -> None:
        self.calls: Counter[str] = Counter()
        self.struck: Counter[tuple[str, str]] = Counter()
        self._plan = tuple(plan)
        self._seed = seed
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Faults [{self.calls.total()} calls, {self.struck.total()} faults]>"

    def strike(self, operation: str) -> Strike:
        """Count a call of the operation and say what meets it."""
        with self._lock:
            self.calls[operation] += 1
            number = self.calls[operation]
            chance = random.Random(f"{self._seed}/{operation}/{number}")
            # Each fault draws, so that it keeps its own luck.
            drawn = [(fault, chance.random()) for fault in self._plan]
            found = [
                fault
                for fault, luck in drawn
                if fault.covers(operation, number) and luck < fault.probability
            ]
            kinds = frozenset(fault.kind for fault in found)
            self.struck.update((operation, kind) for kind in kinds)
        delay_ms = sum(chance.choice(fault.delays_ms) for fault in found if fault.delays_ms)
        return Strike(operation, number, kinds, delay_ms / 1000)


def kill_this_process() -> None:
    """End this process like `kill -9`: nothing is flushed, nothing is told."""
    os.kill(os.getpid(), signal.SIGKILL)
