"""Turns: requests of many connections are served in turns, and what their answers take is bounded.

Theory of operation
-------------------
Every request but a Write waits for its turn. A connection has two lanes, one for requests whose
answers are small (heartbeats, commits, offsets) and one for those whose answers are large
(notifications, Batches, lists), so that the first never wait behind the second. Lanes stand in two
rings. In one turn of the event loop at most one request of each ring is let in: that of the lane
in front, which then goes to the end. So a connection that sends a thousand requests waits for its
own, everybody else has the next turn, and acks, which are made in between, wait for one request of
each kind at most.

A large answer is charged before it is made, with the most that it may take, then with what it does
take, until its last byte has left for the kernel. A lane stays out of its ring, and so costs
nobody a turn, while its client does not read, while `AT_A_TIME` of its requests are being served,
and while its connection holds its share. When the bound of all answers is reached the lane in
front waits, and all behind it: the answer that does not fit is not overtaken by smaller ones. An
answer that is larger than a bound is made when there is no other.

A long poll asks for its turn when it has waited, not before: it holds nothing while it does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

ANSWERS_SHARE = 0.25  # of memory_bytes, on top of it, for the answers of all connections
LINE_SHARE = 1 / 16  # of that for one connection: many must not read before others wait
AT_A_TIME = 4  # requests of one lane: some wait for a disk while others are sent


class _Lane:
    """Requests of one connection and one kind that await their turn."""

    __slots__ = ("line", "serving", "waiting")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.waiting: deque[Turn] = deque()
        self.serving = 0


_Ring = dict[_Lane, None]  # in the order in which they are let in


class Line:
    """The requests of one connection.

    Attributes:
        held_bytes: what its answers take now.
        reads: whether its client reads what it is sent.
    """

    __slots__ = ("held_bytes", "large", "reads", "small")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.reads = True
        self.small = _Lane(self)
        self.large = _Lane(self)


class Turns:
    """Lets requests in, one by one. It belongs to one event loop.

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
        self._line_limit = int(limit_bytes * LINE_SHARE)
        self._small: _Ring = {}
        self._large: _Ring = {}
        self._round: asyncio.Handle | None = None  # the next one, while this one has been used

    def __repr__(self) -> str:
        state = "full" if self.full else "open"
        return (
            f"<Turns [{self.used_bytes}/{self.limit_bytes} bytes of answers | "
            f"{len(self._small) + len(self._large)} lanes wait | {state}]>"
        )

    def reads(self, line: Line, *, reads: bool) -> None:
        """A client begins or ceases to read what it is sent."""
        line.reads = reads
        self._enter(line.small)
        self._enter(line.large)

    def ask(self, turn: Turn, lane: _Lane) -> None:
        """A request wants to be served."""
        lane.waiting.append(turn)
        self._enter(lane)

    def charge(self, line: Line, size_bytes: int) -> None:
        """An answer takes so much more; less, when it is negative."""
        line.held_bytes += size_bytes
        self.used_bytes += size_bytes
        if size_bytes < 0:
            self._enter(line.large)
            if self.full:
                self._begin_round()

    def done(self, lane: _Lane) -> None:
        """A request is served."""
        lane.serving -= 1
        self._enter(lane)

    def _enter(self, lane: _Lane) -> None:
        if lane.waiting and self._may(lane):
            ring = self._small if lane is lane.line.small else self._large
            ring.setdefault(lane)
            self._begin_round()

    def _may(self, lane: _Lane) -> bool:
        """Whether nothing but others keeps the lane's first request from its turn."""
        line = lane.line
        if not line.reads or lane.serving >= AT_A_TIME:
            return False
        if lane is line.small or not line.held_bytes:
            return True
        return line.held_bytes + lane.waiting[0].size_bytes <= self._line_limit

    def _fits(self, size_bytes: int) -> bool:
        used = self.used_bytes
        return not size_bytes or not used or used + size_bytes <= self.limit_bytes

    def _begin_round(self) -> None:
        if self._round is None:
            self._run_round()

    def _run_round(self) -> None:
        self._round = None
        let_in = self._let_in(self._small)
        self.full = False
        if self._let_in(self._large) or let_in:
            self._round = asyncio.get_running_loop().call_soon(self._run_round)

    def _let_in(self, ring: _Ring) -> bool:
        while ring:
            lane = next(iter(ring))
            while lane.waiting and lane.waiting[0].given_up:
                lane.waiting.popleft()
            if lane.waiting and self._may(lane):
                turn = lane.waiting[0]
                if not self._fits(turn.size_bytes):
                    self.full = True
                    return False
                del ring[lane]
                lane.waiting.popleft()
                lane.serving += 1
                self.charge(lane.line, turn.size_bytes)
                turn.let_in()
                if lane.waiting and self._may(lane):
                    ring[lane] = None
                return True
            del ring[lane]
        return False


class Turn:
    """The turn of one request, from when it is let in to when its answer takes nothing any more.

    Args:
        turns: of the broker.
        line: of its connection.
        size_bytes: the most that its answer takes; 0 for one that is small.
    """

    __slots__ = ("_lane", "_let_in", "_turns", "size_bytes")

    def __init__(self, turns: Turns, line: Line, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._turns = turns
        self._lane = line.large if size_bytes else line.small
        self._let_in = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        self._turns.ask(self, self._lane)
        try:
            await self._let_in
        except asyncio.CancelledError:
            if not self._let_in.cancelled():
                self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    @property
    def given_up(self) -> bool:
        """Nobody waits for it any more."""
        return self._let_in.done()

    def let_in(self) -> None:
        """It is its turn."""
        self._let_in.set_result(None)

    def resize(self, size_bytes: int) -> None:
        """The answer is made, and takes so much."""
        self._turns.charge(self._lane.line, size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    def _end(self) -> None:
        self.resize(0)
        self._turns.done(self._lane)
