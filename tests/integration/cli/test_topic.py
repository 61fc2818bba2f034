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
