"""Columns of a table that others have changed: no range goes into another one, nor is one read."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.types import DoubleType, LongType

from memq.core.ranges import Interval
from memq.errors import SchemaMismatchError
from tests.advice import follows
from tests.integration.tables.lake import (
    RECORDS,
    SCHEMA,
    all_of,
    clicks,
    compact,
    lake_table,
    put,
    rows,
    values,
)
from tests.integration.tables.test_iceberg import intervals


@pytest.fixture
def table(tmp_path):
    return lake_table(tmp_path)


def test_columns_that_come_later(table):
    """A topic that grew a column grows the table; a range from before can still follow."""
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    put(table, clicks(0, 1))
    put(table, clicks(2, 3), rows(clicks(2, 3), wider))
    put(table, clicks(1, 2))

    read = table.load().scan().to_arrow().sort_by("value")
    assert read["score"].to_pylist() == [None] * 6 + [0.5] * RECORDS
    assert values(table) == all_of(3)


CHANGED = "was renamed, dropped or made anew in the table at"


@follows("Rename it back, or put the topic into a table of its own")
def test_a_column_that_was_renamed(table):
    """No other one comes under its name; ranges go on when it has that again."""
    put(table, clicks(0, 1))
    table.load().update_schema().rename_column("value", "v").commit()

    with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
        put(table, clicks(1, 2))

    assert "value" not in table.load().schema().column_names
    table.load().update_schema().rename_column("v", "value").commit()
    put(table, clicks(1, 2))
    assert values(table) == all_of(2)


def test_a_column_that_was_dropped(table):
    """It does not come back with the next range, and is not taken for one that is added later."""
    put(table, clicks(0, 1))
    compact(table)
    put(table, clicks(1, 2))
    table.load().update_schema().delete_column("value").commit()

    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
            put(table, clicks(2, 3))
        with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
            values_of(table, "value")
        if "value" not in table.load().schema().column_names:
            table.load().update_schema().add_column("value", LongType()).commit()

    assert intervals(table) == [Interval(0, 2)]


INNER = pa.struct([("name", pa.string()), ("age", pa.int64())])
NESTED = {
    "struct": (INNER, "name", {"name": "x", "age": 1}),
    "struct in a struct": (pa.struct([("s", INNER)]), "s.name", {"s": {"name": "x", "age": 1}}),
    "list": (pa.list_(INNER), "element.name", [{"name": "x", "age": 1}]),
    "map": (pa.map_(pa.string(), INNER), "value.name", [("k", {"name": "x", "age": 1})]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_field_that_was_renamed_or_dropped(tmp_path, kind):
    """It does not come back beside the other one, and is not left out; its neighbours go on."""
    kind, path, value = NESTED[kind]
    schema = SCHEMA.append(pa.field("who", kind))
    where = ("who", *path.split("."))

    def data(wanted):
        who = pa.array([value] * RECORDS, kind)
        return rows(wanted, SCHEMA).append_column(schema.field("who"), who)

    table = lake_table(tmp_path, schema)
    put(table, clicks(0, 1), data(clicks(0, 1)))
    table.load().update_schema().rename_column(where, "full").commit()

    with pytest.raises(SchemaMismatchError, match=rf"column 'who\.{path}' {CHANGED}"):
        put(table, clicks(1, 2), data(clicks(1, 2)))

    table.load().update_schema().rename_column((*where[:-1], "full"), "name").commit()
    table.load().update_schema().add_column((*where[:-1], "own"), LongType()).commit()
    put(table, clicks(1, 2), data(clicks(1, 2)))
    put(table, clicks(2, 3))
    table.load().update_schema().delete_column(where).commit()

    with pytest.raises(SchemaMismatchError, match=rf"column 'who\.{path}' {CHANGED}"):
        put(table, clicks(3, 4), data(clicks(3, 4)))


def change(table, *renamed, dropped=(), added=()):
    """Do what the owner of a table may do to its columns, one after the other."""
    for name in dropped:
        table.load().update_schema().delete_column(name).commit()
    for name in added:
        table.load().update_schema().add_column(name, DoubleType()).commit()
    for old, new in renamed:
        table.load().update_schema().rename_column(old, new).commit()


def forget_schemas(table):
    """Remove all schemas from before, as some programs do when snapshots expire."""
    loaded = table.load()
    ids = [each.schema_id for each in loaded.metadata.schemas]
    ids.remove(loaded.metadata.current_schema_id)
    loaded.catalog.commit_table(loaded, (), (RemoveSchemasUpdate(schema_ids=ids),))


SCORED = SCHEMA.append(pa.field("score", pa.float64()))
SWAP = [("value", "old"), ("score", "value"), ("old", "score")]


@pytest.mark.parametrize("compacted", [False, True])
def test_names_that_went_to_another_column(tmp_path, compacted):
    """A column gets nothing of another one that had its name, and no range goes into another."""
    table = lake_table(tmp_path, SCORED)
    put(table, clicks(0, 1), rows(clicks(0, 1), SCORED))
    if compacted:
        compact(table)
    before = [table.load().schema(), values(table)]

    def refused(match, schema=SCORED):
        with pytest.raises(SchemaMismatchError, match=match):
            put(table, clicks(7, 8), rows(clicks(7, 8), schema))

    change(table, *SWAP)
    refused(f"column 'value' {CHANGED}")
    with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
        values_of(table, "value")
    change(table, ("score", "old"), ("value", "score"), ("old", "value"))
    assert [table.load().schema(), values(table)] == before
    assert values_of(table, "value") == all_of(1)

    change(table, ("value", "raw"))
    table.load().update_schema().add_column("value", LongType()).commit()
    refused(f"column 'value' {CHANGED}")
    with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
        values_of(table, "value")
    change(table, ("score", "value"), dropped=["value"])
    refused(f"column 'value' {CHANGED}", SCHEMA)
    with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
        values_of(table, "value")


def values_of(table, *columns):
    """Values as they are read for a topic with such columns."""
    naming = {"topic": "clicks", "memq_incarnation": "a1"}
    found = table.matching(table.load(), naming, [*columns, "partition", "offset"])
    each = (value for batch in found for value in batch[columns[0]].to_pylist())
    return sorted(value for value in each if value is not None)


def test_a_column_of_the_owner(table):
    """It is not given for one that the topic gets, and takes nothing of that, if it was renamed."""
    put(table, clicks(0, 1))
    change(table, ("score", "rating"), added=["score"])

    with pytest.raises(SchemaMismatchError, match=f"column 'score' {CHANGED}"):
        put(table, clicks(1, 2), rows(clicks(1, 2), SCORED))
    with pytest.raises(SchemaMismatchError, match=f"column 'score' {CHANGED}"):
        values_of(table, "score")
    assert values_of(table, "value") == all_of(1)
    put(table, clicks(1, 2))


def test_a_name_that_a_column_had_for_a_while(table):
    """It is free again when that has its own name back, for a column of the topic too."""
    put(table, clicks(0, 1))
    change(table, ("value", "score"), ("score", "value"))

    put(table, clicks(1, 2), rows(clicks(1, 2), SCORED))
    put(table, clicks(2, 3))

    assert values_of(table, "value") == all_of(3)
    assert values_of(table, "score").count(0.5) == RECORDS


@pytest.mark.parametrize("compacted", [False, True])
def test_schemas_that_were_removed(table, compacted):
    """A table that grew goes on; what was renamed is still told from what has its name."""
    put(table, clicks(0, 1))
    put(table, clicks(1, 2), rows(clicks(1, 2), SCORED))
    if compacted:
        compact(table)
    forget_schemas(table)
    put(table, clicks(2, 3), rows(clicks(2, 3), SCORED))
    put(table, clicks(3, 4))
    assert values_of(table, "value") == all_of(4)

    change(table, ("value", "score 2"))
    forget_schemas(table)
    other = SCHEMA.append(pa.field("score 2", pa.int64())).remove(0)
    with pytest.raises(SchemaMismatchError, match=f"column 'score 2' {CHANGED}"):
        put(table, clicks(4, 5), rows(clicks(4, 5), other))
    with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
        put(table, clicks(4, 5))
    with pytest.raises(SchemaMismatchError, match=f"column 'score 2' {CHANGED}"):
        values_of(table, "score 2")
    with pytest.raises(SchemaMismatchError, match=f"column 'value' {CHANGED}"):
        values_of(table, "value")


def test_a_column_of_another_type(table):
    """Files that do not fit are refused with the column's name; nothing is committed."""
    put(table, clicks(0, 1))
    position = SCHEMA.get_field_index("value")
    other = SCHEMA.set(position, pa.field("value", pa.string()))

    with pytest.raises(SchemaMismatchError, match="value"):
        put(table, clicks(1, 2), rows(clicks(1, 2), SCHEMA).cast(other))

    assert intervals(table) == [Interval(0, 1)]
    assert values(table) == all_of(1)
