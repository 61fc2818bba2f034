"""IAM policies of the bucket, where readers fetch Batches: of a principal's rules, of one topic.

Objects of a topic have its name in their keys, after two digits that spread them:
`hh/CLUSTER/topics/TOPIC/…` (`memq.storage.keys`). So a policy can tell one topic from others.

IAM cannot know from where a client of a broker would come. An allowance from some hosts is left out
of the policy, and a denial from some holds for all: the policy never allows more than the rules.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from memq.core.access.rules import ALL_OPERATIONS, ANY
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.access.rules import Rule

_BUCKET = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]+)/?(?P<root>[^*?$]*)")
_TOPIC = re.compile(r"[A-Za-z0-9_.-]*")  # what else a rule may have could be a wildcard of IAM


def read_policy(
    rules: Iterable[Rule], principal: str, storage: str, cluster_id: str
) -> dict[str, Any]:
    """Make the policy by which a principal reads objects of the topics that it may read.

    Args:
        rules: of the cluster.
        principal: such as `User:alice`.
        storage: of the brokers, such as `s3://bucket/prefix`.
        cluster_id: of the cluster.

    Raises:
        InvalidRequestError: the storage is not S3.
    """
    base = topics_arn(storage, cluster_id)
    named: dict[bool, list[str]] = {True: [], False: []}
    for rule in rules:
        about = rule.type == "topic" and rule.operation in ("read", ALL_OPERATIONS)
        skipped = rule.allow and rule.host != ANY
        if not about or skipped or rule.principal not in (principal, ANY):
            continue
        every = rule.name == ANY and not rule.prefixed
        if every or _TOPIC.fullmatch(rule.name):
            topics = ANY if every else f"{rule.name}{'*' * rule.prefixed}"
            named[rule.allow].append(f"{base}/{topics}/*")
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": effect, "Action": "s3:GetObject", "Resource": sorted(set(resources))}
            for effect, resources in (("Allow", named[True]), ("Deny", named[False]))
            if resources
        ],
    }


def topic_policy(base: str, topic: str, topic_id: str, *, decrypts: bool) -> dict[str, Any]:
    """Make the policy of a session that reads objects of one topic id.

    Nobody may list: whoever has the key of an object has it from a notification of the topic.

    Args:
        base: from `topics_arn`.
        topic: its name.
        topic_id: of it.
        decrypts: objects are encrypted by KMS, which S3 asks in the name of the reader.
    """
    objects = f"{base}/{topic}/{topic_id}/*"
    statements: list[Any] = [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": objects}]
    if decrypts:
        only_s3 = {"StringLike": {"kms:ViaService": "s3.*"}}
        allowed = {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": ANY}
        statements.append(allowed | {"Condition": only_s3})
    return {"Version": "2012-10-17", "Statement": statements}


def topics_arn(storage: str, cluster_id: str, like: str = "arn:aws:") -> str:
    """Return the resource that all topics of a cluster lie below.

    Args:
        storage: as in `read_policy`.
        cluster_id: of the cluster.
        like: an ARN of the same partition of AWS.

    Raises:
        InvalidRequestError: the storage is not S3.
    """
    match = _BUCKET.fullmatch(storage)
    if match is None:
        raise InvalidRequestError(f"storage {storage!r}: IAM is for s3://BUCKET/PREFIX")
    root = f"{match['root'].strip('/')}/".lstrip("/")
    return f"arn:{like.split(':')[1]}:s3:::{match['bucket']}/{root}??/{cluster_id}/topics"
