"""`memq table`: what a table has, and whether its rows are what was put in."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.expressions import EqualTo

from memq.cli.main import cli
from memq.tables.check import check_table
from tests.integration.tables.lake import (
    NAME,
    RECORDS,
    catalog_options,
    clicks,
    compact,
    lake_table,
    put,
    rows,
)
from tests.integration.tables.test_iceberg import expire_all_but


@pytest.fixture
def table(tmp_path):
    """A table with three ranges, and a gap before the last one."""
    made = lake_table(tmp_path)
    for start, end in [(0, 2), (2, 3), (5, 6)]:
        put(made, clicks(start, end))
    return made


def test_a_sound_table(table):
    """All rows are counted, and nothing is found; nor after a compaction and expiry."""
    assert check_table(table) == (4 * RECORDS, [])

    compact(table)
    assert check_table(table) == (4 * RECORDS, [])
    expire_all_but(table)
    assert check_table(table) == (4 * RECORDS, [])


def lose_a_row(table):
    table.load().delete(EqualTo("value", 7))


def add_strange_rows(table):
    """Rows of other offsets, topic ids and of none at all."""
    strange = rows(clicks(4, 5)).slice(0, 1)
    table.load().append(strange)
    table.load().append(rows(clicks(0, 1, topic_id="b2")))
    nobody = {"offset": pa.int64(), "partition": pa.int32(), "topic": pa.string()}
    for name, kind in nobody.items():
        at = strange.schema.get_field_index(name)
        strange = strange.set_column(at, name, pa.nulls(1, kind))
    table.load().append(strange)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lose_a_row, ["a1 partition 0, partition 0, offset 2: 2 rows there, and 3 were put in"]),
        (
            lambda table: table.load().append(rows(clicks(2, 3))),
            ["a1 partition 0, partition 0, offset 2: 6 rows there, and 3 were put in"],
        ),
        (
            add_strange_rows,
            [
                "a1 partition -1: 1 row there of which the ledger has nothing",
                "a1 partition 0: 1 row there of offsets that the ledger does not have",
                "b2 partition 0: 3 rows there of which the ledger has nothing",
            ],
        ),
    ],
)
def test_other_rows_than_the_ledger_has(table, damage, found):
    """Rows that are gone, also where the snapshot is, there twice, or put in by nobody: the range
    is named, with how many are there and were put in.
    """
    damage(table)

    findings = sorted(check_table(table).findings)
    assert len(findings) == len(found)
    assert all(each.endswith(part) for part, each in zip(found, findings, strict=True))


def test_a_file_that_is_there_twice(table):
    """It is named."""
    path = table.load().inspect.files()["file_path"].to_pylist()[0]
    table.load().add_files([path], check_duplicate_files=False)

    assert f"file {path} is in the table twice" in check_table(table).findings


def run(tmp_path, *arguments):
    options = ",".join(f"{name}={value}" for name, value in catalog_options(tmp_path).items())
    return CliRunner().invoke(
        cli, ["table", *arguments, f"local:{NAME}", "--catalog-options", options, "-o", "json"]
    )


def test_the_commands(table, tmp_path):
    """`describe` shows the stretches of offsets, and the ranges one by one; `check` ends with 0 for
    a sound table, and with 1 and the findings for another.
    """
    stretches = json.loads(run(tmp_path, "describe").stdout)
    ranges = json.loads(run(tmp_path, "describe", "--ranges").stdout)
    assert [(each["start"], each["end"]) for each in stretches] == [(0, 3), (5, 6)]
    told = [(each["start"], each["end"], each["records"], each["job"]) for each in ranges]
    assert told == [(0, 2, 6, "test"), (2, 3, 3, "test"), (5, 6, 3, "test")]

    sound = run(tmp_path, "check")
    assert (sound.exit_code, json.loads(sound.stdout)) == (0, {"rows": 12, "findings": []})
    lose_a_row(table)
    damaged = run(tmp_path, "check")
    assert damaged.exit_code == 1
    assert len(json.loads(damaged.stdout)["findings"]) == 1
