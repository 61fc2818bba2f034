"""`memq offsets` and `memq group`."""

from __future__ import annotations

import asyncio
import json

from memq.client.cluster import Cluster
from memq.core.wire.messages import GroupHeartbeat
from tests.integration.cli.processes import TIMEOUT_S, committed, start


def test_offsets(memq, topic, lines):
    """Start, end and watermark of each partition, and the offset of a time."""
    memq("produce", topic, "--input", lines)

    [row] = json.loads(memq("offsets", topic, "--at", "1h", "-o", "json"))

    assert (row["partition"], row["start"], row["end"], row["at"]) == (0, 0, 1, 0)
    assert row["watermark"].endswith("Z")
    table = memq("offsets", topic).decode().splitlines()
    assert table[0].split() == ["TOPIC", "PARTITION", "START", "END", "WATERMARK"]


def test_describe(memq, topic, lines):
    """A group's lag is what it has not committed, in Batches, records, bytes and seconds."""
    memq("produce", topic, "--input", lines)
    memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")
    memq("produce", topic, "--input", lines)

    heading, titles, row = memq("group", "describe", topic).decode().splitlines()
    [found] = json.loads(memq("group", "describe", topic, "-o", "json"))
    listed = json.loads(memq("group", "list", topic, "-o", "json"))

    assert heading == f"{topic} reads {topic} with 0 members"
    assert titles.split() == [
        "PARTITION", "OFFSET", "END", "LAG", "RECORDS", "SIZE", "BEHIND", "MEMBER", "CLIENT"
    ]  # fmt: skip
    assert row.split()[:5] == ["0", "1", "2", "1", "1000"]
    assert (found["group"], found["topic"], found["partition"]) == (topic, topic, 0)
    assert (found["current_offset"], found["log_start_offset"], found["log_end_offset"]) == (
        1,
        0,
        2,
    )
    assert (found["lag"], found["lag_records"], found["removed"]) == (1, 1_000, False)
    assert found["lag_bytes"] > 10_000
    assert found["lag_seconds"] > 0
    assert listed == [{"group": topic, "topic": topic, "members": 0}]


async def ask(address, request):
    """Send a request as no client of ours would, or not yet."""
    cluster = Cluster(address)
    try:
        await cluster.call(None, request)
    finally:
        await cluster.close()


def test_a_group_that_has_committed_nothing(memq, broker):
    """Where nothing is committed no lag is claimed, neither of a partition nor of all."""
    memq("topic", "create", "unread", "--read-partitions", "2", "--no-audited")
    joined = GroupHeartbeat(group="new", topic="unread", member_id="m", sequence=1)
    asyncio.run(ask(broker.address, joined))
    table = memq("group", "describe", "new").decode().splitlines()[2:]
    [row] = json.loads(memq("lag", "unread", "-o", "json"))

    assert [line.split()[3:7] for line in table] == [["-"] * 4] * 3
    assert row["lag"] is None


def test_describe_fits_a_terminal(memq, broker):
    """The table has at most 120 columns, with a short name of who reads and a row of totals."""
    memq("topic", "create", "wide", "--read-partitions", "2", "--no-audited")
    memq("group", "reset-offsets", "g" * 60, "wide", "--to-earliest", "--execute")
    consuming = start("consume", "wide", "--group", "g" * 60, "-b", broker.address)
    try:
        while "memq consume" not in (text := memq("group", "describe", "g" * 60).decode()):
            assert consuming.poll() is None
        rows = json.loads(memq("group", "describe", "g" * 60, "-o", "json"))
    finally:
        consuming.kill()
        consuming.communicate()

    heading, titles, *table = text.splitlines()
    assert heading == f"{'g' * 60} reads wide with 1 member"
    assert max(map(len, (titles, *table))) <= 120
    assert [row.split()[0] for row in table] == ["0", "1", "total"]
    assert table[0].split()[-3] == rows[0]["consumer_id"][:8]
    assert len(rows[0]["consumer_id"]) > 8
    assert table[-1].split() == ["total", "-", "-", "0", "0", "0", "B", "0s", "-", "-"]


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
