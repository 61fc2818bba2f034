"""A session with a real ZooKeeper, on kazoo.

Theory of operation
-------------------
kazoo keeps the connection in one thread and runs callbacks in two more. They stay in here: whatever
they have to say goes to the event loop by `call_soon_threadsafe`, and everything else happens
there. What is asked of kazoo is asked with its asynchronous calls, which return at once.

What kazoo 2.11 does, and what is done about it:

- After a session has expired it begins a new one, by itself, and sends what is in its queue there:
  an ephemeral would be made under a session that nobody knows. `_Handler.over` is set in kazoo's
  own thread, before it can connect again, and `_Handler` then refuses to make connections.
- It tells nobody which session timeout the servers have agreed to. `_Connection` reads it from the
  answer to the handshake as it comes by, and notes when the handshake was sent, for the lease.
- A call that is made while the connection goes down may be forgotten, or ended twice. So every
  call has a deadline (`memq.zookeeper.session`), and only its first end counts.
- It does not tell what was sent when the connection was lost from what was not. So both are
  uncertain, when they were changes.
- It waits for the answer to a handshake for as long as the session lasts, and a server that is just
  starting may never give one: the session would be over. `_Handler` waits for a third of that.
- What it has for TLS trusts the system's authorities besides the one that is given, does not
  compare names, and leaves sockets open when a connection fails. So `_Handler` connects.
- It shows each server the latest transaction that it has seen, for ever, and says nothing when they
  refuse it for that. `Session` then gives the session up; a new one comes with a new `KazooClient`.
- `stop` takes as long as the servers are silent. It runs in a thread of its own, and after
  `CLOSE_S` the socket is shut down under it.
- At DEBUG it logs requests with credentials, and at WARNING each attempt to connect. Its logger
  here begins at ERROR.
- It handles a chroot by cutting off as many characters. Paths are made whole here.

Its retries of calls are not used; it connects again at intervals of up to `RECONNECT_S`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from memq.core.governor.coordination import Create, Delete, Node, Set
from memq.errors import (
    InvalidRequestError,
    LimitReachedError,
    MemqError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    SessionLostError,
    UnauthorizedError,
    UnavailableError,
    VersionConflictError,
)
from memq.zookeeper.session import GetChildren, GetNode, Session, Sync, Transaction, WatchNode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from memq.runtime.system import Runtime
    from memq.zookeeper.options import ZooKeeperOptions
    from memq.zookeeper.session import Request

log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)

CLOSE_S = 2.0  # a server that answers at all says goodbye within it
ABORT_S = 2.0  # after which the threads have ended once their socket is shut down
ANSWER_S = 1.0  # that a server has at least; sessions may last longer than was asked for
RECONNECT_S = 1.0  # longest pause between attempts to connect; jitter adds up to 40 %

_HANDSHAKE = struct.Struct(">iiiq")  # length, protocol version, session timeout in ms, session id


async def open_session(options: ZooKeeperOptions, runtime: Runtime) -> Session:
    """Open a session, and make the root of its paths; see `memq.zookeeper.open_zookeeper`."""
    link = _KazooLink(options, options.tls_context(), runtime.boot_s)
    session = Session(
        link, clock_s=runtime.boot_s, request_timeout_s=options.request_timeout_ms / 1000
    )
    await session.open()
    try:
        async with asyncio.timeout(options.request_timeout_ms / 1000):
            await link.make_root()
    except (TimeoutError, ConnectionError) as exc:
        await session.close()
        raise UnavailableError(f"the root of {link.target} could not be made: {exc!r}") from exc
    except BaseException:
        await session.close()
        raise
    return session


class _Connection:
    """A socket for kazoo, which reads along what the handshake came to.

    The first that is sent is the handshake, the first that is received is the answer to it.
    """

    def __init__(
        self,
        connected: socket.socket,
        clock_s: Callable[[], float],
        agreed: Callable[[int, float, float], None],
    ) -> None:
        self._socket = connected
        self._clock_s = clock_s
        self._agreed = agreed
        self._sent_s: float | None = None
        self._answer = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, data: bytes) -> int:
        """Send as a socket does."""
        if self._sent_s is None:
            self._sent_s = self._clock_s()
        return self._socket.send(data)

    def recv(self, size_bytes: int) -> bytes:
        """Receive as a socket does."""
        data = self._socket.recv(size_bytes)
        if len(self._answer) < _HANDSHAKE.size:
            self._answer += data
            if len(self._answer) >= _HANDSHAKE.size and self._sent_s is not None:
                _, _, timeout_ms, session_id = _HANDSHAKE.unpack_from(self._answer)
                if timeout_ms > 0:  # otherwise the session has expired
                    self._agreed(session_id, self._sent_s, timeout_ms / 1000)
        return data


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's way to threads and sockets.

    Args:
        tls: what connections are encrypted with; None for plain ones.
        clock_s: of the lease.
        agreed: told of each handshake.
        patience_s: longest wait for a socket.

    Attributes:
        over: the session is; no connection is made any more.
        trouble: why the latest attempt to connect failed.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        clock_s: Callable[[], float],
        agreed: Callable[[int, float, float], None],
        patience_s: float,
    ) -> None:
        super().__init__()
        self._patience_s = patience_s
        self.over = False
        self.trouble = ""
        self._tls = tls
        self._clock_s = clock_s
        self._agreed = agreed
        self._socket: socket.socket | None = None

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **_: Any
    ) -> _Connection:
        """Connect to a server, whose name has been looked up."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        connection = self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(min(timeout, self._patience_s))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=hostname)
                self._socket = connection
            if self.over:  # set before `abort` looks for the socket
                raise ConnectionAbortedError("the session is over")  # noqa: TRY301
            connection.connect(address)
        except BaseException as exc:
            connection.close()
            self.trouble = f"{hostname}: {exc}"
            raise
        self.trouble = ""
        return _Connection(connection, self._clock_s, self._agreed)

    def select(self, reads: Any, writes: Any, errors: Any, timeout_s: float) -> Any:
        """Wait for sockets; kazoo connects again where an answer does not come."""
        return super().select(reads, writes, errors, min(timeout_s, self._patience_s))

    def abort(self) -> None:
        """Shut down the connection, or the one that is being made, even when it is waited for."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("the connection was closed already")


class _Changed(NamedTuple):
    """Callback for kazoo, called when something has changed; kazoo keeps equal ones once."""

    link: _KazooLink
    changed: Callable[[], None]

    def __call__(self, _: object) -> None:
        self.link.tell(self.changed)


class _KazooLink:
    """A `Link` to a ZooKeeper.

    Args:
        options: where it is, and who we are.
        tls: what connections are encrypted with; None for plain ones.
        clock_s: of the lease.
    """

    def __init__(
        self, options: ZooKeeperOptions, tls: ssl.SSLContext | None, clock_s: Callable[[], float]
    ) -> None:
        self._options = options
        self._root = options.root()
        self._loop = asyncio.get_running_loop()
        self._session: Session
        self._asked: dict[asyncio.Future[Any], None] = {}
        self._stopped: asyncio.Future[None] | None = None
        timeout_s = options.session_timeout_ms / 1000
        self._handler = _Handler(tls, clock_s, self._agreed, max(ANSWER_S, timeout_s / 3))
        identity = options.user, options.password
        self._acl = [make_digest_acl(*identity, all=True)] if options.user else OPEN_ACL_UNSAFE
        self._client = KazooClient(
            hosts=",".join(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                for host, port in options.addresses()
            ),
            timeout=timeout_s,
            handler=self._handler,
            auth_data=[("digest", ":".join(identity))] if options.user else None,
            connection_retry=KazooRetry(max_tries=-1, max_delay=RECONNECT_S, sleep_func=time.sleep),
            use_ssl=tls is not None,
            logger=_kazoo_log,
        )
        self._client.add_listener(self._state_changed)

    @property
    def target(self) -> str:
        """Servers and root, and what is wrong with them."""
        trouble = self._handler.trouble
        return f"{self._options.servers} ({trouble})" if trouble else self._options.servers

    @property
    def reached(self) -> bool:
        """Whether a server took the latest connection."""
        return not self._handler.trouble

    def open(self, session: Session) -> None:
        """Begin to connect."""
        self._session = session
        self._client.start_async()

    # -- what kazoo's threads have to say -------------------------------------------------------

    def tell(self, what: Callable[..., None], *args: Any) -> None:
        """Call something on the event loop; from any thread."""
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:  # the loop is closed, so nobody is there to be told
            log.debug("the event loop has ended before its session with ZooKeeper")

    def _agreed(self, session_id: int, sent_s: float, timeout_s: float) -> None:
        self.tell(self._session.agreed, session_id, sent_s, timeout_s)

    def _state_changed(self, state: str) -> None:
        """Take note in kazoo's thread, whose connection goes on when this returns."""
        if state == KazooState.LOST:
            self._handler.over = True
            self.tell(self._lost, str(self._client.client_state))
        elif state == KazooState.CONNECTED:
            self.tell(self._session.connected)
        else:
            self.tell(self._disconnected)

    def _disconnected(self) -> None:
        if self._stopped is None:
            log.warning("the connection to ZooKeeper is gone; connecting to %s", self.target)
            self._session.disconnected()

    def _lost(self, state: str) -> None:
        if self._stopped is None:
            self._session.lost(f"ZooKeeper says {state}")
            self._stop()

    # -- requests -------------------------------------------------------------------------------

    def ask(self, request: Request) -> asyncio.Future[Any]:
        """Send a request, after those before it."""
        match request:
            case Sync():
                return self._ask(lambda _: None, self._client.sync_async, self._root or "/")
            case GetNode(path):
                return self._ask(_node, self._client.get_async, self._path(path), about=path)
            case GetChildren(path, changed):
                watch = None if changed is None else _Changed(self, changed)
                ask = self._client.get_children_async
                return self._ask(_names, ask, self._path(path), watch, about=path)
            case WatchNode(path, changed):
                watch = _Changed(self, changed)
                ask = self._client.exists_async
                return self._ask(lambda _: None, ask, self._path(path), watch, about=path)
            case Transaction(changes):
                transaction = self._client.transaction()
                for change in changes:
                    path = self._path(change.path)
                    if isinstance(change, Create):
                        transaction.create(path, change.data, self._acl, change.ephemeral)
                    elif isinstance(change, Set):
                        transaction.set_data(path, change.data, change.version)
                    elif isinstance(change, Delete):
                        transaction.delete(path, change.version)
                    else:
                        transaction.check(path, change.version)
                paths = [change.path for change in changes]
                return self._ask(
                    lambda results: _first_error(results, paths), transaction.commit_async
                )

    async def make_root(self) -> None:
        """Make the nodes of the root that are not there.

        Raises:
            UnauthorizedError: we may not.
        """
        if self._root:
            make = self._client.ensure_path_async
            await self._ask(bool, make, self._root, self._acl, about=self._root)

    def _path(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/"

    def _ask(
        self,
        convert: Callable[[Any], Any],
        ask: Callable[..., Any],
        *args: Any,
        about: str = "",
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._stopped is not None:
            future.set_exception(ConnectionResetError("the session is over"))
            return future
        self._asked[future] = None
        future.add_done_callback(lambda _: self._asked.pop(future, None))
        ask(*args).rawlink(lambda result: self.tell(_settle, future, result, convert, about))
        return future

    # -- its end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the session, if a server answers within `CLOSE_S`, and the threads."""
        stopped = self._stop()
        if self._client.connected:
            await asyncio.wait([stopped], timeout=CLOSE_S)
        if not stopped.done():
            self._handler.abort()
        if not (await asyncio.wait([stopped], timeout=ABORT_S))[0]:
            log.warning("the threads of a session with %s have not ended yet", self.target)

    def _stop(self) -> asyncio.Future[None]:
        """Begin to end kazoo's threads; what was asked and not answered by their end, never is."""
        if self._stopped is None:
            self._stopped = stopped = self._loop.create_future()
            self._handler.over = True

            def stop() -> None:
                try:
                    self._client.stop()
                    self._client.close()
                except Exception:
                    log.exception("the threads of a session with %s do not end", self.target)
                self.tell(self._ended, stopped)

            self._handler.spawn(stop)
        return self._stopped

    def _ended(self, stopped: asyncio.Future[None]) -> None:
        stopped.set_result(None)
        for future in list(self._asked):
            if not future.done():
                future.set_exception(ConnectionResetError("the session was closed"))


def _settle(
    future: asyncio.Future[Any], result: Any, convert: Callable[[Any], Any], about: str
) -> None:
    """Hand a result of kazoo's to its waiter, or its error as one of ours."""
    if future.done():  # given up, or told before
        return
    try:
        future.set_result(convert(result.get_nowait()))
    except (MemqError, ConnectionError) as exc:
        future.set_exception(exc)
    except Exception as exc:  # noqa: BLE001 - the caller is told
        error = _translated(exc, about)
        error.__cause__ = exc
        future.set_exception(error)


def _node(answer: Any) -> Node:
    data, stat = answer
    return Node(data, stat.version, stat.ephemeralOwner, stat.czxid, stat.ctime)


def _names(answer: Any) -> tuple[str, ...]:
    return tuple(sorted(answer))


def _first_error(results: list[Any], paths: list[str]) -> None:
    """Raise the error of the change that failed; those before it were rolled back."""
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, exceptions.RolledBackError):
            raise _translated(result, path) from result


def _translated(exc: Exception, path: str) -> Exception:
    """Translate an error of kazoo's to one of ours: a ConnectionError when nobody knows what
    happened.
    """
    for kind, error, text in _ERRORS:
        if isinstance(exc, kind):
            return error(text.format(path=path, kind=type(exc).__name__))
    return ConnectionResetError(f"{type(exc).__name__}: {exc}")


_ERRORS: tuple[tuple[type[Exception], type[Exception], str], ...] = (
    (exceptions.NoNodeError, NoNodeError, "there is no node {path!r}, or not its parent"),
    (exceptions.NodeExistsError, NodeExistsError, "there is a node {path!r} already"),
    (exceptions.NotEmptyError, NodeNotEmptyError, "node {path!r} has children"),
    (exceptions.BadVersionError, VersionConflictError, "node {path!r} has another version"),
    (
        exceptions.NoChildrenForEphemeralsError,
        InvalidRequestError,
        "{path!r} cannot be made: its parent is an ephemeral",
    ),
    (exceptions.NoAuthError, UnauthorizedError, "this user may not do that at {path!r}"),
    (exceptions.AuthFailedError, UnauthorizedError, "ZooKeeper refused the credentials"),
    (exceptions.QuotaExceededError, LimitReachedError, "the quota at {path!r} is used up"),
    (exceptions.ConnectionClosedError, ConnectionResetError, "the session was closed"),
    # It was refused, or never sent: what was sent on a connection that broke is uncertain by then.
    (exceptions.SessionExpiredError, SessionLostError, "the session has expired"),
    (exceptions.SessionMovedError, UnavailableError, "ZooKeeper refused it for now: {kind}"),
    (exceptions.ThrottledOpError, UnavailableError, "ZooKeeper refused it for now: {kind}"),
)
"""The first that fits; ConnectionClosedError is a SessionExpiredError too."""
