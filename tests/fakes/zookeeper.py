"""A ZooKeeper in memory, with the faults that a test or a simulation orders.

Sessions are those of the real thing (`memq.zookeeper.session`), over a link that is modelled:
requests and answers of a connection come in their order, after a delay; connections break, stand
still, or carry out a change and lose its answer. The server counts a session's time from what it
has *received* of it, and the client by its lease.

It has no threads and takes the time from event loops: that of the server from the loop on which the
model was made, that of a session from the loop on which it was opened. In a simulation these may be
the loops of several machines; all of them run in one thread.

    service = InMemoryZooKeeper()
    session = await service.open(session_timeout_s=6)
    await session.create("/brokers", b"")
    service.freeze(session)       # nothing gets through; its time runs on, and it may expire
    service.thaw(session)         # everything arrives, only later
    service.lose_answer(session)  # of its next change, which is made
    service.reset(session)        # its connection breaks; it makes another
    service.refuse(session)       # the same, and it cannot make another until `restore`
    service.expire(session)       # its ephemerals go now; it learns of it when it can
    service.stop()                # nobody is connected until `start`
    backup = service.back_up()
    service.roll_back(backup)     # all is as it was then; who has seen more is refused
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from memq.core.governor.coordination import Create, Delete, Node, Set
from memq.core.units import counted
from memq.errors import (
    InvalidRequestError,
    MemqError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    VersionConflictError,
)
from memq.zookeeper.session import GetChildren, GetNode, Session, Transaction, WatchNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memq.core.governor.coordination import Change
    from memq.zookeeper.session import Request

FIRST_SESSION_ID = 0x10000  # as unlike a small number as those of ZooKeeper
RECONNECT_S = 0.1  # between attempts to connect
CLOSE_S = 2.0  # how long a session waits for the answer to its goodbye

Backup: TypeAlias = "tuple[_Tree, dict[int, float]]"
"""What servers keep: the nodes, and the timeout of each session."""


class InMemoryZooKeeper:
    """The servers, as one. It grows with what is made and not deleted.

    Args:
        loop: that the servers live on; the running one by default.
        on_changed: told of each node that was made or changed, and of what it is now; or of None,
            when it is gone.

    Attributes:
        stopped: nobody is connected.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        on_changed: Callable[[str, Node | None], None] = lambda _path, _node: None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._on_changed = on_changed
        self._tree = _Tree(self._loop.time)
        self._sessions: dict[int, _ServerSession] = {}  # that have not ended
        self._links: dict[Session, _ModelLink] = {}
        self._next_id = FIRST_SESSION_ID
        self.stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else counted(len(self._sessions), "session")
        return f"<InMemoryZooKeeper [{state}, {counted(len(self._tree.nodes), 'node')}]>"

    async def open(
        self,
        *,
        session_timeout_s: float = 6.0,
        request_timeout_s: float = 10.0,
        clock_s: Callable[[], float] | None = None,
    ) -> Session:
        """Open a session.

        Args:
            session_timeout_s: the servers hear nothing for so long, and end it.
            request_timeout_s: every call ends within it.
            clock_s: of its lease; that of the running loop by default.

        Raises:
            UnavailableError: the servers are away.
        """
        clock_s = clock_s or asyncio.get_running_loop().time
        link = _ModelLink(self, session_timeout_s, clock_s)
        session = Session(link, clock_s=clock_s, request_timeout_s=request_timeout_s)
        self._links[session] = link
        await session.open()
        return session

    def node(self, path: str) -> Node | None:
        """What stands at a path, by no request; None for nothing."""
        return self._tree.nodes.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        """Names of the children of a path, sorted, likewise."""
        return tuple(sorted(self._tree.names.get(path, ())))

    def knows(self, session: Session) -> bool:
        """Whether anything can be ordered for a session: it was opened here, and not closed."""
        return session in self._links

    # -- faults -------------------------------------------------------------------------------

    def delay(self, session: Session, delay_s: float) -> None:
        """Let requests and answers take so much time each, from now on."""
        self._links[session].delay_s = delay_s

    def freeze(self, session: Session) -> None:
        """Let nothing through, in either direction, until `thaw`; connections stay open."""
        self._links[session].freeze()

    def thaw(self, session: Session) -> None:
        """Let through again, first what was held."""
        self._links[session].thaw()

    def reset(self, session: Session) -> None:
        """Break its connection, with what is on its way; it may connect again."""
        self._links[session].reset()

    def refuse(self, session: Session) -> None:
        """Break its connection, and let it make no other until `restore`."""
        self._links[session].refused = True
        self._links[session].reset()

    def restore(self, session: Session) -> None:
        """End everything that was ordered for a session: it connects, without delay."""
        link = self._links[session]
        link.refused, link.loses_answer, link.delay_s = False, False, 0.0
        link.thaw()

    def lose_answer(self, session: Session) -> None:
        """Carry out its next change, and break its connection before the answer leaves."""
        self._links[session].loses_answer = True

    def expire(self, session: Session) -> None:
        """End it at the servers, as if they had heard nothing of it for too long."""
        if session.session_id in self._sessions:
            self._expire(self._sessions[session.session_id])

    def stop(self) -> None:
        """Break all connections, and accept none until `start`. No session expires meanwhile."""
        self.stopped = True
        for link in self._links.values():
            link.reset()

    def start(self) -> None:
        """Go on, as after the election of a leader: each session has its full timeout."""
        self.stopped = False
        for session in self._sessions.values():
            session.heard_s = self._loop.time()
            self._watch_over(session)

    def back_up(self) -> Backup:
        """All that the servers keep, as it is now."""
        sessions = {key: each.timeout_s for key, each in self._sessions.items()}
        return self._tree.copy(), sessions

    def roll_back(self, backup: Backup | None = None) -> None:
        """Start again from a backup, or with nothing; sessions of then have their timeouts anew."""
        self.stop()
        tree, sessions = backup or (_Tree(self._loop.time), {})
        before, self._tree = self._tree.nodes, tree.copy()
        self._sessions = {key: _ServerSession(key, each) for key, each in sessions.items()}
        for path in before | self._tree.nodes:
            if before.get(path) != self._tree.nodes.get(path):
                self._on_changed(path, None)
                self._on_changed(path, self.node(path))
        self.start()

    # -- what the servers do ------------------------------------------------------------------

    def accepts(self, link: _ModelLink) -> bool:
        """Whether a connection can be made."""
        return not self.stopped and not link.refused

    def shake_hands(self, connection: _Connection, sent_s: float) -> None:
        """Begin a session, or go on with it; or say that there is none."""
        link = connection.link
        if link.seen > self._tree.transactions:  # it must try another server, which there is not
            connection.drop()
            return
        found = self._sessions.get(link.session_id)
        if found is None and link.session_id:
            connection.answer(lambda: link.ended("ZooKeeper says EXPIRED_SESSION"))
            return
        if found is None:
            found = _ServerSession(self._next_id, link.timeout_s)
            self._sessions[found.session_id] = found
            self._next_id += 1
            self._tree.transactions += 1
        elif found.connection is not None and found.connection is not connection:
            found.connection.drop()
        found.connection = connection
        connection.session = found
        found.heard_s = self._loop.time()
        self._watch_over(found)
        session_id, timeout_s = found.session_id, found.timeout_s
        connection.answer(lambda: link.shook_hands(session_id, sent_s, timeout_s))

    def carry_out(
        self, connection: _Connection, request: Request, answer: Callable[[Any], None]
    ) -> None:
        """Carry out a request of a session, and answer it."""
        session = connection.session
        if session is None or session.session_id not in self._sessions:
            connection.drop()
            return
        session.heard_s = self._loop.time()
        outcome: Any = None
        try:
            match request:
                case GetNode(path):
                    outcome = self._tree.get(path)
                case GetChildren(path, changed):
                    outcome = self._tree.children(path)
                    if changed is not None:
                        connection.child_watches.setdefault(path, {})[changed] = None
                case WatchNode(path, changed):
                    connection.node_watches.setdefault(path, {})[changed] = None
                case Transaction(changes):
                    self._tell(self._tree.apply(changes, session))
        except MemqError as exc:
            outcome = exc
        if isinstance(request, Transaction) and connection.link.loses_answer:
            connection.link.loses_answer = False
            connection.link.reset()
        else:
            seen = self._tree.transactions

            def told() -> None:
                connection.link.seen = max(connection.link.seen, seen)
                answer(outcome)

            connection.answer(told)

    def say_goodbye(self, connection: _Connection, answer: Callable[[Any], None]) -> None:
        """End a session that asks for it."""
        session = connection.session
        if session is not None and self._sessions.pop(session.session_id, None) is not None:
            self._tell(self._tree.remove_ephemerals(session.session_id))
        connection.answer(lambda: answer(None))

    def forget(self, link: _ModelLink) -> None:
        """A session was closed by its client; nothing can be ordered for it any more."""
        self._links = {key: each for key, each in self._links.items() if each is not link}

    def _expire(self, session: _ServerSession) -> None:
        del self._sessions[session.session_id]
        self._tell(self._tree.remove_ephemerals(session.session_id))
        if session.connection is not None:
            session.connection.drop()

    def _watch_over(self, session: _ServerSession) -> None:
        """End a session when it has not been heard of for its timeout."""
        if session.timer is not None:
            session.timer.cancel()
        due_s = session.heard_s + session.timeout_s
        session.timer = self._loop.call_at(due_s, self._look_after, session)

    def _look_after(self, session: _ServerSession) -> None:
        if self.stopped or self._sessions.get(session.session_id) is not session:
            return
        if self._loop.time() >= session.heard_s + session.timeout_s:
            self._expire(session)
        else:
            self._watch_over(session)

    def _tell(self, events: Iterable[_Event]) -> None:
        """Tell those who watch; each once."""
        for event in events:
            if not event.to_children:
                self._on_changed(event.path, self.node(event.path))
            for session in self._sessions.values():
                if session.connection is not None:
                    session.connection.happened(event)


# -- the tree ---------------------------------------------------------------------------------


class _Event(NamedTuple):
    """What happened to a node, or to its children."""

    path: str
    to_children: bool


class _Tree:
    """The nodes. Whatever cannot be done raises, and leaves everything as it was."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.nodes = {"/": Node(b"", 0, 0, 0, 0)}
        self.names: dict[str, dict[str, None]] = {}  # of children, by path
        self.transactions = 0

    def copy(self) -> _Tree:
        copy = _Tree(self._clock_s)
        copy.nodes, copy.transactions = dict(self.nodes), self.transactions
        copy.names = {path: dict(each) for path, each in self.names.items()}
        return copy

    def get(self, path: str) -> Node:
        if path not in self.nodes:
            raise NoNodeError(f"there is no node {path!r}")
        return self.nodes[path]

    def children(self, path: str) -> tuple[str, ...]:
        self.get(path)
        return tuple(sorted(self.names.get(path, ())))

    def apply(self, changes: Iterable[Change], session: _ServerSession) -> list[_Event]:
        """Make all changes, or none; gives what happened."""
        self.transactions += 1
        before: list[tuple[str, Node | None]] = []
        events: list[_Event] = []
        try:
            for change in changes:
                before.append((change.path, self.nodes.get(change.path)))
                events += self._apply(change, session)
        except MemqError:
            for path, node in reversed(before):
                self._put(path, node)
            raise
        return events

    def remove_ephemerals(self, session_id: int) -> list[_Event]:
        self.transactions += 1
        paths = [path for path, node in self.nodes.items() if node.owner == session_id]
        for path in paths:
            self._put(path, None)
        return [event for path in paths for event in _came_or_went(path)]

    def _apply(self, change: Change, session: _ServerSession) -> list[_Event]:
        if isinstance(change, Create):
            return self._create(change, session)
        path = change.path
        node = self.get(path)
        if node.version != change.version:
            raise VersionConflictError(f"node {path!r} has another version")
        if isinstance(change, Set):
            self._put(path, node._replace(data=bytes(change.data), version=node.version + 1))
            return [_Event(path, to_children=False)]
        if isinstance(change, Delete):
            if self.names.get(path):
                raise NodeNotEmptyError(f"node {path!r} has children")
            self._put(path, None)
            return _came_or_went(path)
        return []

    def _create(self, change: Create, session: _ServerSession) -> list[_Event]:
        path = change.path
        if _parent(path) not in self.nodes:
            raise NoNodeError(f"there is no node {path!r}, or not its parent")
        if path in self.nodes:
            raise NodeExistsError(f"there is a node {path!r} already")
        if self.nodes[_parent(path)].owner:
            raise InvalidRequestError(f"{path!r} cannot be made: its parent is an ephemeral")
        owner = session.session_id if change.ephemeral else 0
        created_ms = int(self._clock_s() * 1000)
        self._put(path, Node(bytes(change.data), 0, owner, self.transactions, created_ms))
        return _came_or_went(path)

    def _put(self, path: str, node: Node | None) -> None:
        names = self.names.setdefault(_parent(path), {})
        if node is None:
            self.nodes.pop(path, None)
            names.pop(path.rpartition("/")[2], None)
            self.names.pop(path, None)
        else:
            self.nodes[path] = node
            names[path.rpartition("/")[2]] = None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _came_or_went(path: str) -> list[_Event]:
    return [
        _Event(path, to_children=False),
        _Event(path, to_children=True),
        _Event(_parent(path), to_children=True),
    ]


# -- sessions and connections -----------------------------------------------------------------


@dataclass(eq=False)
class _ServerSession:
    """A session, as the servers know it.

    Attributes:
        heard_s: when something was received of it last.
    """

    session_id: int
    timeout_s: float
    connection: _Connection | None = None
    heard_s: float = 0.0
    timer: asyncio.TimerHandle | None = None


class _Pipe:
    """One direction of a connection: what is put in comes out in its order, later.

    Args:
        loop: that it comes out on.
        link: says how much later, and whether it stands still.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, link: _ModelLink) -> None:
        self._loop = loop
        self._link = link
        self._held: deque[Callable[[], None]] = deque()
        self._late = 0  # due, but held
        self.broken = False

    def put(self, what: Callable[[], None]) -> None:
        if not self.broken and not self._loop.is_closed():
            self._held.append(what)
            if self._link.delay_s:
                self._loop.call_later(self._link.delay_s, self._come_out)
            else:  # in the order of the calls, which timers of one moment do not keep
                self._loop.call_soon(self._come_out)

    def thaw(self) -> None:
        late, self._late = self._late, 0
        for _ in range(late):
            self._loop.call_soon(self._come_out)

    def _come_out(self) -> None:
        if self.broken:
            return
        if self._link.frozen:
            self._late += 1
            return
        self._held.popleft()()


@dataclass(eq=False)
class _Connection:
    """One connection of a link; `session` and the watches are the server's."""

    link: _ModelLink
    to_server: _Pipe
    to_client: _Pipe
    session: _ServerSession | None = None
    node_watches: dict[str, dict[Callable[[], None], None]] = field(default_factory=dict)
    child_watches: dict[str, dict[Callable[[], None], None]] = field(default_factory=dict)

    def answer(self, what: Callable[[], None]) -> None:
        """Let something happen at the client."""
        self.to_client.put(what)

    def happened(self, event: _Event) -> None:
        """Tell the client of what it watches, once."""
        watches = self.child_watches if event.to_children else self.node_watches
        for changed in watches.pop(event.path, {}):
            self.answer(lambda changed=changed: self.link.changed(changed))  # type: ignore[misc]

    def drop(self) -> None:
        """The server closes it; the client learns of it after all that was sent before."""
        self._leave()
        self.to_server.broken = True
        self.answer(lambda: self.link.broke(self))

    def break_off(self) -> None:
        """It is gone, with what is on its way."""
        self._leave()
        self.to_server.broken = self.to_client.broken = True

    def _leave(self) -> None:
        if self.session is not None and self.session.connection is self:
            self.session.connection = None


class _ModelLink:
    """A `Link` to the model, of one session.

    Attributes:
        session_id: of the session; 0 before there is one.
        reached: the servers took the latest connection.
        seen: the latest transaction that was answered with, as kazoo's `last_zxid`.
    """

    def __init__(
        self, service: InMemoryZooKeeper, timeout_s: float, clock_s: Callable[[], float]
    ) -> None:
        self.timeout_s = timeout_s
        self.session_id = self.seen = 0
        self.reached = False
        self.delay_s = 0.0
        self.frozen = self.refused = self.loses_answer = False
        self._service = service
        self._clock_s = clock_s
        self._loop = asyncio.get_running_loop()
        self._session: Session
        self._connection: _Connection | None = None
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._watching: dict[Callable[[], None], None] = {}
        self._over = False

    @property
    def target(self) -> str:
        return "memory"

    def open(self, session: Session) -> None:
        self._session = session
        self._connect()

    def ask(self, request: Request) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        connection = self._connection
        if connection is None:
            future.set_exception(ConnectionResetError("there is no connection"))
            return future
        self._pending[future] = None
        if isinstance(request, WatchNode | GetChildren) and request.changed is not None:
            self._watching[request.changed] = None

        def answered(outcome: Any) -> None:
            self._pending.pop(future, None)
            if not future.done():
                if isinstance(outcome, MemqError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

        connection.to_server.put(lambda: self._service.carry_out(connection, request, answered))
        return future

    async def close(self) -> None:
        connection = self._connection
        if connection is not None and not self._over:
            self._over = True
            gone = asyncio.Event()
            connection.to_server.put(
                lambda: self._service.say_goodbye(connection, lambda _: gone.set())
            )
            try:
                async with asyncio.timeout(CLOSE_S):
                    await gone.wait()
            except TimeoutError:
                pass  # the servers end the session in their time
        self._over = True
        if self._connection is not None:
            self._connection.break_off()
        self._disconnected()
        self._service.forget(self)

    # -- what is ordered ----------------------------------------------------------------------

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        if self._connection is not None:
            self._connection.to_server.thaw()
            self._connection.to_client.thaw()

    def reset(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.break_off()
            self._loop.call_soon(self.broke, connection)

    # -- what the servers say -----------------------------------------------------------------

    def shook_hands(self, session_id: int, sent_s: float, timeout_s: float) -> None:
        self.session_id = session_id
        self._session.agreed(session_id, sent_s, timeout_s)
        self._session.connected()

    def ended(self, why: str) -> None:
        self._over = True
        self._session.lost(why)
        self._disconnected()

    def changed(self, changed: Callable[[], None]) -> None:
        self._watching.pop(changed, None)
        changed()

    def broke(self, connection: _Connection) -> None:
        if connection is self._connection:
            self._disconnected()
            if not self._over:
                self._session.disconnected()
                self._loop.call_later(RECONNECT_S, self._connect)

    # -- connections --------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._over:
            return
        self.reached = self._service.accepts(self)
        if not self.reached:
            self._loop.call_later(RECONNECT_S, self._connect)
            return
        to_server = _Pipe(self._service._loop, self)
        connection = self._connection = _Connection(self, to_server, _Pipe(self._loop, self))
        sent_s = self._clock_s()
        to_server.put(lambda: self._service.shake_hands(connection, sent_s))

    def _disconnected(self) -> None:
        """Nothing is answered or watched any more."""
        self._connection = None
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(ConnectionResetError("the connection broke"))
        watching, self._watching = self._watching, {}
        for changed in watching:
            changed()
