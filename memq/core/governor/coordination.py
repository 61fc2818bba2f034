"""The seam to the coordination service: what the cluster needs of ZooKeeper.

A tree of small nodes, which sessions read, watch and change. A node's *version* is 0 when it is
made and grows by one with each change, so a change made for a version happens once, whatever other
sessions want. An *ephemeral* node goes when the session ends that made it.

What holds for every implementation:

Rule 1. A `Coordination` is one session. When it is lost it is over for good: every call and every
    watch ends with `SessionLostError`, and the caller opens another one if it wants one. What
    belonged to the first one is never taken for the second one's.
Rule 2. `get` and `children` read what had been committed when they were called, by whomever.
Rule 3. A watch gives the present state first, and then later ones. Some may be left out; the last
    never is. That holds across lost connections: what was missed is read when there is another.
Rule 4. A change that fails with `ChangeUncertainError` may have happened, or may still happen, as
    long as the session lives. With any other error nothing was changed. Reading after that error,
    in the same session, tells which: the read comes after the change, or the change never comes.
Rule 5. Every call ends within the request timeout.
Rule 6. Whether the session certainly lives, its `lease` says (`memq.core.governor.lease`), and
    nothing else does: a service that is away ends a session without being able to say so.

Below the seam stands what every implementation refuses, in the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from memq.core.units import counted
from memq.errors import InvalidRequestError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from memq.core.governor.lease import Lease

MAX_NODE_BYTES = 1_000_000
"""Data of one node. ZooKeeper breaks a connection on which a request of 1 MiB or more comes; the
rest of it is for path and access rights."""
MAX_TRANSACTION_BYTES = 1_000_000  # of all its changes, for the same reason
MAX_CHANGES = 1_000  # of one transaction; each is an entry in the log of every server
CHANGE_BYTES = 200  # of a change in a request besides path and data: headers, access rights
MAX_PATH_BYTES = 1_000  # of one path
MAX_IN_FLIGHT = 100  # calls of one session under way; further ones wait, within their timeout
MAX_WATCH_READS = 50  # of these, by watches; so that a call has not to wait for all that is watched


class Node(NamedTuple):
    """A node as it was read.

    Attributes:
        data: its bytes.
        version: 0 when it was made, and one more with each change.
        owner: `session_id` of the session whose ephemeral it is; 0 if it is none.
        created: number of the transaction that made it. It grows over the whole tree, so a node
            that was deleted and made again has a larger one, though its version is 0 again.
        created_ms: when it was made, by the clock of the service; to be compared with that of other
            nodes only.
    """

    data: bytes
    version: int
    owner: int
    created: int
    created_ms: int


class Create(NamedTuple):
    """Make a node; its parent is there, and is no ephemeral."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    """Give a node other data, if it has that version."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Remove a node without children, if it has that version."""

    path: str
    version: int


class Check(NamedTuple):
    """Change nothing, and let the transaction fail unless the node has that version."""

    path: str
    version: int


Change: TypeAlias = Create | Set | Delete | Check


class Coordination(Protocol):
    """One session with the coordination service; see the rules above.

    Paths are absolute, below the root that the session was opened with.

    Every method but `close` may raise `SessionLostError`, `ClosedError`, `UnauthorizedError` and
    `UnavailableError` (retriable). A call that raises one has changed nothing.
    """

    @property
    def session_id(self) -> int:
        """What `Node.owner` says of this session's ephemerals; no other session ever has it."""

    @property
    def lease(self) -> Lease:
        """How long the session certainly lives."""

    async def get(self, path: str) -> Node:
        """Read the node at a path.

        Raises:
            NoNodeError: there is none.
        """

    async def children(self, path: str) -> tuple[str, ...]:
        """Names of a node's children, sorted.

        Raises:
            NoNodeError: there is no such node.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node, of version 0.

        Raises:
            NodeExistsError: there is one.
            NoNodeError: its parent is not there.
            InvalidRequestError: its parent is an ephemeral.
            MessageTooLargeError: the data is larger than `MAX_NODE_BYTES`.
            ChangeUncertainError: it may have been made; its `owner` or data tells by whom.
        """

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Give a node other data, if it has that version. Returns its new version.

        Raises:
            VersionConflictError: it has another one.
            NoNodeError: there is no such node.
            MessageTooLargeError: the data is larger than `MAX_NODE_BYTES`.
            ChangeUncertainError: it may have been done.
        """

    async def delete(self, path: str, version: int) -> None:
        """Remove a node, if it has that version.

        Raises:
            VersionConflictError: it has another one.
            NoNodeError: there is no such node.
            NodeNotEmptyError: it has children.
            ChangeUncertainError: it may have been done.
        """

    async def transact(self, changes: Sequence[Change]) -> None:
        """Make all of the changes, in their order, or none.

        Raises:
            MemqError: of the first change that cannot be made, as for that change alone.
            InvalidRequestError: there are none, or more than `MAX_CHANGES`.
            MessageTooLargeError: together they are larger than `MAX_TRANSACTION_BYTES`.
            ChangeUncertainError: all of them may have been made.
        """

    def watch(self, path: str) -> AsyncIterator[Node | None]:
        """Yield the node at a path now, and whenever it has changed; None while there is none.

        Nothing needs to be closed. It ends with an error only, and with a session only.

        Raises:
            SessionLostError, ClosedError, UnauthorizedError: while it is iterated.
        """

    def watch_children(self, path: str) -> AsyncIterator[tuple[str, ...]]:
        """Names of a node's children now, sorted, and whenever some have come or gone.

        A node that is not there has none. It ends as `watch` does.
        """

    async def close(self) -> None:
        """End the session, and its ephemerals, if the service can be told; further calls raise.

        It ends within seconds, also when the service is away. May be called again.
        """


# -- what is refused --------------------------------------------------------------------------


def check_path(path: str) -> str:
    """Refuse a path that no node can have; gives it back.

    Raises:
        InvalidRequestError: naming the path and what is allowed.
    """
    names = path.split("/")[1:]
    if (
        not path.startswith("/")
        or len(path.encode()) > MAX_PATH_BYTES
        or not path.isprintable()
        or (path != "/" and any(name in ("", ".", "..") for name in names))
    ):
        raise InvalidRequestError(
            f"node path {path[:300]!r} is not valid: it is at most {MAX_PATH_BYTES} bytes such as "
            "'/topics/clicks', of printable characters, without an empty name, '.' or '..'"
        )
    return path


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse a transaction that could never be made.

    Raises:
        InvalidRequestError: there are too few or too many changes, or a path or version is invalid.
        MessageTooLargeError: a node, or all of them together, are too large.
    """
    if not 1 <= len(changes) <= MAX_CHANGES:
        raise InvalidRequestError(
            f"a transaction of {counted(len(changes), 'change')} is not possible; it has 1 to "
            f"{MAX_CHANGES}"
        )
    total_bytes = 0
    for change in changes:
        check_path(change.path)
        data = change.data if isinstance(change, Create | Set) else b""
        if len(data) > MAX_NODE_BYTES:
            raise MessageTooLargeError(
                f"{len(data)} bytes for node {change.path!r} exceed {MAX_NODE_BYTES}"
            )
        if not isinstance(change, Create) and change.version < 0:
            raise InvalidRequestError(
                f"version {change.version} of node {change.path!r} is negative"
            )
        total_bytes += len(data) + len(change.path.encode()) + CHANGE_BYTES
    if len(changes) > 1 and total_bytes > MAX_TRANSACTION_BYTES:
        raise MessageTooLargeError(
            f"{total_bytes} bytes of {counted(len(changes), 'change')} in one transaction exceed "
            f"{MAX_TRANSACTION_BYTES}"
        )
