"""An evaluator of rules so simple that it can be read, and rule sets to ask it about.

`python -m tests.fakes.naive_rules --sets 1000000` compares it with the real one.
"""

from __future__ import annotations

import argparse
import ipaddress
import random
from typing import TYPE_CHECKING

from memq.core.access.rules import (
    OPERATIONS,
    RESOURCE_TYPES,
    Access,
    Question,
    Rule,
    Rules,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PRINCIPALS = ("User:a", "User:b", "User:a:b")
NAMES = ("t", "ta", "tab", "b", "*", "")
HOSTS = ("10.0.0.1", "10.1.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "?")
PLACES = ("*", "10.0.0.1", "10.0.0.0/16", "fe80::/10")


def decide(
    rules: Sequence[Rule], superusers: Collection[str], principal: str, host: str, asked: Question
) -> bool:
    """Look at each rule, one after the other, as the documentation says."""
    if principal in superusers:
        return True
    found = [rule.allow for rule in rules if _is_about(rule, principal, host, asked)]
    return bool(found) and all(found)


def _is_about(rule: Rule, principal: str, host: str, asked: Question) -> bool:
    operations = {rule.operation}
    if rule.operation == "all":
        operations = set(OPERATIONS)
    elif rule.allow and rule.operation != "create":
        operations.add("describe")
    named = asked.name.startswith(rule.name) if rule.prefixed else rule.name in (asked.name, "*")
    return (
        rule.principal in (principal, "*")
        and asked.operation in operations
        and rule.type == asked.type
        and named
        and _is_place(rule, host)
    )


def _is_place(rule: Rule, host: str) -> bool:
    if rule.host == "*":
        return True
    if host == "?":  # nobody knows: only a denial is to be heeded
        return not rule.allow
    address = ipaddress.ip_address(host.split("%", maxsplit=1)[0])
    if address.version == 6 and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address in ipaddress.ip_network(rule.host)


def compare(chance: random.Random) -> None:
    """Ask both about some rules, each question twice."""
    some = some_rules(chance)
    superusers = {chance.choice(PRINCIPALS)} if chance.random() < 0.1 else set()
    principal, host = chance.choice(PRINCIPALS), chance.choice(HOSTS)
    access = Access(principal, host, Rules(some, superusers))
    reasons = {rule.words(): rule.allow for rule in some}
    for asked in [_question(chance) for _ in range(3)] * 2:
        expected = decide(some, superusers, principal, host, asked)
        answer = access.decide(asked)
        assert access.may(*asked) is answer.allowed is expected, (some, principal, host, asked)
        assert superusers or reasons.get(answer.why, False) is expected, (answer, some, asked)


def some_rules(chance: random.Random) -> list[Rule]:
    """Up to eleven rules, about few principals and names."""
    return [_rule(chance) for _ in range(chance.randrange(12))]


def _rule(chance: random.Random) -> Rule:
    return Rule(
        principal=chance.choice([*PRINCIPALS, "*"]),
        operation=chance.choice([*OPERATIONS, "all"]),
        type=chance.choice(RESOURCE_TYPES),
        name=chance.choice(NAMES),
        prefixed=chance.random() < 0.5,
        host=chance.choice(PLACES),
        allow=chance.random() < 0.7,
    )


def _question(chance: random.Random) -> Question:
    name = chance.choice([*NAMES, "".join(chance.choices("tab*", k=3))])
    return Question(chance.choice(OPERATIONS), chance.choice(RESOURCE_TYPES), name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    for _ in range(given.sets):
        compare(chance)
    print(f"{given.sets} sets of rules, each question answered alike")  # noqa: T201 - a campaign
