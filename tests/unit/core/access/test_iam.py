"""A policy of the bucket allows what the rules allow, and never more."""

import json
import random
import re

import pytest

from memq.core.access.iam import read_policy, topic_policy, topics_arn
from memq.core.access.rules import Question, Rule, Rules
from memq.errors import InvalidRequestError
from memq.storage.keys import BatchKey, object_key
from tests.fakes.naive_rules import some_rules

TOPICS = ("t", "ta", "tab", "b", "bt")


def allows(policy: dict, resource: str) -> bool:
    """Whether IAM lets a reader get an object: an allowance is needed, and a denial wins."""
    found = set()
    for statement in policy["Statement"]:
        assert statement["Action"] == "s3:GetObject"
        for pattern in statement["Resource"]:
            regex = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
            if re.fullmatch(regex, resource):
                found.add(statement["Effect"])
    return found == {"Allow"}


def test_a_policy_says_what_the_rules_say():
    """For rules without hosts it is the same; with some, the policy may only be stricter."""
    chance, same = random.Random(3), 0
    for _ in range(2_000):
        rules = some_rules(chance)
        policy = read_policy(rules, "User:a", "s3://bucket/root/", "memq")
        for topic in TOPICS:
            key = object_key(BatchKey("memq", topic, "0" * 16, 0, 1_795_812_988_209, "batch", 7))
            may = Rules(rules).decide("User:a", "10.0.0.1", Question("read", "topic", topic))
            allowed = allows(policy, f"arn:aws:s3:::bucket/root/{key}")
            assert may.allowed or not allowed
            same += may.allowed is allowed
            assert not allows(policy, f"arn:aws:s3:::other/root/{key}")
            assert not allows(policy, f"arn:aws:s3:::bucket/root/x/{key}")
            if all(rule.host == "*" for rule in rules):
                assert may.allowed is allowed
    assert same > 9_000


def test_names_that_no_topic_has_allow_nothing():
    """A star or a question mark in a rule's name is no wildcard of IAM."""
    rules = [
        Rule(principal="User:a", operation="read", type="topic", name=name, prefixed=prefixed)
        for name in ("t*b", "t?", "${aws:username}", "a/b")
        for prefixed in (False, True)
    ]
    assert read_policy(rules, "User:a", "s3://bucket", "memq")["Statement"] == []


@pytest.mark.parametrize("storage", ["file:///x", "gs://bucket", "s3://", "s3://b*", "s3://bb/*"])
def test_only_s3_has_iam(storage):
    """The error says what is expected."""
    with pytest.raises(InvalidRequestError, match="IAM is for s3://BUCKET/PREFIX"):
        read_policy([], "User:a", storage, "memq")


def test_a_session_reads_objects_of_one_topic_id():
    """No other topic, no topic before it of the same name, no other cluster, root or bucket."""
    base = topics_arn("s3://bucket/root/", "memq", "arn:aws-cn:iam::1:role/r")
    policy = topic_policy(base, "t", "a" * 16, decrypts=False)
    [statement] = policy["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Allow", "s3:GetObject")
    regex = re.escape(statement["Resource"]).replace(r"\*", ".*").replace(r"\?", ".")
    for cluster in ("memq", "memq2", "emq"):
        for topic in TOPICS:
            for topic_id in ("a" * 16, "b" * 16):
                key = object_key(BatchKey(cluster, topic, topic_id, 0, 1_795_812_988_209, "b", 7))
                for place in ("bucket/root", "bucket", "bucket/root/x", "other/root"):
                    mine = (cluster, topic, topic_id, place) == (
                        "memq",
                        "t",
                        "a" * 16,
                        "bucket/root",
                    )
                    resource = f"arn:aws-cn:s3:::{place}/{key}"
                    assert bool(re.fullmatch(regex, resource)) is mine


def test_a_session_of_the_longest_names_has_a_policy_that_sts_takes():
    """STS takes 2,048 characters; with KMS as well, where a bucket's encryption is told."""
    base = topics_arn(f"s3://bucket/{'r' * 500}", "c" * 249, "arn:aws:iam::1:role/r")
    policy = topic_policy(base, "t" * 249, "a" * 16, decrypts=True)
    assert policy["Statement"][1]["Action"] == "kms:Decrypt"
    assert policy["Statement"][1]["Condition"] == {"StringLike": {"kms:ViaService": "s3.*"}}
    assert len(json.dumps(policy, separators=(",", ":"))) < 2_048
