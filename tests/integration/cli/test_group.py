"""`memq offsets` and `memq group`."""

from __future__ import annotations

import json

from tests.integration.cli.processes import TIMEOUT_S, committed, start


def test_offsets(memq, topic, lines):
    """Start, end and watermark of each partition, and the offset of a time."""
    memq("produce", topic, "--input", lines)

    [row] = json.loads(memq("offsets", topic, "--at", "1h", "-o", "json"))

    assert (row["partition"], row["start"], row["end"], row["at"]) == (0, 0, 1, 0)
    assert row["watermark"].endswith("Z")
    table = memq("offsets", topic).decode().splitlines()
    assert table[0].split() == ["TOPIC", "PARTITION", "START", "END", "WATERMARK"]


def test_lag(memq, topic, lines):
    """A group's lag is what it has not committed."""
    memq("produce", topic, "--input", lines)
    memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")
    memq("produce", topic, "--input", lines)

    table = memq("group", "describe", topic).decode().splitlines()
    listed = json.loads(memq("group", "list", "--topic", topic, "-o", "json"))

    assert table[0].split()[3:6] == ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert table[1].split() == [topic, topic, "0", "1", "2", "1", "-", "-"]
    assert listed == [{"group": topic, "topic": topic, "members": 0}]


def test_members_are_shown(memq, topic, lines, broker):
    """A live member stands beside its partitions, and keeps the group from being reset."""
    memq("produce", topic, "--input", lines)
    consuming = start("consume", topic, "--group", topic, "--from-beginning", "-b", broker.address)
    consuming.stdout.readline()

    [row] = json.loads(memq("group", "describe", topic, "-o", "json"))
    refused = memq("group", "reset-offsets", topic, topic, "--to-earliest", "--execute", code=1)

    assert row["client"] == "memq consume"
    assert row["consumer_id"]
    assert "member" in refused
    consuming.stdout.close()
    consuming.kill()
    consuming.wait(TIMEOUT_S)
    consuming.stdin.close()
    consuming.stderr.close()


def test_reset(memq, topic, lines):
    """A reset is shown, and done when it is asked for."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)
    memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")

    memq("group", "reset-offsets", topic, topic, "--to-earliest")
    assert committed(memq, topic) == [3]
    memq("group", "reset-offsets", topic, topic, "--shift-by", "-1", "--execute")
    assert committed(memq, topic) == [2]
    memq("group", "reset-offsets", topic, topic, "--to-datetime", "1h", "--execute")
    assert committed(memq, topic) == [0]
    memq("group", "reset-offsets", topic, topic, "--to-offset", "99", "--execute")
    assert committed(memq, topic) == [3]
    assert "give one of" in memq("group", "reset-offsets", topic, topic, code=2)
    assert "no partition 5" in memq(
        "group", "reset-offsets", topic, topic, "--to-latest", "--partition", "5", code=1
    )


def test_forgotten_group(memq, topic):
    """A group can be made by a reset, and is gone once it was deleted."""
    memq("group", "reset-offsets", "planned", topic, "--to-earliest", "--execute")
    assert committed(memq, "planned") == [0]

    deleted = json.loads(memq("group", "delete", "planned", topic, "--yes", "-o", "json"))

    assert deleted == [{"group": "planned", "topic": topic, "partition": 0, "deleted_offset": 0}]
    assert "no group 'planned'" in memq("group", "describe", "planned", code=1)
    assert "planned" in memq("group", "delete", "planned", topic, code=1)
