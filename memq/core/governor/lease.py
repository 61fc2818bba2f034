"""How long a session with ZooKeeper certainly lives, by the clock of the one who holds it.

Theory of operation
-------------------
A session ends, and its ephemerals go, when the service has heard nothing of it for the session
timeout. It cannot say so to somebody who does not hear it: with all servers frozen for 12 s, a
client with a session of 6 s was told after 12.2 s. So a broker measures by itself, and stops acking
*before* another one can have taken its place.

Rule 1. The service heard a request after it was sent. So a session lives at least until the time
    at which a request was sent *that was answered later*, and the session timeout. When the answer
    came plays no part, and what was not answered proves nothing.
Rule 2. The request has to be one that the leader answers (`sync`), and not any server. A follower
    answers pings and reads by itself, also when it is cut off from the leader, which ends sessions.
Rule 3. Of the session timeout `RESERVE_SHARE` is left unused. Three things come out of it:
    - A follower does not pass on a request's sign of life with the request. It tells the leader
      with its next answer to the leader's ping, which comes every half tick.
    - A leader that has been replaced may go on answering until it notices, about a tick. Its
      successor gives every session its full timeout, from its own start on.
    - Clocks drift, by a thousandth at worst.
    These do not add up: the successor forgets what was passed on late. A quarter is enough when the
    session timeout has four ticks or more, 8 s by default; ZooKeeper allows no less than two.
Rule 4. `LEAVE_S` more is left, so that an ack that was allowed has left the machine by then. A
    process may all the same be stopped between the question and the ack: a lease cannot prevent
    that. What it confirms was published before; and what a stopped broker publishes later, the
    notification queue refuses, which has been fenced by its successor.
Rule 5. A probe is due `PROBE_SHARE` of the timeout after the one before. So several may be lost or
    late before the lease runs out. It comes back with the next answer, as long as the session is
    not lost; an answer to what was sent before it ran out brings back nothing.

Clocks. A process that is stopped (SIGSTOP) finds the lease run out when it goes on: monotonic
clocks do not stop with it. A *machine* that is suspended does stop Linux's CLOCK_MONOTONIC, which
`Runtime.mono_s` and asyncio use, and with it a lease of minutes ago would seem valid. So the times
given here are those of `Runtime.boot_s`, CLOCK_BOOTTIME, which goes on. A *virtual* machine whose
host stops it without telling it has no clock that goes on. It finds out with its next probe, whose
connection the service has closed meanwhile, so after `PROBE_SHARE` of the timeout at most; until
then only the fence of rule 4 holds.

It is a state machine without a clock: times are given, in seconds.
"""

from __future__ import annotations

import math

RESERVE_SHARE = 0.25  # of the session timeout; see rule 3
LEAVE_S = 0.1  # between two turns of a busy event loop; see rule 4
PROBE_SHARE = 0.125  # six of them fit into a lease, so that five may be lost


class Lease:
    """Whether the session certainly lives; see the theory of operation.

    Attributes:
        timeout_s: the session timeout that the service agreed to; 0 before there is a session.
        valid_until_s: when the lease runs out; minus infinity before there is one.
    """

    def __init__(self) -> None:
        self.timeout_s = 0.0
        self.valid_until_s = -math.inf
        self._answered_s = -math.inf  # when the latest request was sent that was answered
        self._sent_s = -math.inf  # when the latest probe was sent
        self._lost = False

    def __repr__(self) -> str:
        state = "lost" if self._lost else f"until {self.valid_until_s:.3f} s"
        return f"<Lease [{state} | session of {self.timeout_s:g} s]>"

    def valid(self, now_s: float) -> bool:
        """Return whether the session certainly lives, so that an ack may be sent now."""
        return now_s < self.valid_until_s

    @property
    def probe_due_s(self) -> float:
        """When to send the next probe. It may be past already."""
        return max(self._sent_s, self._answered_s) + self.timeout_s * PROBE_SHARE

    def silent_s(self, now_s: float) -> float:
        """Return how long an answer is overdue, in seconds: since a probe was due after the last
        answer.
        """
        return now_s - self._answered_s - self.timeout_s * PROBE_SHARE

    def agreed(self, sent_s: float, timeout_s: float) -> None:
        """Record that a handshake sent at `sent_s` began or continued the session, at this timeout.

        It may differ from the one before, on another server; then it counts for all requests.
        """
        if not self._lost:
            self.timeout_s = timeout_s
            self.answered(sent_s)

    def sent(self, now_s: float) -> None:
        """Record that a probe is sent."""
        self._sent_s = max(self._sent_s, now_s)

    def answered(self, sent_s: float) -> None:
        """Record that the leader has answered a request that was sent at `sent_s`."""
        if not self._lost:
            self._answered_s = max(self._answered_s, sent_s)
            lives_s = self.timeout_s * (1 - RESERVE_SHARE) - LEAVE_S
            self.valid_until_s = self._answered_s + lives_s

    def lost(self) -> None:
        """Record that the session is over, or was closed. No answer brings it back."""
        self._lost = True
        self.valid_until_s = -math.inf
