"""The election: which of the brokers governs.

Theory of operation
-------------------
Two nodes. `/governor` is an ephemeral of the broker that governs: only one can make it, and it goes
with its session, so that all see that there is nobody. `/election` stays, and has a version.

Rule 1. The maker of `/governor` changes `/election` in the same transaction. So each election has a
    version of its own, and nobody was elected who has not got one.
Rule 2. All that the broker elected changes is changed in transactions that check `/election` with
    this version. So whatever arrives late of one that was replaced is refused, also when it does
    not know yet, and whatever its clock says. Rule 1 and 2 are the whole of safety.
Rule 3. What became of a transaction without an answer, `/governor` says: it is this session's, or
    it is not. Its election is then the present one, as long as the same node stands.
Rule 4. A broker that is not elected watches `/governor`, and stands again when it is gone. A watch
    leaves out what came and went, so each attempt looks with a new one.

All candidates stand at the same moment. The election costs one transaction of each, of which one
is carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.governor.coordination import Check, Create, Set
from memq.core.governor.nodes import ELECTION, GOVERNOR
from memq.errors import ChangeUncertainError, NodeExistsError, NoNodeError, VersionConflictError

if TYPE_CHECKING:
    from memq.core.governor.coordination import Coordination, Node


async def stand(session: Coordination, broker_id: str) -> Check:
    """Wait until this broker is elected. To be called by one task of a session at a time.

    Returns:
        What every transaction of the broker elected must check. If this session has been elected
        before and its node stands, that election goes on.

    Raises:
        UnavailableError: stand again.
        SessionLostError, ClosedError, UnauthorizedError: as any call.
    """
    while True:
        own = await _until_nobody_else_governs(session)
        if own is None:
            election = await session.get(ELECTION)
            try:
                await session.transact(
                    [
                        Create(GOVERNOR, broker_id.encode(), ephemeral=True),
                        Set(ELECTION, broker_id.encode(), election.version),
                    ]
                )
            except (NodeExistsError, VersionConflictError, ChangeUncertainError):
                continue
            return Check(ELECTION, election.version + 1)
        if (found := await _election_of(session, own)) is not None:
            return found


async def _until_nobody_else_governs(session: Coordination) -> Node | None:
    """Wait until nobody else governs; return this session's own node, or None when it is gone."""
    async for node in session.watch(GOVERNOR):
        if node is None or node.owner == session.session_id:
            return node
    raise AssertionError("a watch ends with an error only")


async def _election_of(session: Coordination, own: Node) -> Check | None:
    """Return the election that has made this session's node; None when the node is gone."""
    election = await session.get(ELECTION)
    try:
        present = await session.get(GOVERNOR)
    except NoNodeError:
        return None
    # It stood all the time, so nobody else was elected before the first of both was read.
    return Check(ELECTION, election.version) if present.created == own.created else None
