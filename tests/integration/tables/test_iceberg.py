"""Iceberg tables with a ledger, in a real catalog: each range is in once, with its rows."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from memq.core.ranges import Interval
from memq.errors import ConfigError, CorruptDataError, RangeConflictError
from memq.tables.commit import CommitOutcome, commit_range
from memq.tables.iceberg import LEDGER, IcebergTable, ledger_of, open_table
from tests.integration.tables.lake import (
    NAME,
    SCHEMA,
    all_of,
    catalog_options,
    clicks,
    compact,
    lake_table,
    put,
    rows,
    values,
)


@pytest.fixture
def table(tmp_path):
    return lake_table(tmp_path)


def intervals(table, topic_id="a1"):
    return table.look().ledger.partition("clicks", topic_id, 0).intervals


class Between:
    """A catalog whose commits a function does, which is given how they are done."""

    def __init__(self, inner, commit):
        self.inner, self.commit = inner, commit

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def load_table(self, identifier):
        table = self.inner.load_table(identifier)
        table.catalog = self
        return table

    def commit_table(self, *arguments):
        return self.commit(lambda: self.inner.commit_table(*arguments))


def test_a_range_is_put_in_once(table):
    """The second commit of a range finds it there and writes nothing; parts of it are refused."""
    assert put(table, clicks(0, 3)).committed
    for again in (clicks(0, 3), clicks(1, 2)):
        assert put(table, again) == CommitOutcome(None, committed=False)
    with pytest.raises(RangeConflictError, match="0 to 2 are, 3 to 3 are not"):
        put(table, clicks(0, 4))
    assert values(table) == all_of(3)


def test_committers_at_a_time(tmp_path):
    """Two that commit the same ranges in other orders: all is in once."""
    wanted = [clicks(n, n + 1) for n in range(8)]
    table = lake_table(tmp_path)

    def work(order):
        own = lake_table(tmp_path)
        return sum(put(own, each).committed for each in order)

    with ThreadPoolExecutor(2) as executor:
        assert sum(executor.map(work, [wanted, wanted[::-1]])) == len(wanted)

    assert values(table) == all_of(8)
    assert intervals(table) == [Interval(0, 8)]
    files = table.load().inspect.files()["file_path"].to_pylist()
    assert len(files) == len(set(files)) == len(wanted)


@pytest.mark.parametrize("error", [CommitFailedException("no"), TimeoutError("slow")])
def test_answers_that_are_lost(table, error):
    """A commit that was taken and is said to have failed is neither repeated nor undone."""
    chance, commits = random.Random(7), []

    def lose(commit):
        commits.append(chance.random() < 0.5 and commit())
        raise error

    losing = IcebergTable(Between(table._catalog, lose), NAME)

    for n in range(8):
        assert put(losing, clicks(n, n + 1)).committed

    assert len(commits) > 8
    assert values(table) == all_of(8)  # its manifests are all there
    assert intervals(table) == [Interval(0, 8)]


# -- the table in the hands of others ------------------------------------------------------------


def expire_all_but(table, *kept):
    """Expire all snapshots but the current one and some others."""
    loaded = table.load()
    kept = {*kept, loaded.current_snapshot().snapshot_id}
    old = [each.snapshot_id for each in loaded.snapshots() if each.snapshot_id not in kept]
    loaded.maintenance.expire_snapshots().by_ids(old).commit()


def current(table):
    """The current snapshot, by its id."""
    return table.load().current_snapshot().snapshot_id


def roll_back(table, snapshot):
    table.load().manage_snapshots().rollback_to_snapshot(snapshot).commit()


def test_the_ledger_survives_compaction_and_expiry(table):
    """Snapshots of other programs do not hide it, and where none is left that has it, the table's
    properties do.
    """
    put(table, clicks(0, 3))
    compact(table)
    assert intervals(table) == [Interval(0, 3)]
    put(table, clicks(3, 4))
    compact(table)
    expire_all_but(table)
    assert LEDGER not in str(table.load().current_snapshot().summary)

    assert intervals(table) == [Interval(0, 4)]
    assert not put(table, clicks(0, 3)).committed
    put(table, clicks(4, 5))
    assert intervals(table) == [Interval(0, 5)]
    assert values(table) == all_of(5)


def test_a_rolled_back_table_takes_ranges_again(table):
    """Who rolls rows back rolls the ledger back: what is gone can be put in once more, also where
    nothing was put in before. Whose snapshot was rolled back has not put in what others did since.
    """
    table.load().append(rows(clicks(0, 1)))
    before = [current(table)]
    put(table, clicks(1, 3))
    before.append(current(table))
    first = put(table, clicks(3, 5)).written
    attempt = table.ranges()[-1].attempt

    for held in ([Interval(1, 3)], []):
        roll_back(table, before.pop())
        assert intervals(table) == held
    assert put(table, clicks(1, 3)).committed
    assert put(table, clicks(3, 5)).committed
    assert values(table) == all_of(5)
    again = commit_range(table, clicks(3, 5), lambda: first, attempt=attempt, job="test")
    assert not again.committed


def test_a_ledger_that_cannot_be_told(table):
    """Rolled back to before the last range, with all older ledgers expired: it is not guessed."""
    put(table, clicks(0, 3))
    compact(table)
    compacted = current(table)
    put(table, clicks(3, 5))
    last = current(table)
    roll_back(table, compacted)
    expire_all_but(table, last)

    with pytest.raises(CorruptDataError, match="was rolled back to before its last range"):
        put(table, clicks(3, 5))

    table.load().manage_snapshots().set_current_snapshot(last).commit()
    assert intervals(table) == [Interval(0, 5)]


def test_a_table_that_was_made_anew(tmp_path):
    """A commit upon the table that was there before is not taken by the new one."""
    table = lake_table(tmp_path)
    put(table, clicks(0, 1))
    catalog = table._catalog

    remade = []

    def make_anew(commit):
        if not remade:
            remade.append(catalog.drop_table(NAME))
            catalog.create_table(NAME, SCHEMA, location=f"file://{tmp_path}/another")
        return commit()

    assert put(IcebergTable(Between(catalog, make_anew), NAME), clicks(1, 2)).committed

    assert intervals(table) == [Interval(1, 2)]
    assert values(table) == [3, 4, 5]


def test_properties_of_another_table(table, tmp_path):
    """A table that was given the properties of the one before has its own ranges, and no others."""
    put(table, clicks(0, 3))
    properties = table.load().properties
    table._catalog.drop_table(NAME)
    folder = f"file://{tmp_path}/another"
    table._catalog.create_table(NAME, SCHEMA, location=folder, properties=properties)
    assert intervals(table) == []
    table.load().append(rows(clicks(9, 10)))
    assert intervals(table) == []

    put(table, clicks(0, 2))
    compact(table)
    expire_all_but(table)
    assert intervals(table) == [Interval(0, 2)]
    assert not put(table, clicks(0, 2)).committed


def test_a_table_whose_rows_were_replaced(table):
    """A snapshot without a parent, as of `create or replace table`, has not what was there."""
    put(table, clicks(0, 3))
    last = current(table)
    loaded = table.load()
    loaded.catalog.commit_table(loaded, (), (RemoveSnapshotRefUpdate(ref_name="main"),))
    assert intervals(table) == []
    table.load().append(rows(clicks(9, 10)))

    with pytest.raises(CorruptDataError, match=f"was replaced .* snapshot {last} has that range"):
        put(table, clicks(0, 3))

    table.load().manage_snapshots().set_current_snapshot(last).commit()
    assert intervals(table) == [Interval(0, 3)]


# -- names ---------------------------------------------------------------------------------------


def test_a_table_that_is_not_there(tmp_path):
    """Its name and what makes it are in the error."""
    table = open_table(f"local:{NAME}", catalog_options(tmp_path))

    with pytest.raises(ConfigError, match=r"no table lake\.clicks; the first range"):
        table.look()


def test_a_table_of_version_1(tmp_path):
    """It has no sequence numbers, and is refused until it is upgraded."""
    catalog = load_catalog("local", **catalog_options(tmp_path))
    catalog.create_namespace("lake")
    old = catalog.create_table(NAME, SCHEMA, properties={"format-version": "1"})

    with pytest.raises(ConfigError, match="upgrade it to 2"):
        ledger_of(old.metadata)

    with old.transaction() as upgrade:
        upgrade.upgrade_table_version(2)
    assert put(IcebergTable(catalog, NAME), clicks(0, 1)).committed
