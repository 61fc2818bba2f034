"""`memq lag`."""

from __future__ import annotations

import json
import os
import pty

import pytest

from memq.cli.main import main
from memq.client.sync import EventLoopThread
from tests.harness.reading import world
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


def test_what_retention_removed_is_named(tmp_path, monkeypatch, capfd):
    """Batches that retention took before the group came are no lag: they are named."""
    loop = EventLoopThread("broker")
    running = world(tmp_path)
    w = loop.run(running.__aenter__())
    monkeypatch.setenv("MEMQ_BOOTSTRAP", w.address)
    for _ in range(5):
        loop.run(w.write(b"v"))
    main(["group", "reset-offsets", "g", "t", "--to-offset", "1", "--execute"])
    loop.run(w.queue.truncate(w.queue_topic, 0, 3))
    capfd.readouterr()

    shown = []
    for command in (["lag"], ["group", "describe", "g"], ["group", "describe", "g", "-o", "json"]):
        assert main(command) == 0
        shown.append(capfd.readouterr().out)

    note = "g: retention removed Batches of t that it had not read: partition 0, offsets 1 to 2"
    assert shown[0].splitlines()[1].split()[3] == "2"
    assert shown[0].splitlines()[-1] == shown[1].splitlines()[-1] == note
    [row] = json.loads(shown[2])
    assert (row["lag"], row["removed"], row["log_start_offset"]) == (2, True, 3)
    loop.run(running.__aexit__(None, None, None))
    loop.close()
