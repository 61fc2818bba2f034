"""`memq lag`."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def group(memq, topic, lines):
    """A group that has read one of two Batches of a topic of its name."""
    memq("produce", topic, "--input", lines)
    memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")
    memq("produce", topic, "--input", lines)
    return topic


def test_all_groups(memq, group):
    """A row for each group and topic, with all read partitions together."""
    titles, row = memq("lag", group).decode().splitlines()
    [found] = json.loads(memq("lag", "--group", group, "-o", "json"))

    assert titles.split() == ["GROUP", "TOPIC", "MEMBERS", "LAG", "RECORDS", "SIZE", "BEHIND"]
    assert row.split()[:5] == [group, group, "0", "1", "1000"]
    assert (found["group"], found["topic"], found["members"]) == (group, group, 0)
    assert (found["lag"], found["lag_records"], found["removed"]) == (1, 1_000, False)
    assert [part["current_offset"] for part in found["partitions"]] == [1]
    assert group in memq("lag").decode()
