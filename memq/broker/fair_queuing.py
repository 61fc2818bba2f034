"""Fair queuing: requests of many connections are served in turns, and their answers are bounded.

Theory of operation
-------------------
Every request but a Write waits for its turn. A connection has two *flows*, one for requests whose
answers are small (heartbeats, commits, offsets) and one for those whose answers are large
(notifications, Batches, lists), so that the first never wait for the second. The flows of each kind
that have something to serve are *active*, and are served round robin: in one turn of the event loop
at most one request of each kind is admitted, that of the first active flow, which then goes to the
end. So a connection that sends a thousand requests waits for its own, everybody else has the next
turn, and acks, which are made in between, wait for one request of each kind at most.

A large answer is charged before it is made, with the most that it may take, then with what it does
take, until its last byte has left for the kernel. A flow is not active, and so costs nobody a turn,
while its client does not read, while `AT_A_TIME` of its requests are being served, and while its
connection holds its share. When the bound of all answers is reached the first active flow waits,
and all flows after it: the answer that does not fit is not overtaken by smaller ones. An answer
that is larger than a bound is made when there is no other.

A long poll is queued when it has waited, not before: it holds nothing while it does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

ANSWERS_SHARE = 0.25  # of memory_bytes, on top of it, for the answers of all connections
CLIENT_SHARE = 1 / 16  # of that for one connection: many must not read before others wait
AT_A_TIME = 4  # requests of one flow: some wait for a disk while others are sent


class _Flow:
    """Requests of one connection and one kind that await their turn."""

    __slots__ = ("client", "serving", "waiting")

    def __init__(self, client: ClientFlows) -> None:
        self.client = client
        self.waiting: deque[ScheduledRequest] = deque()
        self.serving = 0


_ActiveFlows = dict[_Flow, None]  # in the order in which they are served


class ClientFlows:
    """The requests of one connection.

    Attributes:
        held_bytes: what its answers take now.
        reads: whether its client reads what it is sent.
    """

    __slots__ = ("held_bytes", "large", "reads", "small")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.reads = True
        self.small = _Flow(self)
        self.large = _Flow(self)


class FairScheduler:
    """Admits requests, one by one. It belongs to one event loop.

    Args:
        limit_bytes: of all answers.

    Attributes:
        used_bytes: what answers take now.
        full: an answer waits because of others' answers.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.full = False
        self._client_limit = int(limit_bytes * CLIENT_SHARE)
        self._small: _ActiveFlows = {}
        self._large: _ActiveFlows = {}
        self._round: asyncio.Handle | None = None  # the next one, while this one has been used

    def __repr__(self) -> str:
        state = "full" if self.full else "open"
        return (
            f"<FairScheduler [{self.used_bytes}/{self.limit_bytes} bytes of answers | "
            f"{len(self._small) + len(self._large)} flows wait | {state}]>"
        )

    def reads(self, client: ClientFlows, *, reads: bool) -> None:
        """Record that a client begins or ceases to read what it is sent."""
        client.reads = reads
        self._activate(client.small)
        self._activate(client.large)

    def enqueue(self, request: ScheduledRequest, flow: _Flow) -> None:
        """Add a request that waits for its turn."""
        flow.waiting.append(request)
        self._activate(flow)

    def charge(self, client: ClientFlows, size_bytes: int) -> None:
        """Charge an answer's size to its flow; a negative size is refunded."""
        client.held_bytes += size_bytes
        self.used_bytes += size_bytes
        if size_bytes < 0:
            self._activate(client.large)
            if self.full:
                self._begin_round()

    def done(self, flow: _Flow) -> None:
        """Free the place of a request that is served."""
        flow.serving -= 1
        self._activate(flow)

    def _activate(self, flow: _Flow) -> None:
        if flow.waiting and self._may(flow):
            active = self._small if flow is flow.client.small else self._large
            active.setdefault(flow)
            self._begin_round()

    def _may(self, flow: _Flow) -> bool:
        """Return whether the flow's first request waits only for others."""
        client = flow.client
        if not client.reads or flow.serving >= AT_A_TIME:
            return False
        if flow is client.small or not client.held_bytes:
            return True
        return client.held_bytes + flow.waiting[0].size_bytes <= self._client_limit

    def _fits(self, size_bytes: int) -> bool:
        used = self.used_bytes
        return not size_bytes or not used or used + size_bytes <= self.limit_bytes

    def _begin_round(self) -> None:
        if self._round is None:
            self._run_round()

    def _run_round(self) -> None:
        self._round = None
        admitted = self._admit_next(self._small)
        self.full = False
        if self._admit_next(self._large) or admitted:
            self._round = asyncio.get_running_loop().call_soon(self._run_round)

    def _admit_next(self, active: _ActiveFlows) -> bool:
        while active:
            flow = next(iter(active))
            while flow.waiting and flow.waiting[0].given_up:
                flow.waiting.popleft()
            if flow.waiting and self._may(flow):
                request = flow.waiting[0]
                if not self._fits(request.size_bytes):
                    self.full = True
                    return False
                del active[flow]
                flow.waiting.popleft()
                flow.serving += 1
                self.charge(flow.client, request.size_bytes)
                request.admit()
                if flow.waiting and self._may(flow):
                    active[flow] = None
                return True
            del active[flow]
        return False


class ScheduledRequest:
    """A request, from when it is queued to when its answer takes nothing any more.

    Args:
        scheduler: of the broker.
        client: of its connection.
        size_bytes: the most that its answer takes; 0 for one that is small.
    """

    __slots__ = ("_admitted", "_flow", "_scheduler", "size_bytes")

    def __init__(self, scheduler: FairScheduler, client: ClientFlows, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._scheduler = scheduler
        self._flow = client.large if size_bytes else client.small
        self._admitted = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        self._scheduler.enqueue(self, self._flow)
        try:
            await self._admitted
        except asyncio.CancelledError:
            if not self._admitted.cancelled():
                self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    @property
    def given_up(self) -> bool:
        """Nobody waits for it any more."""
        return self._admitted.done()

    def admit(self) -> None:
        """Let it begin: its turn has come."""
        self._admitted.set_result(None)

    def resize(self, size_bytes: int) -> None:
        """Record the size of the answer that was made."""
        self._scheduler.charge(self._flow.client, size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    def _end(self) -> None:
        self.resize(0)
        self._scheduler.done(self._flow)
