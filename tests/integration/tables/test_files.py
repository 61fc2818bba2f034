"""Which files readers may have that go by the names of columns: none that would mislead them."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memq.errors import ConfigError
from memq.tables.files import plain_files
from tests.advice import follows
from tests.integration.tables.lake import (
    RECORDS,
    SCHEMA,
    all_of,
    clicks,
    compact,
    lake_table,
    mark_deleted,
    put,
    rows,
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


def with_column(tmp_path, name):
    """A table with another column, which the first of its files does not have."""
    kind = pa.struct([(name, pa.float64())])
    schema = SCHEMA.append(pa.field(name, pa.float64())).append(pa.field("inner", kind))
    lake = lake_table(tmp_path)
    put(lake, clicks(0, 1))
    inner = pa.array([{name: 1.5}] * RECORDS, kind)
    put(lake, clicks(1, 2), rows(clicks(1, 2), schema.remove(6)).append_column("inner", inner))
    return lake


@follows("leave this column out, or use memq.scan, which knows it by its id")
@pytest.mark.parametrize("name", ["user-id", "user id", "user.id", "2nd"])
def test_names_that_other_writers_spell_otherwise(tmp_path, name):
    """A file that was written anew has the values under another name, and is not read without."""
    table = with_column(tmp_path, name)
    for column in (name, "inner"):
        assert len(files(table, (column, "offset"))) == 2

    compact(table)

    for column in (name, "inner"):
        with pytest.raises(ConfigError, match=f"column '{name}' of table .* is called '"):
            files(table, (column, "offset"))
    assert len(files(table)) == 1
    found = table.matching(table.load(), EQUAL, [name, "inner"])
    by_id = [row for batch in found for row in batch.to_pylist()]
    assert by_id.count({name: 0.5, "inner": {name: 1.5}}) == RECORDS


@pytest.mark.parametrize("name", ["größe", "_2nd", "user_id"])
def test_names_that_all_writers_spell_alike(tmp_path, name):
    """A compaction does not keep anybody from the files."""
    table = with_column(tmp_path, name)
    compact(table)

    (path,) = files(table, (name, "inner", "offset"))

    found = pq.read_table(path.removeprefix("file://"))
    assert sorted(found[name].to_pylist(), key=str) == [0.5] * RECORDS + [None] * RECORDS


def test_a_table_without_rows(tmp_path):
    """There are no files, and nothing is wrong."""
    assert files(lake_table(tmp_path)) == []
