"""Rules: who may do what to which resource, from where. They are Kafka's ACLs.

A rule allows or denies a principal, from some hosts, an operation on resources of one type, by name
or by prefix. What is asked for is allowed when a rule allows it and none denies it: a denial wins,
and without any rule the answer is no. Superusers may do everything.

Who may read, write, alter or delete something may describe it, as in Kafka. What somebody may not
describe does not exist for them.

Theory of operation. `Rules` never change; a change makes others. A question looks up the rules of
its principal and of everybody, by the resource's name, by `*`, and by each length of a prefix that
there is. So the number of rules does not matter. `Access` keeps the answers that a connection was
given, for as long as the same rules hold.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import msgspec

from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ResourceType = Literal["topic", "group", "producer_id", "cluster"]
Operation = Literal["read", "write", "create", "delete", "alter", "describe"]
RESOURCE_TYPES: tuple[ResourceType, ...] = get_args(ResourceType)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
ALL_OPERATIONS = "all"

ANY = "*"
"""Every principal, name or host."""
CLUSTER = "cluster"
"""Name of the one resource of type cluster."""

MAX_NAME_CHARS = 250
MAX_ANSWERS = 1_000  # that are kept for one connection; a client uses a few topics and groups

_DESCRIBES = ("read", "write", "alter", "delete", "describe")
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rule.

    Attributes:
        principal: whom it is about, such as `User:alice`; `*` for everybody.
        operation: what; `all` for everything.
        type: of the resources: `topic`, `group`, `producer_id` or `cluster`.
        name: of the resource; `*` for all.
        prefixed: it is about all resources whose names begin so.
        host: from where: an address, a network such as `10.0.0.0/8`, or `*`.
        allow: whether it allows, or denies.
    """

    principal: str
    operation: str
    type: str
    name: str
    prefixed: bool = False
    host: str = ANY
    allow: bool = True

    def words(self) -> str:
        """Say it in a line."""
        verb = "allow" if self.allow else "deny"
        name = f"{self.name}*" if self.prefixed else self.name
        place = "" if self.host == ANY else f" from {self.host}"
        return f"{verb} {self.principal} {self.operation} {self.type} {name}{place}"


def check_rule(rule: Rule) -> None:
    """Refuse a rule that can be about nothing.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    for what, value, known in (
        ("operation", rule.operation, (*OPERATIONS, ALL_OPERATIONS)),
        ("type", rule.type, RESOURCE_TYPES),
    ):
        if value not in known:
            raise InvalidRequestError(f"{what} {value[:100]!r}: must be one of {', '.join(known)}")
    check_principal(rule.principal)
    check_text("name", rule.name)
    if rule.prefixed and rule.name == ANY:
        raise InvalidRequestError("a prefix of '*': give the name '*' for all resources")
    if rule.type == CLUSTER and (rule.prefixed or rule.name not in (CLUSTER, ANY)):
        raise InvalidRequestError(f"the cluster's name is {CLUSTER!r}, not {rule.words()!r}")
    if rule.host != ANY:
        _network(rule.host)


def check_principal(principal: str) -> None:
    """Refuse what names nobody; a principal is written with its kind.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    check_text("principal", principal)
    if principal != ANY and not principal.startswith("User:"):
        raise InvalidRequestError(
            f"principal {principal!r}: write it as User:NAME, or * for everybody"
        )


def check_text(what: str, value: str) -> None:
    """Refuse a name that nothing could have.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    if not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable() or value != value.strip():
        raise InvalidRequestError(
            f"{what} {value[:100]!r}: it has 1 to {MAX_NAME_CHARS} printable characters, and no "
            "space at its ends"
        )


def _network(host: str) -> _Network:
    try:
        network = ipaddress.ip_network(host)
    except ValueError as exc:
        raise InvalidRequestError(
            f"host {host[:100]!r}: write an address, a network such as 10.0.0.0/8, or *: {exc}"
        ) from exc
    if getattr(network.network_address, "ipv4_mapped", None):
        raise InvalidRequestError(f"host {host}: write the IPv4 address by itself")
    return network


class Question(NamedTuple):
    """What somebody wants to do."""

    operation: Operation
    type: ResourceType
    name: str

    def words(self) -> str:
        """Say it in a line."""
        return f"{self.operation} {self.type} {self.name[:MAX_NAME_CHARS]!r}"


class Decision(NamedTuple):
    """The answer to a question.

    Attributes:
        allowed: whether it may be done.
        why: the rule that decides, or what else does, in words.
    """

    allowed: bool
    why: str


class Rules:
    """All rules of a cluster, to be asked.

    Args:
        rules: checked ones.
        superusers: principals that may do everything.
    """

    def __init__(self, rules: Iterable[Rule] = (), superusers: Collection[str] = ()) -> None:
        self._superusers = frozenset(superusers)
        self._named: defaultdict[tuple[str, str, str], list[Rule]] = defaultdict(list)
        self._prefixed: defaultdict[tuple[str, str, str], list[Rule]] = defaultdict(list)
        self._lengths: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._networks: dict[str, _Network] = {}
        for rule in rules:
            kind = self._prefixed if rule.prefixed else self._named
            kind[rule.principal, rule.type, rule.name].append(rule)
            if rule.prefixed:
                self._lengths[rule.principal, rule.type].add(len(rule.name))
            if rule.host != ANY:
                self._networks[rule.host] = _network(rule.host)

    def __repr__(self) -> str:
        count = sum(map(len, (*self._named.values(), *self._prefixed.values())))
        return f"<Rules [{count}]>"

    def decide(self, principal: str, host: str, asked: Question) -> Decision:
        """Decide whether a principal may do something, from a host: an address."""
        if principal in self._superusers:
            return Decision(allowed=True, why=f"{principal} is a superuser")
        allowed: Rule | None = None
        for rule in self._about(principal, asked):
            if not self._applies(rule, host, asked.operation):
                continue
            if not rule.allow:
                return Decision(allowed=False, why=rule.words())
            allowed = allowed or rule
        if allowed is not None:
            return Decision(allowed=True, why=allowed.words())
        return Decision(allowed=False, why="no rule allows it")

    def _about(self, principal: str, asked: Question) -> Iterator[Rule]:
        for who in (principal, ANY):
            yield from self._named.get((who, asked.type, asked.name), ())
            if asked.name != ANY:
                yield from self._named.get((who, asked.type, ANY), ())
            for length in self._lengths.get((who, asked.type), ()):
                if length <= len(asked.name):
                    yield from self._prefixed.get((who, asked.type, asked.name[:length]), ())

    def _applies(self, rule: Rule, host: str, operation: str) -> bool:
        implied = operation == "describe" and rule.allow and rule.operation in _DESCRIBES
        if not (implied or rule.operation in (operation, ALL_OPERATIONS)):
            return False
        return rule.host == ANY or _is_in(host, self._networks[rule.host], rule.allow)


def _is_in(host: str, network: _Network, allow: bool) -> bool:
    """Return whether a host is meant; of one whose address is not known, a denial's is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return not allow
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address) in network


class Access:
    """What one principal may do from one host.

    Args:
        principal: who.
        host: address from which it is connected.
        rules: that hold now; None where everybody may do everything.

    Attributes:
        principal, host: as given.
        may_write: topics and producer ids of Writes that were allowed, by these rules.
    """

    def __init__(self, principal: str, host: str, rules: Rules | None) -> None:
        self.principal, self.host = principal, host
        self._rules = rules
        self.may_write: set[tuple[str, str]] = set()
        self._answers: dict[tuple[str, str, str], Decision] = {}

    def __repr__(self) -> str:
        return f"<Access {self.principal} from {self.host}>"

    def follow(self, rules: Rules | None) -> None:
        """Hold to other rules from now on."""
        self._rules = rules
        self._answers.clear()
        self.may_write.clear()

    @property
    def unrestricted(self) -> bool:
        """Whether everybody may do everything."""
        return self._rules is None

    def decide(self, asked: Question) -> Decision:
        """Decide as `Rules.decide` does."""
        return self._answers.get(asked) or self._ask(asked)

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Return whether it may do so."""
        known = self._answers.get((operation, resource, name))  # as a `Question`, but made quicker
        return (known or self._ask(Question(operation, resource, name))).allowed

    def _ask(self, asked: Question) -> Decision:
        if self._rules is None:
            return Decision(allowed=True, why="nobody has to say who they are")
        if len(asked.name) > MAX_NAME_CHARS:  # nor is it kept
            return Decision(allowed=False, why=f"a name has up to {MAX_NAME_CHARS} characters")
        answer = self._rules.decide(self.principal, self.host, asked)
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        self._answers[asked] = answer
        return answer
