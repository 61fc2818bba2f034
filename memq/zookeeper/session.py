"""A session with the coordination service, over a link: what ZooKeeper and its model share.

A `Link` carries requests and says what becomes of the connection. The session makes of that what
`memq.core.governor.coordination` promises: deadlines, what is uncertain, watches that go on over
lost connections, and the probes that its lease lives on.

Requests wait until the link is connected; a watch reads when something changed or when the
connection is gone that would have told it so.

*A session that no server goes on with is given up.* A server that knows less than the session has
seen refuses it: one that lags catches up, one that was restored from a backup never does. Neither
says so, they hang up. So after `REFUSED_SESSIONS` timeouts in which servers took connections and
none came about, the session is over, and a broker with another one sees what is there now. Where
no server is reached at all, the session may live, and is waited for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from memq.core.governor.coordination import (
    MAX_IN_FLIGHT,
    MAX_WATCH_READS,
    Create,
    Delete,
    Set,
    check_changes,
    check_path,
)
from memq.core.governor.lease import PROBE_SHARE, Lease
from memq.core.units import counted
from memq.errors import (
    ChangeUncertainError,
    ClosedError,
    MemqError,
    NoNodeError,
    SessionLostError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from memq.core.governor.coordination import Change, Node

T = TypeVar("T")

REFUSED_SESSIONS = 3
"""Session timeouts after which a session is given up that servers refuse: one that lags, or that is
started again, has it by then."""

# -- what a link carries ----------------------------------------------------------------------


class Sync(NamedTuple):
    """Answered by the leader; what is read after it, is as new as the sync. Gives None."""


class GetNode(NamedTuple):
    """Gives the `Node`.

    Raises:
        NoNodeError: there is none.
    """

    path: str


class GetChildren(NamedTuple):
    """Gives the sorted names of a node's children, as a tuple.

    `changed` is called once: when some come or go, or the node does, or the connection is gone.

    Raises:
        NoNodeError: there is no such node; then `changed` is not called.
    """

    path: str
    changed: Callable[[], None] | None = None


class WatchNode(NamedTuple):
    """Gives None, whether there is such a node or not.

    `changed` is called once: when the node is made, changed or deleted, or the connection is gone.
    """

    path: str
    changed: Callable[[], None]


class Transaction(NamedTuple):
    """Makes all changes or none. Gives the new version for each `Set`, and None for others.

    Raises:
        MemqError: of the first change that cannot be made.
    """

    changes: tuple[Change, ...]


Request: TypeAlias = Sync | GetNode | GetChildren | WatchNode | Transaction


class Link(Protocol):
    """One session's way to the service. Everything here is called on one event loop."""

    @property
    def reached(self) -> bool:
        """Whether a server took the latest connection, whatever it did with it then."""

    @property
    def target(self) -> str:
        """Where it leads, for messages."""

    def open(self, session: Session) -> None:
        """Begin to connect, and to tell the session of it."""

    def ask(self, request: Request) -> asyncio.Future[Any]:
        """Send a request, after those before it; the service carries them out in this order.

        The future fails with a `MemqError` when nothing was changed, and with a ConnectionError
        when nobody knows. It may never be done at all; then it is cancelled.
        """

    async def close(self) -> None:
        """End the session, if the service can be told within seconds, and all threads."""


# -- the session ------------------------------------------------------------------------------


class Session:
    """A `Coordination` over a link.

    Args:
        link: to the service; it is not open yet.
        clock_s: times the lease; see `memq.core.governor.lease` for which one.
        request_timeout_s: every call ends within it.

    Attributes:
        session_id: the service's number for it; 0 before it is open.
        lease: how long it certainly lives.
    """

    def __init__(
        self, link: Link, *, clock_s: Callable[[], float], request_timeout_s: float
    ) -> None:
        self.session_id = 0
        self.lease = Lease()
        self._link = link
        self._clock_s = clock_s
        self._request_timeout_s = request_timeout_s
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._watch_slots = asyncio.Semaphore(MAX_WATCH_READS)
        self._connected = asyncio.Event()  # or over
        self._over = False
        self._lost: str | None = None  # why
        self._waking: dict[asyncio.Event, None] = {}  # set when it is over
        self._prober: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        if self._over:
            state = "closed" if self._lost is None else f"lost: {self._lost}"
        else:
            state = "connected" if self._connected.is_set() else "not connected"
        return f"<Session {self.session_id:#x} at {self._link.target} [{state}]>"

    async def open(self) -> None:
        """Connect, for as long as a request may take.

        Raises:
            UnavailableError: no server has answered.
            SessionLostError: it was refused.
        """
        self._link.open(self)
        try:
            await self._ask(Sync())
        except BaseException:
            await self.close()
            raise
        self._prober = asyncio.ensure_future(self._probe())
        self._prober.add_done_callback(self._probed)

    # -- what the link tells ------------------------------------------------------------------

    def agreed(self, session_id: int, sent_s: float, timeout_s: float) -> None:
        """Record that a handshake sent at that time began the session, or continued it."""
        self.session_id = session_id
        self.lease.agreed(sent_s, timeout_s)

    def connected(self) -> None:
        """Requests get through."""
        self._connected.set()

    def disconnected(self) -> None:
        """Requests do not get through until there is another connection."""
        if not self._over:
            self._connected.clear()

    def lost(self, why: str) -> None:
        """Record that the session is over."""
        if not self._over:
            self._lost = why
            self._end()

    # -- calls --------------------------------------------------------------------------------

    async def get(self, path: str) -> Node:
        """Read the node at a path, as it is now.

        Raises:
            NoNodeError: there is none.
        """
        _, node = await self._ask(Sync(), GetNode(check_path(path)))
        return node  # type: ignore[no-any-return]

    async def children(self, path: str) -> tuple[str, ...]:
        """Names of a node's children, sorted, as they are now.

        Raises:
            NoNodeError: there is no such node.
        """
        _, names = await self._ask(Sync(), GetChildren(check_path(path)))
        return names  # type: ignore[no-any-return]

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node.

        Raises:
            NodeExistsError, NoNodeError, InvalidRequestError, MessageTooLargeError: as the seam
                says.
            ChangeUncertainError: it may have been made.
        """
        await self.transact([Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Give a node other data, if it has that version. Returns its new version.

        Raises:
            VersionConflictError, NoNodeError, MessageTooLargeError: as the seam says.
            ChangeUncertainError: it may have been done.
        """
        await self.transact([Set(path, data, version)])
        return version + 1

    async def delete(self, path: str, version: int) -> None:
        """Remove a node, if it has that version.

        Raises:
            VersionConflictError, NoNodeError, NodeNotEmptyError: as the seam says.
            ChangeUncertainError: it may have been done.
        """
        await self.transact([Delete(path, version)])

    async def transact(self, changes: Sequence[Change]) -> None:
        """Make all of the changes, in their order, or none.

        Raises:
            MemqError: of the first change that cannot be made.
            ChangeUncertainError: all of them may have been made.
        """
        check_changes(changes)
        await self._ask(Transaction(tuple(changes)))

    def watch(self, path: str) -> Watch[Node | None]:
        """Watch the node at a path, now and whenever it has changed; None while there is none."""
        check_path(path)

        async def read(changed: Callable[[], None]) -> Node | None:
            try:
                async with self._watch_slots:
                    _, node = await self._ask(WatchNode(path, changed), GetNode(path))
            except NoNodeError:
                return None
            return node  # type: ignore[no-any-return]

        return Watch(self, read)

    def watch_children(self, path: str) -> Watch[tuple[str, ...]]:
        """Names of a node's children now, sorted, and whenever some have come or gone."""
        check_path(path)

        async def read(changed: Callable[[], None]) -> tuple[str, ...]:
            try:
                async with self._watch_slots:
                    _, names = await self._ask(WatchNode(path, changed), GetChildren(path, changed))
            except NoNodeError:
                return ()
            return names  # type: ignore[no-any-return]

        return Watch(self, read)

    async def close(self) -> None:
        """End the session, if the service can be told; further calls raise `ClosedError`."""
        self._end()
        await self._link.close()

    # -- how ----------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raise when it is over.

        Raises:
            SessionLostError: it was lost.
            ClosedError: it was closed.
        """
        if self._over:
            raise self._why_over()

    async def wait_for(self, event: asyncio.Event) -> None:
        """Wait for the event, which is set when the session is over, too."""
        if self._over:
            event.set()
        self._waking[event] = None
        try:
            await event.wait()
        finally:
            self._waking.pop(event, None)

    async def _ask(self, *requests: Request) -> list[Any]:
        """Return the answers to requests that are sent one directly after the other."""
        changes = [
            change
            for request in requests
            if isinstance(request, Transaction)
            for change in request.changes
        ]
        sent = False
        try:
            async with asyncio.timeout(self._request_timeout_s), self._slots:
                await self._connected.wait()
                self.check_alive()
                sent = True
                return await asyncio.gather(*map(self._link.ask, requests))
        except (TimeoutError, ConnectionError) as exc:
            where = self._link.target
            why = (
                f"no answer within {self._request_timeout_s:g} s"
                if isinstance(exc, TimeoutError)
                else "the connection was lost"
            )
            if sent and changes:
                raise ChangeUncertainError(
                    f"{_in_words(changes)} at {where}: {why}; it may have happened. Read what is "
                    "there"
                ) from exc
            self.check_alive()
            raise UnavailableError(f"coordination service {where}: {why}") from exc

    def _why_over(self) -> MemqError:
        if self._lost is not None:
            return SessionLostError(
                f"session {self.session_id:#x} at {self._link.target} is over: {self._lost}"
            )
        return ClosedError("this session has been closed")

    def _end(self) -> None:
        self.lease.lost()
        self._over = True
        self._connected.set()  # so that those who wait for it look
        for event in self._waking:
            event.set()
        if self._prober is not None:
            self._prober.cancel()

    async def _probe(self) -> None:
        """Let the lease go on, until the session is over."""
        while True:
            wait_s = self.lease.probe_due_s - self._clock_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._reconnected()
            sent_s = self._clock_s()
            self.lease.sent(sent_s)
            try:
                async with asyncio.timeout(self.lease.timeout_s):
                    await self._link.ask(Sync())
            except (TimeoutError, ConnectionError, UnavailableError):
                continue  # the lease runs out if this goes on
            self.lease.answered(sent_s)

    async def _reconnected(self) -> None:
        """Wait until there is a connection, or servers have refused one for too long."""
        refused_s, step_s = 0.0, self.lease.timeout_s * PROBE_SHARE
        while not self._connected.is_set():
            try:
                async with asyncio.timeout(step_s):
                    await self._connected.wait()
            except TimeoutError:
                refused_s += step_s * self._link.reached
            if refused_s >= REFUSED_SESSIONS * self.lease.timeout_s:
                self.lost(
                    f"no server has gone on with it for {refused_s:.0f} s, though they take "
                    "connections: they know less than it has seen, as after a restore from a "
                    "backup, or hang"
                )

    def _probed(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the prober: with the session, or by an unexpected error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.lost(f"its lease could not be renewed: {type(error).__name__}: {error}")


def _in_words(changes: list[Change]) -> str:
    more = f" and {counted(len(changes) - 1, 'other')}" if len(changes) > 1 else ""
    return f"{type(changes[0]).__name__} {changes[0].path!r}{more}"


class Watch(Generic[T]):
    """What is read now, and whenever it has changed; see `Coordination.watch`.

    It reads when it is asked for the next state and something has changed since it read last, so
    a slow caller is given the latest state, and a watch that is not iterated costs nothing.

    Args:
        session: that it belongs to.
        read: reads the state, and has its argument called when it may have changed.
    """

    def __init__(
        self, session: Session, read: Callable[[Callable[[], None]], Awaitable[T]]
    ) -> None:
        self._session = session
        self._read = read
        self._changed = asyncio.Event()
        self._changed.set()
        self._given: list[T] = []  # the latest state, if there is one

    def __aiter__(self) -> Watch[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            await self._session.wait_for(self._changed)
            self._session.check_alive()
            self._changed.clear()
            try:
                state = await self._read(self._changed.set)
            except UnavailableError:
                self._changed.set()  # whatever it missed, it reads when there is a connection
                continue
            except BaseException:
                self._changed.set()
                raise
            if self._given != [state]:
                self._given = [state]
                return state
