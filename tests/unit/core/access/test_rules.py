"""Rules: what they allow, and what cannot be one."""

import random

import msgspec
import pytest

from memq.core.access.rules import MAX_ANSWERS, Access, Rule, Rules, check_rule
from memq.errors import InvalidRequestError
from tests.fakes import naive_rules


def test_the_answer_is_that_of_a_naive_evaluator():
    """A question is answered as by looking at each rule, and the one that is named says so."""
    chance = random.Random(1)
    for _ in range(5_000):
        naive_rules.compare(chance)


def test_other_rules_hold_at_once():
    """What was allowed a moment ago is not remembered once the rules are others."""
    allow = Rule(principal="User:a", operation="read", type="topic", name="t")
    access = Access("User:a", "10.0.0.1", Rules([allow]))
    assert access.may("read", "topic", "t")
    access.may_write.add(("t", "p"))
    access.follow(Rules())
    assert not access.may("read", "topic", "t")
    assert not access.may_write
    access.follow(None)
    assert access.unrestricted
    assert access.may("delete", "topic", "t")


def test_answers_that_are_kept_are_bounded():
    """A client that asks about ever more names fills no memory, and is answered right."""
    access = Access("User:a", "h", Rules([], ["User:a"]))
    assert all(access.may("read", "topic", str(number)) for number in range(3 * MAX_ANSWERS))
    assert len(access._answers) <= MAX_ANSWERS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"operation": "eat"}, "operation 'eat': must be one of read, write"),
        ({"type": "table"}, "type 'table': must be one of topic, group"),
        ({"principal": "alice"}, "write it as User:NAME"),
        ({"principal": ""}, "it has 1 to 250 printable characters"),
        ({"name": "x" * 251}, "it has 1 to 250"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "*", "prefixed": True}, "give the name '\\*'"),
        ({"type": "cluster"}, "the cluster's name is 'cluster'"),
        ({"host": "10.0.0.1/8"}, "write an address, a network"),
        ({"host": "web-1"}, "write an address"),
        ({"host": "::ffff:10.0.0.0/104"}, "write the IPv4 address by itself"),
        ({"principal": "User:alice "}, "no space at its ends"),
    ],
)
def test_a_rule_that_is_about_nothing_is_refused(changed, said):
    """The error names the value and what is allowed."""
    rule = Rule(principal="User:a", operation="read", type="topic", name="t")
    check_rule(rule)
    with pytest.raises(InvalidRequestError, match=said):
        check_rule(msgspec.structs.replace(rule, **changed))
