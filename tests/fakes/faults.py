"""Which call fails how: plans of faults, the same in every run.

A plan is a list of `Fault`, plain data. `FaultyStorage` and `FaultyQueue` carry it out around any
storage or queue. Chance comes from a seed and from the number of the call, so it does not depend on
the order in which threads or tasks get to run: the k-th put of a run always meets the same faults.

    plan = [
        Fault("put", "lose_answer", first=3),                        # the third put
        Fault("put", "delay", times=None, delays_ms=(2, 2, 2, 500)),  # every put, 1 in 4 slow
        Fault("*", "fail", times=None, probability=0.01),             # 1 % of everything
    ]
    storage = FaultyStorage(InMemoryStorage(), plan, seed=7)
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Kind = Literal[
    "fail",
    "disk_full",
    "lose_answer",
    "uncertain",
    "partial",
    "corrupt",
    "truncate",
    "delay",
    "hang",
    "crash_before",
    "crash_after",
]
"""What a fault does to the call that it strikes:

- fail: nothing happens, and the call raises.
- disk_full: the same, in the words of a full disk.
- lose_answer: it happens, and the call raises all the same.
- uncertain: (publish) nothing happens, and the call raises `PublishUncertainError`.
- partial: (list) ends in the middle with an error; (publish) the first half happens, and the call
  raises `PublishUncertainError`.
- corrupt: (get, get_range) one bit of what is returned is flipped.
- truncate: (get, get_range) what is returned ends too soon.
- delay: the call begins later, by one of `delays_ms`.
- hang: the call begins when `end_hangs` is called.
- crash_before, crash_after: the crash hook is called; by default the process kills itself.
"""

EVERYWHERE = frozenset({"fail", "delay", "hang", "crash_before", "crash_after"})
"""Kinds that can strike any operation."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan.

    Attributes:
        operation: the method that it strikes; "*" for each one that the kind applies to.
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

    def covers(self, number: int) -> bool:
        """Whether the fault may strike the call of that number."""
        return self.first <= number and (self.times is None or number < self.first + self.times)


@dataclass(frozen=True, slots=True)
class Strike:
    """What meets one call.

    Attributes:
        operation: the method.
        number: of the call, from 1.
        kinds: what happens to it.
        delay_s: how much later it begins.
        chance: for what else is random about it.
    """

    operation: str
    number: int
    kinds: frozenset[str]
    delay_s: float
    chance: random.Random

    def __contains__(self, kind: Kind) -> bool:
        return kind in self.kinds

    def __str__(self) -> str:
        return f"injected fault in call {self.number} of {self.operation}"


class Faults:
    """Carries out a plan: counts the calls and says what meets each. Thread-safe.

    Args:
        plan: the faults; several may strike the same call.
        seed: of the chances.
        applicable: kinds that may strike each operation beside those of `EVERYWHERE`.

    Attributes:
        calls: how often each operation was called.
        struck: how often each kind struck each operation.

    Raises:
        ConfigError: a fault names an operation or kind that does not exist, or that do not fit, or
            its numbers make no sense.
    """

    def __init__(
        self, plan: Sequence[Fault], *, seed: int, applicable: Mapping[str, frozenset[str]]
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.struck: Counter[tuple[str, str]] = Counter()
        self._plan = tuple(plan)
        self._seed = seed
        self._applicable = {name: kinds | EVERYWHERE for name, kinds in applicable.items()}
        self._lock = threading.Lock()
        for fault in self._plan:
            self._check(fault)

    def __repr__(self) -> str:
        return f"<Faults [{self.calls.total()} calls, {self.struck.total()} faults]>"

    def strike(self, operation: str) -> Strike:
        """Count a call of the operation and say what meets it."""
        with self._lock:
            self.calls[operation] += 1
            number = self.calls[operation]
            chance = random.Random(f"{self._seed}/{operation}/{number}")
            found = [
                fault for fault in self._plan if self._strikes(fault, operation, number, chance)
            ]
            kinds = frozenset(fault.kind for fault in found)
            self.struck.update((operation, kind) for kind in kinds)
        delay_ms = sum(chance.choice(fault.delays_ms) for fault in found if fault.delays_ms)
        return Strike(operation, number, kinds, delay_ms / 1000, chance)

    def _strikes(self, fault: Fault, operation: str, number: int, chance: random.Random) -> bool:
        """Whether a fault strikes; draws once for every fault, so that each keeps its own luck."""
        drawn = chance.random()
        return (
            fault.operation in (operation, "*")
            and fault.kind in self._applicable[operation]
            and fault.covers(number)
            and drawn < fault.probability
        )

    def _check(self, fault: Fault) -> None:
        if fault.kind not in get_args(Kind):
            raise ConfigError(f"{fault}: no such kind; known are {', '.join(get_args(Kind))}")
        if fault.operation != "*" and fault.operation not in self._applicable:
            raise ConfigError(
                f"{fault}: no such operation; known are *, {', '.join(self._applicable)}"
            )
        fitting = [name for name, kinds in self._applicable.items() if fault.kind in kinds]
        if fault.operation not in (*fitting, "*" if fitting else ""):
            raise ConfigError(
                f"{fault}: {fault.kind!r} strikes only {', '.join(fitting) or 'elsewhere'}"
            )
        if fault.first < 1 or (fault.times or 0) < 0 or not 0 <= fault.probability <= 1:
            raise ConfigError(f"{fault}: first is 1 or more, times 0 or more, probability 0 to 1")
        if (fault.kind == "delay") != bool(fault.delays_ms) or min(fault.delays_ms, default=0) < 0:
            raise ConfigError(f"{fault}: delays_ms belongs to 'delay', and holds 0 or more each")


def kill_this_process() -> None:
    """End this process like `kill -9`: nothing is flushed, nothing is told."""
    os.kill(os.getpid(), signal.SIGKILL)
