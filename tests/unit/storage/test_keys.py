"""The layout of keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.errors import InvalidRequestError
from memq.storage.keys import (
    MAX_RUNNING_MS,
    BatchKey,
    check_key,
    object_key,
    parse_object_key,
    topic_prefixes,
)

LIFE = "0123456789abcdef"
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


def test_object_key_has_the_documented_layout():
    """The key is hash, cluster, topic, write partition, both times and batch id."""
    key = object_key(BatchKey("prod", "clicks", LIFE, 3, 1_700_000_000_123, "b-1", 42))
    assert key == f"3e/prod/topics/clicks/{LIFE}/3/1700000000123-00000000002a-b-1.arrows"


@given(
    cluster=NAMES,
    topic=NAMES,
    partition=st.integers(0, 255),
    sealed_ms=st.integers(0, 10**14),
    batch=NAMES,
    running_ms=st.integers(0, MAX_RUNNING_MS),
)
def test_parse_gives_back_what_the_key_was_made_of(
    *, cluster, topic, partition, sealed_ms, batch, running_ms
):
    """Every key parses into its parts, is valid, and lies under one of its topic's prefixes."""
    parts = BatchKey(cluster, topic, LIFE, partition, sealed_ms, batch, running_ms)
    key = object_key(parts)
    assert parse_object_key(key) == parts
    assert check_key(key) == key
    assert sum(key.startswith(prefix) for prefix in topic_prefixes(cluster, topic, LIFE)) == 1


@pytest.mark.parametrize(
    "key",
    [
        f"3e/prod/topics/clicks/{LIFE}/3/1700000000123-00000000002a-b-1.arrow",
        f"3f/prod/topics/clicks/{LIFE}/3/1700000000123-00000000002a-b-1.arrows",
        f"3e/prod/topics/clicks/{LIFE}/03/1700000000123-00000000002a-b-1.arrows",
        f"3e/prod/topics/clicks/{LIFE}/3/123-00000000002a-b-1.arrows",
        f"3e/prod/topics/clicks/{LIFE}/3/1700000000123-b-1.arrows",
        f"3e/prod/topics/clicks/{LIFE}/3/1700000000123-00000000002a-b-1.arrows\n",
        "3e/prod/topics/clicks/3/1700000000123-00000000002a-b-1.arrows",
        f"3e/prod/topics/clicks/{LIFE[1:]}/3/1700000000123-00000000002a-b-1.arrows",
    ],
)
def test_other_keys_are_not_those_of_a_batch(key):
    """A foreign file, or a key whose hash does not fit, parses to None."""
    assert parse_object_key(key) is None


@pytest.mark.parametrize(
    "parts",
    [
        BatchKey("a/b", "t", LIFE, 0, 0, "b"),
        BatchKey("c", "../t", LIFE, 0, 0, "b"),
        BatchKey("c", "t", LIFE.upper(), 0, 0, "b"),
        BatchKey("c", "t", LIFE, 0, 0, "b\n"),
        BatchKey("c", "t", LIFE, -1, 0, "b"),
        BatchKey("c", "t", LIFE, 0, -1, "b"),
        BatchKey("c", "t", LIFE, 0, 0, "b" * 250),
        BatchKey("c", "t", LIFE, 0, 0, "b", -1),
        BatchKey("c", "t", LIFE, 0, 0, "b", MAX_RUNNING_MS + 1),
    ],
)
def test_a_key_cannot_be_made_of_bad_parts(parts):
    """Names that would break the layout and negative numbers are refused."""
    with pytest.raises(InvalidRequestError):
        object_key(parts)
