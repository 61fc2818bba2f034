"""`memq offsets` and `memq group`."""

from __future__ import annotations

import json

from tests.integration.cli.processes import TIMEOUT_S, start


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
