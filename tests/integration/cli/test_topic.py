"""`memq topic`."""

from __future__ import annotations

import json

import pyarrow as pa
from pyarrow import parquet


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


def test_typed_topic(memq, tmp_path):
    """A schema comes from a file, may grow, and rows are shown as JSON."""
    path = tmp_path / "rides.parquet"
    parquet.write_table(pa.table({"id": [1]}), path)
    memq("topic", "create", "typed", "--schema", path)
    wider = tmp_path / "wider.parquet"
    parquet.write_table(pa.table({"id": [1], "tip": [0.5]}), wider)

    memq("topic", "alter", "typed", "--schema", wider)

    row = json.loads(memq("topic", "describe", "typed", "-o", "json"))
    assert row["typed"]
    assert [(field["name"], field["type"]) for field in row["schema"]] == [
        ("id", "int64"),
        ("tip", "double"),
    ]
    assert "schema" in memq("produce", "typed", "--input", path, code=1)


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
    assert "column 'id': expected a type at 'int'" in memq(
        "topic", "create", "wrong", "--schema", "id:int", code=1
    )
    assert "no file, and no schema" in memq(
        "topic", "create", "wrong", "--schema", "missing.parquet", code=1
    )
