"""The folders of a cluster in ZooKeeper: made at a first start, read whole, or mirrored.

A mirror has the children of one folder with their data, as they change.

Theory of operation
-------------------
One watch follows the names of the children, and one for each child follows its data. Neither knows
of the other, and each may leave out states, or be ahead of the other one. So:

Rule 1. What a child holds, and whether it is there, is said by its own watch alone. The names only
    say which children to watch.
Rule 2. A child is watched until its own watch says that it is gone *and* the latest names are
    without it, whichever comes last. Should it come back after that, the names change once more.
Rule 3. A child that was deleted and made again has another `Node.created`. It is told as gone and
    then as new, also when nobody has seen it gone.
Rule 4. What happens until `start` returns is part of the first state. All that comes later is told,
    for each child in its order.

Nothing is polled. A mirror lives as long as its session, and its owner is told why it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from memq.core.governor.nodes import PERSISTENT
from memq.core.units import counted
from memq.errors import ChangeUncertainError, MemqError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from memq.core.governor.coordination import Coordination, Node

log = logging.getLogger(__name__)

ATTEMPTS = 5  # to make one of them; each may take a request timeout
READ_AT_ONCE = 50  # nodes of a folder; further slots of the session are for others


async def make_persistent(session: Coordination) -> None:
    """Make those of the `PERSISTENT` nodes that are not there; others may do so as well.

    Raises:
        ChangeUncertainError: it took `ATTEMPTS` without an answer.
        MemqError: as any call.
    """
    there = await session.children("/")
    for path in PERSISTENT:
        if path.removeprefix("/") not in there:
            await _make(session, path)


async def read_children(session: Coordination, path: str) -> dict[str, Node]:
    """Read the children of a folder by name, sorted; without those that go meanwhile.

    Raises:
        NoNodeError: there is no such folder.
        MemqError: as any call.
    """

    async def read(name: str) -> Node | None:
        try:
            return await session.get(f"{path}/{name}")
        except NoNodeError:
            return None

    names = await session.children(path)
    found: dict[str, Node] = {}
    for first in range(0, len(names), READ_AT_ONCE):
        some = names[first : first + READ_AT_ONCE]
        nodes = await asyncio.gather(*map(read, some))
        found |= {name: node for name, node in zip(some, nodes, strict=True) if node is not None}
    return found


async def _make(session: Coordination, path: str) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await session.create(path)
        except NodeExistsError:
            return
        except ChangeUncertainError:  # if it was made, the next attempt finds it
            if attempt == ATTEMPTS:
                raise
        else:
            return


class Mirror:
    """See the theory of operation.

    It has a task and a watch for each child.

    Args:
        session: that it reads in.
        path: of the folder. One that is not there has no children.
        on_change: told the name of a child and what it holds now, or None when it is gone. What it
            raises ends the mirror.

    Attributes:
        nodes: the children that there are, by name, in no particular order.
    """

    def __init__(
        self,
        session: Coordination,
        path: str,
        on_change: Callable[[str, Node | None], None],
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self._session = session
        self._path = path
        self._on_change = on_change
        self._names: dict[str, None] = {}  # the latest
        self._names_task: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by name of the child
        self._unread: dict[str, None] | None = None  # of the first names; None before there are any
        self._loaded = asyncio.Event()  # or ended
        self._telling = False
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        if self._ended.is_set():
            state = "ended"
        else:
            state = "loaded" if self._loaded.is_set() else "loading"
        return f"<Mirror {self._path} [{state}, {counted(len(self.nodes), 'node')}]>"

    async def start(self) -> None:
        """Load all that is there. To be called once.

        When it returns, nothing has been told yet, and whatever is not in `nodes` will be.

        Raises:
            SessionLostError, ClosedError, UnauthorizedError: it has ended.
        """
        self._names_task = self._spawn(self._follow_names())
        try:
            await self._loaded.wait()
        except BaseException:
            await self.stop()
            raise
        self._check_error()
        self._telling = True  # with nothing between this and the caller

    async def wait_ended(self) -> None:
        """Wait until it has ended; returns when it was stopped.

        Raises:
            SessionLostError, ClosedError, UnauthorizedError: the session does not serve any more.
            Exception: what `on_change` has raised.
        """
        await self._ended.wait()
        self._check_error()

    async def stop(self) -> None:
        """End it; nothing is told any more. May be called again."""
        tasks = self._all_tasks()
        self._end()
        await asyncio.gather(*tasks, return_exceptions=True)  # their errors were taken note of

    # -- how ----------------------------------------------------------------------------------

    async def _follow_names(self) -> None:
        async for names in self._session.watch_children(self._path):
            self._names = dict.fromkeys(names)
            if self._unread is None:
                self._unread = dict.fromkeys(names)
            for name in [*self._tasks]:
                if name not in self._names and name not in self.nodes:
                    self._tasks.pop(name).cancel()
                    self._read(name)
            for name in names:
                if name not in self._tasks:
                    self._tasks[name] = self._spawn(self._follow(name))
            self._look_whether_loaded()

    async def _follow(self, name: str) -> None:
        async for node in self._session.watch(f"{self._path}/{name}"):
            self._saw(name, node)
            self._read(name)
            if node is None and name not in self._names:
                del self._tasks[name]
                return

    def _saw(self, name: str, node: Node | None) -> None:
        before = self.nodes.pop(name, None)
        if node is not None:
            self.nodes[name] = node
        if not self._telling:
            return
        if before is not None and (node is None or node.created != before.created):
            self._on_change(name, None)
        if node is not None:
            self._on_change(name, node)

    def _read(self, name: str) -> None:
        """Record that a child of the first names was read, or need not be."""
        if self._unread is not None and not self._loaded.is_set():
            self._unread.pop(name, None)
            self._look_whether_loaded()

    def _look_whether_loaded(self) -> None:
        if not self._unread:
            self._loaded.set()

    # -- its end --------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not self._ended.is_set():
            self._error = error
            self._end()
        elif not isinstance(error, MemqError):  # the end of a session comes from all of them
            log.error("%r: one more error", self, exc_info=error)

    def _end(self) -> None:
        self._ended.set()
        self._loaded.set()
        for task in self._all_tasks():
            task.cancel()

    def _all_tasks(self) -> list[asyncio.Task[None]]:
        names = () if self._names_task is None else (self._names_task,)
        return [*names, *self._tasks.values()]

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error
