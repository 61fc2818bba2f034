"""Which broker to ask where several would do.

Theory of operation
-------------------
A broker that failed *rests*: for `REST_S` any other one is asked before it, and when all rest, the
one that failed first. So a broker that is dead, or out of this client's reach, costs one attempt
now and then, whatever the others say of it.

What is read is read at a *reader*. Brokers are preferred in this order, and those that are equal
are chosen between by chance, once for each client, so that many clients spread over them:

    1. of the client's zone, with the role of reading
    2. of the client's zone
    3. with the role of reading
    4. the one that serves the topic
    5. any

A reader is kept until it fails, or one that is preferred to it can be asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memq.core.wire.messages import BrokerInfo
    from memq.runtime.system import Runtime

_Rank = tuple[bool, bool, bool]
"""Whether a broker is far, is no reader, and does not serve the topic: the least comes first."""

SERVING: _Rank = (True, True, False)
REST_S = 30.0  # a restart takes some seconds; a failed attempt costs up to 5 s


class BrokerChoice:
    """What one client knows of its brokers, to choose among them.

    Args:
        zone: of the client; empty when it is not said.
        runtime: its monotonic clock and its randomness.
    """

    def __init__(self, zone: str, runtime: Runtime) -> None:
        self._zone = zone
        self._clock = runtime.mono_s
        self._randomness = runtime.random
        self._rested_s: dict[str, float] = {}  # by address, in the order of their failures
        self._ranks: dict[str, _Rank] = {}  # by address
        self._reader = ""

    def __repr__(self) -> str:
        return (
            f"<BrokerChoice {self._zone or 'no zone'} [{len(self._ranks)} brokers | "
            f"{len(self._rested_s)} rest] reads at {self._reader or 'the serving broker'}>"
        )

    def known(self, brokers: Sequence[BrokerInfo]) -> None:
        """Take these for the brokers that there are now."""
        self._ranks = {
            each.address: (not self._zone or each.zone != self._zone, not each.reads, True)
            for each in brokers
        }

    def near(self) -> Collection[str]:
        """Return the addresses of the brokers in the client's zone."""
        return [address for address, (far, *_) in self._ranks.items() if not far]

    def failed(self, address: str) -> None:
        """Record that a broker could not be reached, or could not do what it was asked for."""
        now_s = self._clock()
        resting = {
            each: until_s
            for each, until_s in self._rested_s.items()
            if now_s < until_s and each != address
        }
        self._rested_s = {**resting, address: now_s + REST_S}

    def answered(self, address: str) -> None:
        """Record that a broker did what it was asked for."""
        self._rested_s.pop(address, None)

    def awake(self, address: str) -> bool:
        """Return whether a broker does not rest."""
        rested_s = self._rested_s.get(address)
        if rested_s is not None and self._clock() >= rested_s:
            del self._rested_s[address]
            return True
        return rested_s is None

    def first(self, addresses: Collection[str]) -> str:
        """Choose the first broker that does not rest, or else the one that failed first."""
        awake = next((each for each in addresses if self.awake(each)), None)
        if awake is not None:
            return awake
        return next(each for each in self._rested_s if each in addresses)

    def reader(self, serving: str) -> str:
        """Choose the broker to read at; empty when none is known.

        Args:
            serving: the one that serves the topic; empty when none does.
        """
        ranks = dict(self._ranks)
        if serving:
            ranks[serving] = min(SERVING, ranks.get(serving, SERVING))
        awake = [address for address in ranks if self.awake(address)]
        if not awake:
            return self.first(ranks) if ranks else ""
        best = min(ranks[address] for address in awake)
        equal = [address for address in awake if ranks[address] == best]
        if self._reader not in equal:
            self._reader = equal[int(self._randomness() * len(equal))]
        return self._reader
