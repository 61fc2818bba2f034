"""`memq topic`."""

from __future__ import annotations

import json

import pyarrow as pa
from pyarrow import parquet


def test_topic_life(memq):
    """A topic is made, shown, changed and deleted."""
    memq("topic", "create", "rides", "--read-partitions", "4", "--no-audited", "--batch-age", "1s")
    rows = json.loads(memq("topic", "list", "-o", "json"))
    [row] = [row for row in rows if row["topic"] == "rides"]
    assert (row["read_partitions"], row["audited"], row["batch_age_ms"]) == (4, False, 1_000)

    memq("topic", "alter", "rides", "--batch-age", "2s", "--audited")

    shown = dict(
        line.split(maxsplit=1) for line in memq("topic", "describe", "rides").decode().splitlines()
    )
    assert (shown["batch_age"], shown["audited"], shown["retention"]) == ("2s", "true", "7d")
    assert shown["schema"].startswith("key: binary, value: binary, ")
    assert "exists" in memq("topic", "create", "rides", code=1)
    assert "nothing to change" in memq("topic", "alter", "rides", code=2)
    memq("topic", "delete", "rides")
    for command in (["describe", "rides"], ["delete", "rides"], ["alter", "rides", "--audited"]):
        assert "rides" in memq("topic", *command, code=1)


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
