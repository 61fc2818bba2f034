"""`memq batch` of what a broker stored."""

import json
import re
from pathlib import Path

import pytest


def test_batches_of_a_topic(memq, topic, lines):
    """Batches are listed by offset, and sound ones are verified; a lost object is found."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)

    rows = json.loads(memq("batch", "list", topic, "--last", "2", "-o", "json"))
    assert [(row["offset"], row["records"]) for row in rows] == [(1, 1_000), (2, 1_000)]
    verified = json.loads(memq("batch", "verify", topic, "-o", "json"))
    assert (verified["batches"], verified["records"], verified["damaged"]) == (3, 3_000, [])
    verified = json.loads(memq("batch", "verify", topic, "--range", "0:1-2", "-o", "json"))
    assert verified["batches"] == 1
    assert memq("batch", "cat", rows[0]["uri"]).count(b"\n") == 1_000
    Path(rows[0]["uri"].removeprefix("file://")).unlink()
    assert "damaged: 1 of 3 Batches" in memq("batch", "verify", topic, code=1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:500]), "is damaged: "),
        (lambda path: flip(path, 40), "is damaged: the schema message"),
        (lambda path: flip(path, 600), "is damaged: Message at byte"),
        (lambda path: path.unlink(), "is gone, though its notification is retained"),
    ],
)
def test_advice_about_a_damaged_object(memq, topic, lines, damage, said):
    """The error names the Batch once and how; the commands that it advises find it and pass it."""
    memq("produce", topic, "--input", lines)
    memq("produce", topic, "--input", lines)
    row = json.loads(memq("batch", "list", topic, "-o", "json"))[0]
    damage(Path(row["uri"].removeprefix("file://")))
    reading = ("consume", topic, "--group", "g", "--from-beginning", "--exit-at-end")

    for through in ("storage", "broker"):
        error = memq(*reading, "--read-through", through, code=1)

        assert said in error
        assert error.count("\n") == 1
        assert error.count(f"Batch {row['batch_id']}") == error.count(row["uri"]) == 1
    advised = re.findall("`memq (.+?)`", error)
    if "is damaged" in said:
        memq(*advised.pop(0).split(), code=1)  # it ends with 1, as it finds something
    (passing,) = advised
    memq(*passing.replace("GROUP", "g").split())
    assert memq(*reading).count(b"\n") == 1_000


def flip(path, position):
    """Change one byte of an object."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
