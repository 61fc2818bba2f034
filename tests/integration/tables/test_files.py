"""Which files readers may have that go by the names of columns: none that would mislead them."""

from __future__ import annotations

import duckdb
import pytest
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.types import IntegerType

from memq.errors import ConfigError
from memq.tables.files import plain_files
from tests.advice import follows
from tests.integration.tables.lake import (
    all_of,
    clicks,
    compact,
    lake_table,
    mark_deleted,
    put,
    values,
)

EQUAL = {"topic": "clicks", "memq_incarnation": "a1"}


@pytest.fixture
def table(tmp_path):
    lake = lake_table(tmp_path)
    put(lake, clicks(0, 2))
    return lake


def files(table, columns=("value", "offset")):
    return plain_files(table, table.load(), EQUAL, columns)


def by_duckdb(table):
    found = duckdb.read_parquet(files(table)).filter("memq_incarnation = 'a1'")
    return sorted(value for (value,) in found.select("value").fetchall())


def test_files_of_any_writer(table):
    """All rows, and no other ones: as ranges were put in, and after a compaction."""
    put(table, clicks(2, 4))
    assert by_duckdb(table) == all_of(4)
    compact(table)
    put(table, clicks(0, 2, incarnation="b2"))
    assert by_duckdb(table) == all_of(4)
    assert len(files(table)) == 1  # the one of another incarnation is not among them


@follows("rewrite these files, or use memq.scan, which leaves such rows out")
def test_rows_that_are_marked_as_deleted(table):
    """Files in which some rows do not count are refused, until they are rewritten."""
    mark_deleted(table, 1)
    left = [value for value in all_of(2) if value != 1]
    assert values(table) == left

    with pytest.raises(ConfigError, match="in 1 file such as file:"):
        files(table)

    compact(table)
    assert by_duckdb(table) == left


@follows("leave the column out, or use memq.scan, which goes by ids")
@pytest.mark.parametrize("history", ["kept", "forgotten"])
def test_a_column_that_was_renamed(table, history):
    """Its values stand under the old name, whatever the table still knows of that."""
    with table.load().update_schema() as update:
        update.rename_column("value", "number")
    if history == "forgotten":
        loaded = table.load()
        loaded.catalog.commit_table(loaded, (), (RemoveSchemasUpdate(schema_ids=[0]),))
        assert len(table.load().metadata.schemas) == 1

    with pytest.raises(ConfigError, match="column 'number' of table"):
        files(table, ("number",))
    assert files(table, ("offset",))


def test_a_name_that_was_used_before(table):
    """A column that is named like one that was dropped does not take over its values."""
    with table.load().update_schema() as update:
        update.delete_column("value")
    with table.load().update_schema() as update:
        update.add_column("value", IntegerType())

    with pytest.raises(ConfigError, match="column 'value' of table"):
        files(table)
    assert files(table, ("offset",))


def test_a_table_without_rows(tmp_path):
    """There are no files, and nothing is wrong."""
    assert files(lake_table(tmp_path)) == []
