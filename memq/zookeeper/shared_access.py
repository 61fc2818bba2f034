"""Users and rules in the coordination service: one node, which is replaced whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.access.document import decode_document, encode_document
from memq.core.governor.nodes import ACCESS, ACCESS_DOCUMENT
from memq.errors import (
    ChangeUncertainError,
    NodeExistsError,
    NoNodeError,
    UnavailableError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.core.access.document import AccessDocument
    from memq.core.governor.coordination import Coordination

PATH = f"{ACCESS}/{ACCESS_DOCUMENT}"
ATTEMPTS = 10  # each is lost to somebody else's change, or has no answer


async def change_document(
    session: Coordination,
    edit: Callable[[AccessDocument], AccessDocument],
    empty: Callable[[], AccessDocument],
) -> AccessDocument:
    """Store another document, made from the one that is stored; return what is stored now.

    Args:
        session: with the coordination service.
        edit: makes it; called again when somebody else was quicker.
        empty: makes the first one.

    Raises:
        CorruptDataError: what is stored is damaged.
        UnavailableError: others were quicker each time, or it is not known whether it was stored.
        MemqError: as `edit`, and as any call.
    """
    edited: AccessDocument | None = None
    for _ in range(ATTEMPTS):
        try:
            node = await session.get(PATH)
        except NoNodeError:
            before, version = empty(), None
        else:
            before, version = decode_document(node.data), node.version
            if before == edited:
                return before  # a change without an answer was made
        edited = edit(before)
        data = encode_document(edited)
        try:
            if version is None:
                await session.create(PATH, data)
            else:
                await session.set(PATH, data, version)
        except ChangeUncertainError:
            continue
        except (VersionConflictError, NodeExistsError, NoNodeError):
            edited = None
        else:
            return edited
    raise UnavailableError(
        f"users and rules were not changed in {ATTEMPTS} attempts, for others change them: look "
        "whether it was done, and try again"
    )
