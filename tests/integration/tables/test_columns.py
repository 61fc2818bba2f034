"""Columns of a table that others have changed, and files that would mislead who goes by names:
nothing is put in or read by the name of another one.
"""

from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, RemoveSchemasUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import LongType

from memq.errors import ConfigError, SchemaMismatchError
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

EQUAL = {"topic": "clicks", "memq_topic_id": "a1"}
SCORED = SCHEMA.append(pa.field("score", pa.float64()))


@pytest.fixture
def table(tmp_path):
    """A table with a range that has a score."""
    made = lake_table(tmp_path, SCORED)
    put(made, clicks(0, 1), rows(clicks(0, 1), SCORED))
    return made


def rename(table, *names):
    """Give a column one name after the other."""
    for old, new in pairwise(names):
        table.load().update_schema().rename_column(old, new).commit()


def drop(table, name):
    table.load().update_schema().delete_column(name).commit()


def add(table, name, kind=LongType):
    table.load().update_schema().add_column(name, kind()).commit()


def forget_schemas(table):
    """Remove all schemas from before, as some programs do when snapshots expire."""
    loaded = table.load()
    ids = [each.schema_id for each in loaded.metadata.schemas]
    ids.remove(loaded.metadata.current_schema_id)
    loaded.catalog.commit_table(loaded, (), (RemoveSchemasUpdate(schema_ids=ids),))


def set_default(table, name):
    """Give a column a default value, which Iceberg has from version 3 on, and pyiceberg reads."""
    loaded = table.load()
    schema = loaded.schema()
    fields = [
        each.model_copy(update={"initial_default": 7} if each.name == name else {})
        for each in schema.fields
    ]
    changed = Schema(*fields, schema_id=schema.schema_id + 1)
    updates = (AddSchemaUpdate(schema=changed), SetCurrentSchemaUpdate(schema_id=-1))
    loaded.catalog.commit_table(loaded, (), updates)


def read(table, *columns):
    """Values of the first of some columns, as they are read for a topic that has them."""
    found = table.matching(table.load(), EQUAL, [*columns, "partition", "offset"])
    return [value for batch in found for value in batch[columns[0]].to_pylist()]


def check_refused(table, column, says, schema=SCORED):
    """Neither is a range put in, nor the column read, by ids or from files; others are read."""
    wanted = clicks(7, 8)
    for refused in (
        lambda: put(table, wanted, rows(wanted, schema)),
        lambda: read(table, column),
        lambda: table.plain_files(table.load(), EQUAL, [column, "offset"]),
    ):
        with pytest.raises(SchemaMismatchError, match=rf"column '({column}|score)' .* {says}"):
            refused()
    assert {*read(table, "offset")} == {0}
    assert table.plain_files(table.load(), EQUAL, ["offset"])


def test_columns_that_come_later(table):
    """A topic that grew a column grows the table; a range from before can still follow, and what
    the owner adds is left alone, also where old schemas are removed.
    """
    wider = SCORED.append(pa.field("late", pa.float64()))
    add(table, "own")
    put(table, clicks(2, 3), rows(clicks(2, 3), wider))
    compact(table)
    forget_schemas(table)
    put(table, clicks(1, 2), rows(clicks(1, 2), SCHEMA))

    found = table.load().scan().to_arrow().sort_by("value")
    assert found["late"].to_pylist() == [None] * 2 * RECORDS + [0.5] * RECORDS
    assert sorted(read(table, "value")) == values(table) == all_of(3)
    assert read(table, "score").count(0.5) == 2 * RECORDS


CHANGES = {
    "renamed": (lambda table: rename(table, "value", "v"), "renamed.* 'v', 'value'"),
    "renamed back": (lambda table: rename(table, "value", "v", "value"), "renamed.* 'v', 'value'"),
    "swapped": (
        lambda table: (
            rename(table, "value", "old"),
            rename(table, "score", "value"),
            rename(table, "old", "score"),
        ),
        "renamed.* 'old', 'score', 'value'",
    ),
    "dropped": (lambda table: drop(table, "value"), "was dropped"),
    "made anew": (lambda table: (drop(table, "value"), add(table, "value")), "was dropped"),
    "name taken": (
        lambda table: (drop(table, "value"), rename(table, "score", "value")),
        "was dropped",
    ),
    "forgotten by schemas": (  # the mapping of names for files without ids remembers it
        lambda table: (rename(table, "value", "v", "value"), forget_schemas(table)),
        "renamed.* 'v', 'value'",
    ),
    "given a default": (lambda table: set_default(table, "value"), "default value"),
}


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_column_that_was_changed(table, kind, compacted):
    """Nothing comes under a name that another column has had, and nothing is read from there; nor
    where files lack a value that the table has for them.
    """
    if compacted:
        compact(table)
    change, says = CHANGES[kind]
    change(table)

    check_refused(table, "value", says)


INNER = pa.struct([("name", pa.string()), ("age", pa.int64())])
NESTED = {
    "struct": (INNER, "name", {"name": "x", "age": 1}),
    "map": (pa.map_(pa.string(), INNER), "value.name", [("k", {"name": "x", "age": 1})]),
}


@pytest.mark.parametrize("change", ["rename", "drop"])
@pytest.mark.parametrize("kind", NESTED)
def test_a_field_that_was_changed(tmp_path, kind, change):
    """It is refused with its column, and not left out; others that are added beside it are not."""
    kind, path, value = NESTED[kind]
    where = ("who", *path.split("."))

    def data(wanted):
        return rows(wanted).append_column("who", pa.array([value] * RECORDS, kind))

    table = lake_table(tmp_path, SCHEMA.append(pa.field("who", kind)))
    put(table, clicks(0, 1), data(clicks(0, 1)))
    add(table, (*where[:-1], "own"))
    put(table, clicks(1, 2), data(clicks(1, 2)))
    if change == "rename":
        table.load().update_schema().rename_column(where, "full").commit()
    else:
        drop(table, where)

    says = rf"column 'who\.{path[:-4]}(name|full)' .* was {change[:4]}"
    with pytest.raises(SchemaMismatchError, match=says):
        put(table, clicks(2, 3), data(clicks(2, 3)))
    with pytest.raises(SchemaMismatchError, match=says):
        read(table, "who")
    assert sorted(read(table, "value")) == all_of(2)


def test_a_column_of_another_type(table):
    """Files that do not fit are refused with the column's name; nothing is committed."""
    position = SCORED.get_field_index("value")
    other = SCORED.set(position, pa.field("value", pa.string()))

    with pytest.raises(SchemaMismatchError, match="value"):
        put(table, clicks(1, 2), rows(clicks(1, 2), SCORED).cast(other))

    assert values(table) == all_of(1)


# -- files ----------------------------------------------------------------------------------


def test_rows_that_are_marked_as_deleted(table, monkeypatch):
    """Files in which some rows do not count are refused."""
    base = table.load()
    (task,) = base.scan().plan_files()
    task.delete_files.add(task.file)
    monkeypatch.setattr(base, "scan", lambda _: SimpleNamespace(plan_files=lambda: [task]))

    with pytest.raises(ConfigError, match=r"such as file:.*: rewrite these files"):
        table.plain_files(base, EQUAL, ["value"])
