"""The document of users, rules and quotas, which is stored whole: each change makes another one.

It stands in a file of the data directory, or in a node of the coordination service, whose limit of
1 MiB is why it has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from memq.core.access.quotas import Quotas, check_quota
from memq.core.access.rules import Rule, check_rule
from memq.core.access.users import User, check_user
from memq.core.decoding import UNDECODABLE, check_version
from memq.core.units import counted
from memq.errors import CorruptDataError, InvalidRequestError, LimitReachedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSION = 1
MAX_BYTES = 1_000_000
"""Of the document: 10,000 rules and 1,000 users, say."""
SECRET_BYTES = 32


class AccessDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Users, rules and quotas of a cluster.

    Attributes:
        secret: random; with it brokers answer alike for users that do not exist.
        enforced: a broker has asked its clients who they are. One that does not has no say in this
            document any more: its clients could be anybody.
        users: by name.
        rules: each once.
        quotas: limits by holder.
        version: of the format.
    """

    secret: bytes
    enforced: bool = False
    users: dict[str, User] = {}
    rules: tuple[Rule, ...] = ()
    quotas: Quotas = {}
    version: int = VERSION

    def __repr__(self) -> str:
        return f"<AccessDocument [{len(self.users)} users, {len(self.rules)} rules]>"

    def with_user(self, user: User, *, replace: bool) -> AccessDocument:
        """Add a user, or replace one.

        Raises:
            InvalidRequestError: it is there already, or not there, or is no user.
        """
        check_user(user)
        if replace != (user.name in self.users):
            raise InvalidRequestError(
                f"no user {user.name!r}; `memq user create` makes one"
                if replace
                else f"user {user.name!r} exists already; `memq user alter` changes the password"
            )
        return msgspec.structs.replace(self, users={**self.users, user.name: user})

    def without_user(self, name: str) -> AccessDocument:
        """Remove a user.

        Raises:
            InvalidRequestError: there is none of that name.
        """
        if name not in self.users:
            raise InvalidRequestError(f"no user {name[:100]!r}; see `memq user list`")
        users = {each: user for each, user in self.users.items() if each != name}
        return msgspec.structs.replace(self, users=users)

    def with_rules(self, added: Iterable[Rule], removed: Iterable[Rule]) -> AccessDocument:
        """Remove rules, and add others; those that are there stay once.

        Raises:
            InvalidRequestError: one is no rule.
        """
        added, gone = tuple(added), frozenset(removed)
        for rule in added:
            check_rule(rule)
        kept = [rule for rule in self.rules if rule not in gone]
        return msgspec.structs.replace(self, rules=tuple(dict.fromkeys([*kept, *added])))

    def with_quota(self, holder: str, limits: Mapping[str, int | None]) -> AccessDocument:
        """Set limits of a holder; None takes one away, and no limits all of them.

        Raises:
            InvalidRequestError: it is no quota, or there is none to take away.
        """
        before = self.quotas.get(holder, {})
        if not before and None in (limits.values() or (None,)):
            raise InvalidRequestError(f"no quota of {holder[:100]!r}; see `memq quota list`")
        changed = {**before, **limits} if limits else {}
        after = {limit: value for limit, value in changed.items() if value is not None}
        if after:
            check_quota(holder, after)
        others = {each: quota for each, quota in self.quotas.items() if each != holder}
        quotas = {**others, holder: after} if after else others
        return msgspec.structs.replace(self, quotas=quotas)


def encode_document(document: AccessDocument) -> bytes:
    """Encode a document as JSON.

    Raises:
        LimitReachedError: it is too large to be stored.
    """
    encoded = msgspec.json.encode(document)
    if len(encoded) > MAX_BYTES:
        raise LimitReachedError(
            f"{counted(len(document.users), 'user')}, {counted(len(document.quotas), 'quota')} and "
            f"{counted(len(document.rules), 'rule')} take {len(encoded)} bytes, and up to "
            f"{MAX_BYTES} are allowed: remove some, or replace rules by one with a prefix"
        )
    return encoded


_decode = msgspec.json.Decoder(AccessDocument).decode


def decode_document(data: bytes) -> AccessDocument:
    """Decode a document, and check what it holds.

    Raises:
        CorruptDataError: it is none, or of a later version.
    """
    try:
        document = _decode(data)
        check_version(document.version, VERSION, "users and rules")
        _check(document)
    except (*UNDECODABLE, InvalidRequestError) as exc:  # without the bytes, which are secret
        raise CorruptDataError(f"these are no users and rules: {exc}") from exc
    return document


def _check(document: AccessDocument) -> None:
    for name, user in document.users.items():
        check_user(user)
        if name != user.name:
            raise InvalidRequestError(f"user {user.name!r} is called {name[:100]!r}")
    for rule in document.rules:
        check_rule(rule)
    for holder, limits in document.quotas.items():
        check_quota(holder, limits)
