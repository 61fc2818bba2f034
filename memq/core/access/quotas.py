"""Quotas: how much a principal, a client or a group may ask of each broker.

A quota is of one *holder*: `User:NAME`, `client:NAME` or `group:NAME`. That of the name `*` is for
each that has none of its own. What a connection does counts for its principal, the name of its
client and its group; the strictest of their quotas holds. A client's counts for each principal by
itself, so that nobody can use up what another's client has.

Theory of operation. A limit by the second is a token bucket, which holds one second's worth.
What a client does is taken from it at once, also beyond what is there; the debt is the time for
which the client has to wait. So nothing is refused, and what comes in a burst is paid for later. A
debt beyond `MAX_DEBT_S` is forgotten, so that no client waits without end. What is known before it
is done, such as a Batch to be sent, is reserved, so that no two take the same tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.access.rules import ANY, check_text
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BYTES_IN, BYTES_OUT, REPLAY = "bytes_in", "bytes_out", "replay_bytes"
REQUESTS, MUTATIONS, CONNECTIONS = "requests", "mutations", "connections"

LIMITS = {
    BYTES_IN: "Bytes a second that it sends.",
    BYTES_OUT: "Bytes a second of notifications and Batches that brokers send it.",
    REPLAY: "Bytes a second of these Batches that are older than 5 minutes.",
    REQUESTS: "Requests a second.",
    MUTATIONS: "Changes a second of topics, groups, users, rules, quotas and brokers.",
    CONNECTIONS: "Connections at a time.",
}
"""What may be limited, at each broker."""

SIZES = frozenset((BYTES_IN, BYTES_OUT, REPLAY))
"""The limits of bytes; the others count."""

REPLAY_AGE_MS = 300_000
"""Age from which reading a Batch is a replay."""

MAX_DEBT_S = 30.0
"""For which a client waits at most for what it did before."""

MAX_LIMIT = 1 << 50

USER, CLIENT, GROUP = "User", "client", "group"

Quotas = dict[str, dict[str, int]]
"""Limits by name, by holder."""


def check_quota(holder: str, limits: Mapping[str, int]) -> None:
    """Refuse a quota that can be of nobody, or limits nothing.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    kind, _, name = holder.partition(":")
    if kind not in (USER, CLIENT, GROUP):
        raise InvalidRequestError(
            f"{holder[:100]!r} holds no quota: write User:NAME, client:NAME or group:NAME; the "
            "name * is for each that has none of its own"
        )
    check_text("name", name)
    if not limits:
        raise InvalidRequestError(f"a quota without a limit: give one of {', '.join(LIMITS)}")
    for limit, value in limits.items():
        if limit not in LIMITS or not 0 < value <= MAX_LIMIT:
            raise InvalidRequestError(
                f"{limit[:100]!r} {value}: must be one of {', '.join(LIMITS)}, "
                f"from 1 to {MAX_LIMIT}"
            )
        if limit == CONNECTIONS and kind == GROUP:
            raise InvalidRequestError(f"{holder[:100]}: connections are limited by User or client")


def limits_of(quotas: Quotas, kind: str, name: str) -> Iterator[tuple[str, str, int]]:
    """Yield the limits that hold for a holder: the quota, the name of the limit, its value."""
    own, default = f"{kind}:{name}", f"{kind}:{ANY}"
    for limit in LIMITS:
        for quota in (own, default):
            if value := quotas.get(quota, {}).get(limit):
                yield quota, limit, value
                break


class TokenBucket:
    """What is left of a limit by the second.

    Args:
        rate: of the limit.
        now_s: the time, seconds of a clock that only goes forward.

    Attributes:
        rate: as given; it may be changed.
    """

    __slots__ = ("_at_s", "_left", "_reserved", "rate")

    def __init__(self, rate: int, now_s: float) -> None:
        self.rate = rate
        self._left = float(rate)
        self._reserved = 0
        self._at_s = now_s

    def __repr__(self) -> str:
        return f"<TokenBucket [{self._left:.0f} of {self.rate} left]>"

    def take(self, amount: int, now_s: float) -> float:
        """Take what was asked for; return for how many seconds to wait now."""
        refilled = min(self.rate, self._left + (now_s - self._at_s) * self.rate)
        self._left = max(refilled - amount, -MAX_DEBT_S * self.rate)
        self._at_s = now_s
        return min(MAX_DEBT_S, max(0.0, (self._reserved - self._left) / self.rate))

    def reserve(self, amount: int) -> None:
        """Let others wait for what will be taken; `reserve` less again once it is."""
        self._reserved += amount

    def is_full(self, now_s: float) -> bool:
        """Return whether a new one would be the same."""
        self.take(0, now_s)
        return self._left >= self.rate and not self._reserved
