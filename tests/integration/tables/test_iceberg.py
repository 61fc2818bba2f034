"""Iceberg tables with a ledger, in a real catalog: each range is in once, with its rows."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import RemoveSchemasUpdate, RemoveSnapshotRefUpdate
from pyiceberg.types import DoubleType, LongType
from sqlalchemy import event

from memq.core.ranges import Interval
from memq.errors import (
    ConfigError,
    CorruptDataError,
    RangeConflictError,
    SchemaMismatchError,
    StorageError,
)
from memq.tables.commit import commit_range
from memq.tables.iceberg import LEDGER, IcebergTable, ledger_of, lineage, open_table
from tests.advice import follows
from tests.integration.tables.lake import (
    NAME,
    RECORDS,
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


def intervals(table, incarnation="a1"):
    return table.look().ledger.partition("clicks", incarnation, 0).intervals


class LosesAnswers:
    """A catalog that takes each commit, or one in two, and says that it did not, or nothing."""

    def __init__(self, inner, error, seed=7):
        self.inner, self.error, self.random = inner, error, random.Random(seed)
        self.commits = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def load_table(self, identifier):
        table = self.inner.load_table(identifier)
        table.catalog = self
        return table

    def commit_table(self, *arguments):
        self.commits += 1
        if self.random.random() < 0.5:
            self.inner.commit_table(*arguments)
        raise self.error


def test_a_range_is_put_in_once(table):
    """The second commit of a range finds it there and writes nothing; parts of it are refused."""
    first = put(table, clicks(0, 3))
    again = put(table, clicks(0, 3))
    part = put(table, clicks(1, 2))

    assert first.committed
    assert (again.committed, again.written) == (False, None)
    assert (part.committed, part.written) == (False, None)
    with pytest.raises(RangeConflictError, match="0 to 2 are, 3 to 3 are not"):
        put(table, clicks(0, 4))
    assert values(table) == all_of(3)


def test_ranges_out_of_order(table):
    """They become one interval, and the snapshots name each with what is in it."""
    for start, end in [(4, 6), (0, 1), (1, 4)]:
        put(table, clicks(start, end))

    assert intervals(table) == [Interval(0, 6)]
    assert values(table) == all_of(6)
    found = table.ranges()
    assert [(each.range.start, each.range.records) for each in found] == [(4, 6), (0, 3), (1, 9)]
    assert {each.job for each in found} == {"test"}


def test_a_range_without_rows(table):
    """It is in the ledger, and adds no file."""
    assert put(table, clicks(0, 2), rows(clicks(0, 0))).committed
    put(table, clicks(2, 3))

    assert intervals(table) == [Interval(0, 3)]


def test_another_incarnation(table):
    """The same offsets of another incarnation are others."""
    put(table, clicks(0, 2))
    put(table, clicks(0, 2, incarnation="b2"))

    assert intervals(table) == intervals(table, "b2") == [Interval(0, 2)]
    assert Counter(values(table)) == Counter(all_of(2) * 2)


def test_committers_at_a_time(tmp_path):
    """Two that commit the same ranges in other orders, and one that compacts: all is in once."""
    wanted = [clicks(n, n + 1) for n in range(12)]
    failures = []

    def work(order, count):
        table = lake_table(tmp_path)
        try:
            for each in order:
                count.append(put(table, each).committed)
        except Exception as exc:  # noqa: BLE001 - shown below
            failures.append(exc)

    lake_table(tmp_path)
    one, two = [], []
    threads = [
        threading.Thread(target=work, args=(wanted, one)),
        threading.Thread(target=work, args=(wanted[::-1], two)),
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert not failures
    assert sum(one) + sum(two) == len(wanted)
    table = lake_table(tmp_path)
    assert values(table) == all_of(12)
    assert intervals(table) == [Interval(0, 12)]
    files = table.load().inspect.files()["file_path"].to_pylist()
    assert len(files) == len(set(files)) == len(wanted)


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.struct([("n", pa.time32("ms"))])])
def test_a_type_that_iceberg_lacks(tmp_path, kind):
    """It is named, and no other try will do."""
    with pytest.raises(SchemaMismatchError, match="has an unsupported type") as refused:
        lake_table(tmp_path, SCHEMA.append(pa.field("n", kind)))
    assert not refused.value.retriable


@pytest.mark.parametrize("error", [CommitFailedException("no"), TimeoutError("slow")])
def test_answers_that_are_lost(table, error):
    """A commit that was taken and is said to have failed is neither repeated nor undone."""
    lost = LosesAnswers(load_catalog("local", **_options(table)), error)
    losing = IcebergTable(lost, NAME)

    for n in range(8):
        assert put(losing, clicks(n, n + 1)).committed

    assert lost.commits > 8
    assert values(table) == all_of(8)  # its manifests are all there
    assert intervals(table) == [Interval(0, 8)]


def _options(table):
    catalog = table._catalog
    return {name: catalog.properties[name] for name in ("type", "uri", "warehouse")}


# -- the table in the hands of others ------------------------------------------------------------


def test_the_ledger_survives_a_compaction(table):
    """Snapshots of other programs do not hide it."""
    put(table, clicks(0, 3))
    compact(table)
    put(table, clicks(3, 4))
    compact(table)

    assert intervals(table) == [Interval(0, 4)]
    assert not put(table, clicks(0, 3)).committed
    assert values(table) == all_of(4)


def expire_all_but_the_last(table):
    loaded = table.load()
    current = loaded.current_snapshot().snapshot_id
    old = [each.snapshot_id for each in loaded.snapshots() if each.snapshot_id != current]
    loaded.maintenance.expire_snapshots().by_ids(old).commit()


def test_the_ledger_survives_expiry(table):
    """The table's properties have it where no snapshot is left that does."""
    put(table, clicks(0, 3))
    compact(table)
    expire_all_but_the_last(table)
    assert LEDGER not in str(table.load().current_snapshot().summary)

    assert intervals(table) == [Interval(0, 3)]
    put(table, clicks(3, 5))
    assert intervals(table) == [Interval(0, 5)]
    assert values(table) == all_of(5)


def test_a_rolled_back_table_takes_ranges_again(table):
    """Who rolls rows back rolls the ledger back: what is gone can be put in once more."""
    put(table, clicks(0, 3))
    before = table.load().current_snapshot().snapshot_id
    put(table, clicks(3, 5))
    table.load().manage_snapshots().rollback_to_snapshot(before).commit()

    assert intervals(table) == [Interval(0, 3)]
    assert put(table, clicks(3, 5)).committed
    assert values(table) == all_of(5)


def test_a_table_with_rows_of_others(table):
    """Rolled back to before the first range, it has none; that is known."""
    table.load().append(rows(clicks(0, 1), SCHEMA))
    before = table.load().current_snapshot().snapshot_id
    put(table, clicks(1, 3))
    table.load().manage_snapshots().rollback_to_snapshot(before).commit()

    assert intervals(table) == []
    put(table, clicks(1, 3))
    assert values(table) == all_of(3)


@follows("Roll it forward, or make a new table from the topic")
def test_a_ledger_that_cannot_be_told(table):
    """Rolled back to before the last range, with all older ledgers expired: it is not guessed."""
    put(table, clicks(0, 3))
    compact(table)
    compacted = table.load().current_snapshot().snapshot_id
    put(table, clicks(3, 5))
    last = table.load().current_snapshot().snapshot_id
    table.load().manage_snapshots().rollback_to_snapshot(compacted).commit()
    loaded = table.load()
    parents = [each.snapshot_id for each in loaded.snapshots()]
    old = [each for each in parents if each not in (compacted, last)]
    loaded.maintenance.expire_snapshots().by_ids(old).commit()

    with pytest.raises(CorruptDataError, match="was rolled back to before its last range"):
        put(table, clicks(3, 5))

    table.load().manage_snapshots().set_current_snapshot(last).commit()
    assert intervals(table) == [Interval(0, 5)]


def test_a_table_that_was_made_anew(tmp_path):
    """A commit upon the table that was there before is not taken by the new one."""
    table = lake_table(tmp_path)
    put(table, clicks(0, 1))
    catalog = table._catalog

    class MadeAnew:
        def __getattr__(self, name):
            return getattr(catalog, name)

        def load_table(self, identifier):
            loaded = catalog.load_table(identifier)
            loaded.catalog = self
            return loaded

        def commit_table(self, *arguments):
            if not remade:
                remade.append(True)
                catalog.drop_table(NAME)
                catalog.create_table(NAME, SCHEMA, location=f"file://{tmp_path}/another")
            return catalog.commit_table(*arguments)

    remade = []
    assert put(IcebergTable(MadeAnew(), NAME), clicks(1, 2)).committed

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
    expire_all_but_the_last(table)
    assert intervals(table) == [Interval(0, 2)]
    assert not put(table, clicks(0, 2)).committed


def test_a_table_whose_rows_were_replaced(table):
    """A snapshot without a parent, as of `create or replace table`, has not what was there."""
    put(table, clicks(0, 3))
    last = table.load().current_snapshot().snapshot_id
    loaded = table.load()
    loaded.catalog.commit_table(loaded, (), (RemoveSnapshotRefUpdate(ref_name="main"),))
    assert intervals(table) == []
    table.load().append(rows(clicks(9, 10)))

    with pytest.raises(CorruptDataError, match=f"was replaced .* snapshot {last} has that range"):
        put(table, clicks(0, 3))

    table.load().manage_snapshots().set_current_snapshot(last).commit()
    assert intervals(table) == [Interval(0, 3)]


def kept_by_a_tag(table, change):
    """The snapshot of a range, and the last one; those between have expired, and so has the tag."""
    put(table, clicks(0, 3))
    kept = table.load().current_snapshot().snapshot_id
    table.load().manage_snapshots().create_tag(kept, "kept").commit()
    compact(table)
    change(table)
    old = {each.snapshot_id for each in table.load().snapshots()}
    current = table.load().current_snapshot().snapshot_id
    table.load().maintenance.expire_snapshots().by_ids([*(old - {kept, current})]).commit()
    table.load().manage_snapshots().remove_tag("kept").commit()
    return kept


def test_a_tag_that_is_removed_after_compactions(table):
    """With as many rows as the snapshot of the last range had, the table was not replaced."""
    kept_by_a_tag(table, compact)

    assert intervals(table) == [Interval(0, 3)]
    assert not put(table, clicks(0, 3)).committed


@follows("make a new table from the topic; if none were, expire that snapshot")
def test_a_tag_that_is_removed_after_rows_were_deleted(table):
    """It looks as if the table were another one; whoever knows better says so by expiring it."""
    kept = kept_by_a_tag(table, lambda table: table.load().delete("value = 2"))
    with pytest.raises(CorruptDataError, match=f"snapshot {kept} has that range"):
        put(table, clicks(3, 4))

    table.load().maintenance.expire_snapshots().by_ids([kept]).commit()

    put(table, clicks(3, 4))
    assert intervals(table) == [Interval(0, 4)]


def test_thousands_of_snapshots_are_looked_at_once(table):
    """A look costs a step for each of them, and not one for each pair."""
    put(table, clicks(0, 1))
    metadata = table.load().metadata
    (first,) = metadata.snapshots
    later = [
        first.model_copy(update={"snapshot_id": n, "parent_snapshot_id": n - 1})
        for n in range(2, 5_000)
    ]
    first = first.model_copy(update={"snapshot_id": 1})
    looked = Counter()

    class Counted(list):
        def __iter__(self):
            looked["times"] += 1
            return super().__iter__()

    many = metadata.model_copy(
        update={"snapshots": Counted([first, *later]), "current_snapshot_id": 4_999}
    )
    assert len([*lineage(many)]) == 4_999
    assert looked["times"] < 5


def test_a_snapshot_that_is_kept_by_a_tag(table):
    """That those after it have expired does not make it look as if the table were another one."""
    put(table, clicks(0, 3))
    kept = table.load().current_snapshot().snapshot_id
    compact(table)
    gone = table.load().current_snapshot().snapshot_id
    compact(table)
    table.load().manage_snapshots().create_tag(kept, "kept").commit()
    old = {each.snapshot_id for each in table.load().snapshots()}
    current = table.load().current_snapshot().snapshot_id
    assert gone in old
    table.load().maintenance.expire_snapshots().by_ids([*(old - {kept, current})]).commit()

    assert intervals(table) == [Interval(0, 3)]


def test_an_attempt_that_was_rolled_back(table):
    """Whose snapshot was rolled back has not put in what another one put in after that."""
    put(table, clicks(0, 1))
    before = table.load().current_snapshot().snapshot_id
    first = put(table, clicks(1, 2)).written
    attempt = table.ranges()[-1].attempt
    table.load().manage_snapshots().rollback_to_snapshot(before).commit()
    put(table, clicks(1, 2))

    again = commit_range(table, clicks(1, 2), lambda: first, attempt=attempt, job="test")
    assert not again.committed


# -- columns -------------------------------------------------------------------------------------


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


# -- the first range of two ----------------------------------------------------------------------


@contextmanager
def another_makes_the_tables_first(make):
    """Another process makes a catalog's tables once this one has seen that there are none."""
    done = []

    def before_create(*_, **__):
        if not done:
            done.append(True)
            make()

    tables = SqlCatalogBaseTable.metadata
    event.listen(tables, "before_create", before_create)
    try:
        yield
    finally:
        event.remove(tables, "before_create", before_create)
    assert done


def test_two_open_a_new_catalog_at_the_same_time(tmp_path):
    """Whoever comes second opens what the first one has made."""
    options = catalog_options(tmp_path)
    with another_makes_the_tables_first(lambda: load_catalog("local", **options)):
        table = open_table(f"local:{NAME}", options)
    table.create(SCHEMA)


def test_two_make_a_namespace_at_the_same_time(tmp_path, monkeypatch):
    """Whoever comes second takes the one there is, and its range goes into the table."""
    options = catalog_options(tmp_path)
    catalog, other = (load_catalog("local", **options) for _ in range(2))
    look = catalog.namespace_exists

    def look_and_be_late(name):
        found = look(name)
        if not found:
            other.create_namespace(name)
        return found

    monkeypatch.setattr(catalog, "namespace_exists", look_and_be_late)
    table = IcebergTable(catalog, NAME)
    table.create(SCHEMA)
    assert put(table, clicks(0, 1)).committed


def test_a_namespace_that_cannot_be_made(tmp_path, monkeypatch):
    """What a catalog refuses is an error that names the table and gives its words."""
    catalog = load_catalog("local", **catalog_options(tmp_path))

    def refuse(*_):
        raise PermissionError("lake is not yours")

    monkeypatch.setattr(catalog, "create_namespace", refuse)
    with pytest.raises(StorageError, match=r"cannot make table lake\.clicks: .*not yours"):
        IcebergTable(catalog, NAME).create(SCHEMA)


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clicks", "a b.clicks", "prod:", "prod:clicks", ".clicks"])
def test_names_that_are_none(name):
    """A name without a namespace is refused, with an example."""
    with pytest.raises(ConfigError, match=r"must be like lake\.clicks"):
        open_table(name)


def test_a_catalog_that_nobody_described(tmp_path, monkeypatch):
    """The error says where catalogs are described; a variable does."""
    with pytest.raises(ConfigError, match="catalog 'nowhere' of table"):
        open_table("nowhere:lake.clicks")

    for name, value in catalog_options(tmp_path).items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__NOWHERE__{name.upper()}", value)
    from pyiceberg import catalog

    monkeypatch.setattr(catalog, "_ENV_CONFIG", catalog.Config())  # it is read once a process
    open_table("nowhere:lake.clicks").create(SCHEMA)


def test_a_table_that_is_not_there(tmp_path):
    """Its name and what makes it are in the error."""
    table = open_table(f"local:{NAME}", catalog_options(tmp_path))

    with pytest.raises(ConfigError, match=r"no table lake\.clicks; the first range"):
        table.look()


def test_a_catalog_that_does_not_answer(tmp_path):
    """It is an error that may go away."""
    options = {"type": "rest", "uri": "http://127.0.0.1:9"}

    with pytest.raises(StorageError) as raised:
        open_table(f"local:{NAME}", options)
    assert raised.value.retriable


@follows("the table at … is of format version …: upgrade it to …")
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
