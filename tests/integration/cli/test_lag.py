"""`memq lag`."""

from __future__ import annotations

import json
import os
import pty

import pytest

from tests.integration.cli.processes import start


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


def test_watch_at_a_terminal(group, broker):
    """At a terminal each look takes the place of the one before."""
    ours, theirs = pty.openpty()
    watching = start(
        "lag", group, "--watch", "--interval", "0.1", "-b", broker.address, stdout=theirs
    )
    os.close(theirs)
    seen = b""
    while seen.count(b"\x1b[H") < 4:
        seen += os.read(ours, 4_096)
    watching.kill()
    watching.communicate()
    os.close(ours)

    screen = seen.split(b"\x1b[H")[2]
    assert screen.endswith(b"\x1b[J")
    assert group.encode() in screen
