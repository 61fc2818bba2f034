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
    from collections.abc import Collection, Iterable, Sequence

    from memq.core.wire.messages import BrokerInfo
    from memq.runtime.system import Runtime

REST_S = 30.0  # a restart takes some seconds; asking in vain costs up to 5 s


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
        self._preferred: list[dict[str, None]] = []  # addresses, the best first
        self._every: dict[str, None] = {}
        self._reader = ""

    def __repr__(self) -> str:
        return (
            f"<BrokerChoice {self._zone or 'no zone'} [{len(self._every)} brokers | "
            f"{len(self._rested_s)} rest] reads at {self._reader or 'whoever serves the topic'}>"
        )

    def known(self, brokers: Sequence[BrokerInfo]) -> None:
        """These are the brokers now."""
        near = [broker for broker in brokers if self._zone and broker.zone == self._zone]
        self._preferred = [
            _addresses(broker for broker in near if broker.reads),
            _addresses(near),
            _addresses(broker for broker in brokers if broker.reads),
        ]
        self._every = _addresses(brokers)

    def near(self) -> Collection[str]:
        """Addresses of the brokers in the client's zone."""
        return self._preferred[1] if self._preferred else {}

    def failed(self, address: str) -> None:
        """A broker could not be reached, or could not do what it was asked for."""
        now_s = self._clock()
        resting = {
            each: until_s
            for each, until_s in self._rested_s.items()
            if now_s < until_s and each != address
        }
        self._rested_s = {**resting, address: now_s + REST_S}

    def answered(self, address: str) -> None:
        """A broker did what it was asked for."""
        self._rested_s.pop(address, None)

    def awake(self, address: str) -> bool:
        """Whether a broker does not rest."""
        rested_s = self._rested_s.get(address)
        if rested_s is not None and self._clock() >= rested_s:
            del self._rested_s[address]
            return True
        return rested_s is None

    def first(self, addresses: Collection[str]) -> str:
        """The first of some brokers that does not rest, or else the one that failed first."""
        awake = next((each for each in addresses if self.awake(each)), None)
        if awake is not None:
            return awake
        return next(each for each in self._rested_s if each in addresses)

    def reader(self, serving: str) -> str:
        """The broker to read at; empty when none is known.

        Args:
            serving: the one that serves the topic; empty when none does.
        """
        for tier in self._preferred:
            if reader := self._kept(tier):
                return reader
        if serving and self.awake(serving):
            return serving
        every = self._every | ({serving: None} if serving else {})
        return self._kept(every) or (self.first(every) if every else "")

    def _kept(self, tier: Collection[str]) -> str:
        """The present reader if it is among these, or another of them; empty when all rest."""
        if self._reader in tier and self.awake(self._reader):
            return self._reader
        awake = [address for address in tier if self.awake(address)]
        if not awake:
            return ""
        self._reader = awake[int(self._randomness() * len(awake))]
        return self._reader


def _addresses(brokers: Iterable[BrokerInfo]) -> dict[str, None]:
    return dict.fromkeys(broker.address for broker in brokers)
