"""`memq batch` of what a broker stored."""

from __future__ import annotations

import json
from pathlib import Path

from memq.cli.main import main


def test_batches_of_a_topic(memq, topic, lines):
    """Batches are listed by offset, and sound ones are verified."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)

    rows = json.loads(memq("batch", "list", topic, "--last", "2", "-o", "json"))
    assert [(row["offset"], row["records"]) for row in rows] == [(1, 1_000), (2, 1_000)]
    verified = json.loads(memq("batch", "verify", topic, "-o", "json"))
    assert (verified["batches"], verified["records"], verified["damaged"]) == (3, 3_000, [])
    verified = json.loads(memq("batch", "verify", topic, "--range", "0:1-2", "-o", "json"))
    assert verified["batches"] == 1
    assert memq("batch", "cat", rows[0]["uri"]).count(b"\n") == 1_000


def test_damaged_topic(memq, topic, lines, capfdbinary):
    """A changed byte and a lost object are found and named, and nothing else."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)
    rows = json.loads(memq("batch", "list", topic, "-o", "json"))
    changed, lost, _ = (Path(row["uri"].removeprefix("file://")) for row in rows)
    with changed.open("r+b") as file:
        file.seek(600)
        file.write(b"?")
    lost.unlink()

    assert main(["batch", "verify", topic]) == 1

    captured = capfdbinary.readouterr()
    damaged = captured.out.decode().splitlines()[1:3]
    assert damaged[0].startswith("0            0         Message at byte")
    assert damaged[1].startswith("0            1         no object")
    assert captured.err == b"memq: error: damaged: 2 of 3 Batches\n"
