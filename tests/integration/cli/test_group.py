"""`memq offsets` and `memq group`."""

from __future__ import annotations

import asyncio
import json

from memq.client.cluster import Cluster
from memq.core.wire.messages import GroupHeartbeat
from tests.integration.cli.processes import TIMEOUT_S, start


async def ask(address, request):
    """Send a request as no client of ours would, or not yet."""
    cluster = Cluster(address)
    try:
        await cluster.call(request)
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
