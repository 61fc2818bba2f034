"""Whether a client may do what it asks: the guard at the door, for every request of the protocol.

Each request names what it needs in `REQUESTS`; one that names nothing is for everybody who is
connected. What a request lists without naming it is looked through where it is listed
(`Need.each`), by the same rules.

A topic that a client may not describe does not exist for it: it hears the same words as for one
that is not there.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from memq.core.access.principals import ID_DIGITS, producer_suffix
from memq.core.access.rules import CLUSTER, MAX_ANSWERS, Question
from memq.core.wire.messages import REQUESTS, Need, Write
from memq.errors import ForbiddenError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from memq.core.access.rules import Access
    from memq.core.wire.messages import Struct
    from memq.errors import MemqError


def _names(need: Need) -> Callable[[Any], Sequence[str]]:
    """Return what tells the names that a request gives for a need."""
    if not need.field:
        return lambda _: () if need.each else (CLUSTER,)
    field = attrgetter(need.field)

    def names(request: Any) -> Sequence[str]:
        found = field(request)
        return (found,) if isinstance(found, str) else found or ()

    return names


_NEEDS = {each.request: [(need, _names(need)) for need in each.needs] for each in REQUESTS.values()}


def refusal(access: Access, request: Struct) -> MemqError | None:
    """Return why a client may not do what it asks; None when it may."""
    if access.unrestricted:
        return None
    if type(request) is Write:
        return _refused_write(access, request)
    for need, names in _NEEDS[type(request)]:
        for name in names(request):
            if error := _refused(access, Question(need.operation, need.type, name)):
                return error
    return None


def _refused_write(access: Access, write: Write) -> MemqError | None:
    """Return the same for a Write; of the many like it, all but the first cost one look-up."""
    asked = (write.topic, write.producer_id)
    if asked in access.may_write:
        return None
    error = _refused(access, Question("write", "topic", write.topic))
    if error is None and not _is_own(access, write.producer_id):
        error = _refused(access, Question("write", "producer_id", write.producer_id))
    if error is None:
        if len(access.may_write) >= MAX_ANSWERS:
            access.may_write.clear()
        access.may_write.add(asked)
    return error


def _is_own(access: Access, producer_id: str) -> bool:
    """Return whether a producer id is one that only this principal makes up."""
    suffix = producer_suffix(access.principal)
    return len(producer_id) == ID_DIGITS and producer_id.endswith(suffix)


def _refused(access: Access, asked: Question) -> MemqError | None:
    decision = access.decide(asked)
    if decision.allowed:
        return None
    if asked.type == "topic" and asked.operation != "create" and not describes(access, asked.name):
        return hidden_topic(access, asked.name)
    return ForbiddenError(
        f"{access.principal} may not {asked.words()}, from {access.host}: {decision.why}. Someone "
        f"who may alter the cluster adds a rule with `memq acl add`"
    )


def describes(access: Access, topic: str) -> bool:
    """Return whether a client may know that a topic is there."""
    return access.may("describe", "topic", topic)


def concealed(access: Access, request: Struct, error: MemqError) -> MemqError:
    """Return an error in the words for a client that may not know which other topics there are."""
    name = getattr(request, "topic", None)
    if isinstance(error, UnknownTopicError) and name is not None and not access.unrestricted:
        return hidden_topic(access, name)
    return error


def hidden_topic(access: Access, name: str) -> UnknownTopicError:
    """Make the error for a topic that is not there, or that a client may not describe."""
    return UnknownTopicError(
        f"no topic {name[:250]!r} that {access.principal} may describe: create it, or ask for a "
        "rule (`memq acl add`)"
    )
