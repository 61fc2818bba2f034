"""Where a stream stands, as its checkpoint has it."""

from __future__ import annotations

import pytest

from memq.errors import CorruptDataError
from memq.spark.checkpoint import (
    StreamPosition,
    TopicPosition,
    decode_topics,
    encode_checkpoint,
    encode_topics,
)

LIFE, OTHER = "0123456789abcdef", "fedcba9876543210"
NAMES = {LIFE: "a", OTHER: "b"}


def test_checkpoints_of_one_topic_and_of_several():
    """Each form comes back as it was, and the form of one topic finds its name."""
    one = {"a": TopicPosition(LIFE, {0: StreamPosition(1, 2, 2)})}
    several = one | {"b": TopicPosition(OTHER, {0: StreamPosition(0, 5)})}

    assert "topics" not in encode_topics(one, "a")
    assert decode_topics(encode_topics(one, "a"), NAMES, "") == one
    assert decode_topics(encode_topics(one, "a"), {}, "x") == {"x": one["a"]}
    assert decode_topics(encode_topics(several, ""), NAMES, "") == several


def test_equal_positions_have_equal_texts():
    """Spark compares them as text: read partitions are sorted by their numbers."""
    encoded = encode_checkpoint(LIFE, {10: StreamPosition(3, 5), 2: StreamPosition(0, 0, 1)})

    assert list(encoded["partitions"].items()) == [
        ("2", {"from": 0, "next": 0, "told": 1}),
        ("10", {"from": 3, "next": 5}),
    ]


@pytest.mark.parametrize(
    "found",
    [
        {"offset": 5},
        {"0": {"from": 0, "next": 5}},
        {"incarnation": LIFE},
        {"incarnation": LIFE, "partitions": {"0": 5}},
        {"incarnation": LIFE, "partitions": {"0": {"next": 5}}},
        {"incarnation": LIFE, "partitions": {"x": {}}},
        {"incarnation": "", "partitions": {"0": {"from": 0, "next": 5}}},
        {"incarnation": 7, "partitions": {}},
        {"incarnation": LIFE, "partitions": [5]},
        {"incarnation": LIFE, "partitions": {"0": {"from": 0, "next": 5, "told": "x"}}},
        [1],
        {"topics": 5},
        {"topics": {"a": {"partitions": {}}}},
    ],
)
def test_a_foreign_checkpoint_is_refused(found):
    """A checkpoint of another source is named as such."""
    with pytest.raises(CorruptDataError, match="not a position of a memq stream"):
        decode_topics(found, NAMES, "")
