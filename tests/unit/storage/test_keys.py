"""The layout of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.storage.keys import (
    BatchKey,
    check_key,
    object_key,
    parse_object_key,
    topic_prefixes,
)
from memq.errors import InvalidRequestError

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


def test_object_key_has_the_documented_layout():
    """The key is hash, cluster, topic, write partition, time and batch id."""
    key = object_key("prod", "clicks", 3, 1_700_000_000_123, "b-1")
    assert key == "3e/prod/topics/clicks/3/1700000000123-b-1.arrows"


@given(
    cluster=NAMES,
    topic=NAMES,
    partition=st.integers(0, 255),
    sealed_ms=st.integers(0, 10**14),
    batch=NAMES,
)
def test_parse_gives_back_what_the_key_was_made_of(cluster, topic, partition, sealed_ms, batch):
    """Every key parses into its parts, is valid, and lies under one of its topic's prefixes."""
    key = object_key(cluster, topic, partition, sealed_ms, batch)
    assert parse_object_key(key) == BatchKey(cluster, topic, partition, sealed_ms, batch)
    assert check_key(key) == key
    assert sum(key.startswith(prefix) for prefix in topic_prefixes(cluster, topic)) == 1


@pytest.mark.parametrize(
    "key",
    [
        "",
        "3e/prod/topics/clicks/3/1700000000123-b-1.arrow",
        "3f/prod/topics/clicks/3/1700000000123-b-1.arrows",
        "3e/prod/topics/clicks/03/1700000000123-b-1.arrows",
        "3e/prod/topics/clicks/3/123-b-1.arrows",
        "3e/prod/topics/clicks/3/1700000000123-b-1.arrows\n",
        "x/3e/prod/topics/clicks/3/1700000000123-b-1.arrows",
    ],
)
def test_other_keys_are_not_those_of_a_batch(key):
    """A foreign file, or a key whose hash does not fit, parses to None."""
    assert parse_object_key(key) is None


def test_keys_of_one_prefix_sort_by_time():
    """Names sort by age as text, long into the future."""
    times = [0, 999, 10**12, 10**13 - 1]
    names = [object_key("c", "t", 0, time_ms, "b") for time_ms in times]
    assert names == sorted(names)


def test_the_hash_spreads_batches_over_all_prefixes():
    """A few thousand batch ids reach each of the 256 prefixes."""
    assert len({object_key("c", "t", 0, 0, f"batch{n}")[:2] for n in range(4000)}) == 256


@pytest.mark.parametrize(
    ("cluster", "topic", "partition", "sealed_ms", "batch"),
    [
        ("a/b", "t", 0, 0, "b"),
        ("", "t", 0, 0, "b"),
        ("..", "t", 0, 0, "b"),
        ("c", "../t", 0, 0, "b"),
        ("c", "t", 0, 0, "b/c"),
        ("c", "t", 0, 0, "b\n"),
        ("c", "t", -1, 0, "b"),
        ("c", "t", 0, -1, "b"),
        ("c", "t", 0, 0, "b" * 250),
    ],
)
def test_a_key_cannot_be_made_of_bad_parts(cluster, topic, partition, sealed_ms, batch):
    """Names that would break the layout and negative numbers are refused."""
    with pytest.raises(InvalidRequestError):
        object_key(cluster, topic, partition, sealed_ms, batch)
