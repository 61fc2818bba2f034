"""`memq topic`."""

import json


def test_topic_life(memq):
    """A topic is made, shown, changed and deleted."""
    memq("topic", "create", "life", "--read-partitions", "4", "--no-audited", "--batch-age", "1s")
    rows = json.loads(memq("topic", "list", "-o", "json"))
    [row] = [row for row in rows if row["topic"] == "life"]
    assert (row["read_partitions"], row["audited"], row["batch_age_ms"]) == (4, False, 1_000)

    memq("topic", "alter", "life", "--batch-age", "2s", "--audited")

    shown = dict(
        line.split(maxsplit=1) for line in memq("topic", "describe", "life").decode().splitlines()
    )
    assert (shown["batch_age"], shown["audited"], shown["retention"]) == ("2s", "true", "7d")
    assert shown["schema"].startswith("key:binary?,value:binary?,")
    assert "exists" in memq("topic", "create", "life", code=1)
    assert "nothing to change" in memq("topic", "alter", "life", code=2)
    memq("topic", "delete", "life", "--yes")
    for command in (
        ["describe", "life"],
        ["delete", "life", "--yes"],
        ["alter", "life", "--audited"],
    ):
        assert "life" in memq("topic", *command, code=1)


def test_schema_from_text(memq, tmp_path):
    """A schema is written as a short text, shown as one, grown, and fed back from JSON."""
    memq("topic", "create", "short", "--schema", "id:int64,name:string?")
    shown = memq("topic", "describe", "short").decode()
    assert shown.splitlines()[-1].split(maxsplit=1) == ["schema", "id:int64,name:string?"]

    memq("topic", "alter", "short", "--schema", "id:int64,name:string?,tags:list<string>?")

    path = tmp_path / "described.json"
    path.write_bytes(memq("topic", "describe", "short", "-o", "json"))
    memq("topic", "create", "copy", "--schema", path)
    first, second = (
        json.loads(memq("topic", "describe", name, "-o", "json")) for name in ("short", "copy")
    )
    assert first["schema_id"] == second["schema_id"]
    said = memq("topic", "create", "wrong", "--schema", "id:int", code=1)
    assert "column 'id': expected a type" in said


def test_trim(memq, topic, lines):
    """What would go is shown; what is younger than dedup_window stays, and other offsets are
    refused.
    """
    memq("produce", topic, "--input", lines)
    for more in ((), ("--execute",)):
        trim = ("topic", "trim", topic, "--before", 1, *more, "-o", "json")
        [row] = json.loads(memq(*trim))
        assert (row["start"], row["end"], row["stays"]) == (0, 1, 0)
    assert "STAYS" in memq("topic", "trim", topic, "--before", "2h", "--partition", 0).decode()
    assert "ends at 1" in memq("topic", "trim", topic, "--before", 2, code=1)
    assert "no partition 1" in memq("topic", "trim", topic, "--before", 0, "--partition", 1, code=1)
    assert "is not a time" in memq("topic", "trim", topic, "--before", "9" * 30, code=1)
