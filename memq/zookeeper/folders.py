"""The folders of a cluster in ZooKeeper: they are made at a first start, and read whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.core.governor.nodes import PERSISTENT
from memq.errors import ChangeUncertainError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from memq.core.governor.coordination import Coordination, Node

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
    """The children of a folder by name, sorted; without those that go meanwhile.

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
