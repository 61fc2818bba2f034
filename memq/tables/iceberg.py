"""Apache Iceberg tables that carry their ledger, through any catalog that pyiceberg knows.

Theory of operation
-------------------
Each commit adds one snapshot, by an append, and stands under the condition that the table's main
branch is still at the snapshot that was looked at. So it is sent to the catalog by hand, once: a
transaction would try again upon whatever there is by then, which is wrong for a ledger. And it
would clean up after a commit that was refused, while a catalog may answer so for one that it took.

The ledger stands in the summary of the snapshot, so that it goes with the rows: to roll the
table back rolls the ledger back. The ledger of a table is that of the nearest of the snapshots
from which its current one comes; those between are of other programs, such as a compaction. Where
that snapshot has expired, the table's property `memq.ledger` has a copy of the last one; it is
taken unless the table was rolled back beyond it, or replaced, or the copy is another table's, whose
properties this one was given. (One case cannot be seen: a table that was rolled back or replaced,
then changed by others, and then lost all that was before to expiry. `memq table check` counts the
rows.)

Files that are put in have no ids of columns: they fit by name. So they are refused where one of
their columns, or a field of a struct, was renamed, dropped or recreated (`memq.tables.columns`).

Each snapshot says as well which range it added (`memq.range`) and who did (`memq.attempt`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.named_values import NO_VALUES, parse_catalog_options
from memq.errors import (
    ConfigError,
    CorruptDataError,
    MemqError,
    SchemaMismatchError,
    StorageError,
    TableConflictError,
)
from memq.tables.commit import Commit, TableState
from memq.tables.ledger import EMPTY, TopicRange, decode_ledger, encode_ledger

try:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError, ValidationError
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
    from pyiceberg.manifest import FileFormat
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.update import AssertTableUUID

    from memq.tables.columns import check_plain, check_unchanged
except ModuleNotFoundError as exc:
    raise ConfigError(
        f"tables in Iceberg need pyiceberg: pip install 'memq[iceberg]' ({exc})"
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from memq.core.named_values import GivenValues
    from memq.core.ranges import Interval
    from memq.tables.ledger import Ledger

log = logging.getLogger("memq.tables")

LEDGER = "memq.ledger"
LEDGER_BEGAN, LEDGER_ENDED = "memq.ledger-began", "memq.ledger-ended"
"""Properties of the table: sequence numbers of the first and the last snapshot with a ledger."""
LEDGER_TABLE = "memq.ledger-table"
"""Property of the table: its own UUID, which says whose ledger `memq.ledger` is."""
RANGE = "memq.range"
ATTEMPT = "memq.attempt"
JOB = "memq.job"

FORMAT_VERSION = 2  # the first with sequence numbers, which tell what came after what
KEEP_PREVIOUS_METADATA = 100  # else each commit leaves one more file for ever

_IDENTIFIER = re.compile(r"[^.\s]+(\.[^.\s]+)+")
_encoder = msgspec.json.Encoder()


class CommittedRange(NamedTuple):
    """A range that a snapshot has added.

    Attributes:
        snapshot_id: of the snapshot.
        committed_ms: when, milliseconds since 1970 UTC.
        range: with what is in it.
        job: that did.
        attempt: name of who did.
    """

    snapshot_id: int
    committed_ms: int
    range: TopicRange
    job: str
    attempt: str


class IcebergTable:
    """A table with a ledger, which need not exist yet.

    Args:
        catalog: that has it.
        identifier: its namespace and name, with a dot.
    """

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self._catalog = catalog
        self.identifier = identifier

    def __repr__(self) -> str:
        return f"<IcebergTable {self._catalog.name} {self.identifier}>"

    def create(self, schema: pa.Schema) -> None:
        """Make the table if there is none.

        Args:
            schema: of its rows.

        Raises:
            SchemaMismatchError: Iceberg has no such type as a column has.
            StorageError: the catalog or the storage failed.
        """
        properties = {
            "format-version": str(FORMAT_VERSION),
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": str(KEEP_PREVIOUS_METADATA),
            "commit.manifest-merge.enabled": "true",  # else each commit adds one more to read
        }
        namespace = self.identifier.rpartition(".")[0]
        with _explained("make", self.identifier), _types_checked(self.identifier):
            if not self._catalog.table_exists(self.identifier):
                self._catalog.create_namespace_if_not_exists(namespace)
                self._catalog.create_table_if_not_exists(
                    self.identifier, schema, properties=properties
                )

    @property
    def location(self) -> str:
        """Where its files lie, without a slash at the end."""
        return str(self.load().location()).rstrip("/")

    @contextmanager
    def new_file(self, path: str) -> Iterator[Any]:
        """Open a file to write, of a name that nothing has.

        Raises:
            StorageError: it cannot be written.
        """
        with (
            _explained("write", self.identifier),
            self.load().io.new_output(path).create() as file,
        ):
            yield file

    def load(self) -> Table:
        """Load the table as it is now.

        Raises:
            ConfigError: there is none.
            StorageError: the catalog or the storage failed.
        """
        with _explained("read", self.identifier):
            return self._catalog.load_table(self.identifier)

    # -- as a table with a ledger -----------------------------------------------------------

    def look(self) -> TableState[Table]:
        """Load the table as it is now.

        Raises:
            ConfigError: there is none, or it is of a version that has no sequence numbers.
            CorruptDataError: its ledger cannot be told.
            StorageError: the catalog or the storage failed.
        """
        table = self.load()
        attempts = (_of(snapshot).get(ATTEMPT) for snapshot in lineage(table.metadata))
        return TableState(
            ledger_of(table.metadata), table, frozenset(each for each in attempts if each)
        )

    def commit(self, base: Table, commit: Commit) -> None:
        """Add the files of a range, and the ledger with it, if the table is still at `base`.

        Columns that the files have and the table has not are added to it.

        Raises:
            TableConflictError: it was not taken, or whether it was is not known.
            SchemaMismatchError: the files cannot be in this table.
        """
        prepared = self._prepared(base, commit)
        updates, conditions = prepared._updates, prepared._requirements  # noqa: SLF001 - see above
        conditions += (AssertTableUUID(uuid=base.metadata.table_uuid),)
        try:
            base._do_commit(updates, conditions)  # noqa: SLF001 - which also deletes old metadata
        except Exception as exc:  # each catalog and storage has errors of its own
            raise TableConflictError(
                f"table {self.identifier} did not confirm a commit: {_in_words(exc)}"
            ) from exc

    def _prepared(self, base: Table, commit: Commit) -> Transaction:
        """Prepare a commit up to its sending."""
        ledger = encode_ledger(commit.ledger)
        summary = {
            LEDGER: ledger,
            RANGE: _encoder.encode(commit.range).decode(),
            ATTEMPT: commit.attempt,
            JOB: commit.job,
        }
        transaction = base.transaction()
        try:
            transaction.set_properties(_copy_of(ledger, base))
            if commit.files:
                _grow(transaction, base, commit.files[0])
                transaction.add_files(list(commit.files), summary, check_duplicate_files=False)
            else:
                with transaction.update_snapshot(summary).fast_append():
                    log.debug("%s has no rows: a snapshot that adds none", commit.range)
        except MemqError:
            raise
        except (ValueError, TypeError, ValidationError) as exc:
            raise SchemaMismatchError(
                f"the files of {commit.range} do not fit table {self.identifier}: {exc}"
            ) from exc
        except Exception as exc:  # each storage has errors of its own
            raise StorageError(
                f"cannot prepare the commit of {commit.range}: {_in_words(exc)}"
            ) from exc
        return transaction

    def expire(self, before: datetime) -> None:
        """Forget older snapshots, but for the current one and those of tags and branches.

        The ledger stays: the current snapshot or the table's properties have it.

        Raises:
            StorageError: the catalog or the storage failed, or others were faster.
        """
        with _explained("expire snapshots of", self.identifier):
            self.load().maintenance.expire_snapshots().older_than(before).commit()

    # -- to look into -----------------------------------------------------------------------

    def ranges(self, base: Table | None = None) -> list[CommittedRange]:
        """Return the ranges that the snapshots say they added, those that have not expired, oldest
        first.

        Args:
            base: the table as it was; None for now.

        Raises:
            ConfigError: there is no such table.
            CorruptDataError: one of them cannot be told.
            StorageError: the catalog or the storage failed.
        """
        loaded = self.load() if base is None else base
        added = [_committed(each) for each in lineage(loaded.metadata) if RANGE in _of(each)]
        return added[::-1]

    def matching(
        self,
        base: Table,
        equal: Mapping[str, str | int],
        columns: Sequence[str],
        offsets: Interval | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Some columns of the rows in which others have given values, a piece at a time.

        Args:
            base: the table as it was.
            equal: the value by column.
            columns: that are wanted, as far as the table has them.
            offsets: of the rows; None for all.

        Raises:
            SchemaMismatchError: one of them was renamed, dropped or recreated.
            StorageError: the catalog or the storage failed.
        """
        if base.current_snapshot() is None:
            return
        check_unchanged(base, {*columns, *equal, "offset"})
        has = {each.name for each in base.schema().fields}
        rows = _where(equal, offsets)
        with _explained("read", self.identifier):
            wanted = tuple(name for name in columns if name in has)
            yield from base.scan(rows, selected_fields=wanted).to_arrow_batch_reader()

    def plain_files(
        self, base: Table, equal: Mapping[str, str], columns: Collection[str]
    ) -> list[str]:
        """Return the files that may have rows in which columns have given values.

        Rows of these files are rows of the table as they stand there, for those who know columns
        by their names; some have other values than those that were given.

        Args:
            base: the table as it was.
            equal: the value by column.
            columns: all that are to be read.

        Raises:
            SchemaMismatchError: a column was renamed, dropped or recreated, or has a default value.
            ConfigError: readers of the files by names of columns would not see the table's rows.
            StorageError: the catalog or the storage failed.
        """
        check_plain(base, columns)
        if base.current_snapshot() is None:
            return []
        with _explained("read", self.identifier):
            tasks = list(base.scan(_where(equal)).plan_files())
        for each in tasks:
            path = each.file.file_path
            if each.delete_files:
                raise ConfigError(
                    f"table {self.identifier} marks rows as deleted that are in its files, such as "
                    f"{path}: rewrite these files, or use memq.scan, which leaves such rows out"
                )
            if each.file.file_format != FileFormat.PARQUET:
                raise ConfigError(f"table {self.identifier} has a file that is not Parquet: {path}")
        return [each.file.file_path for each in tasks]

    def files_twice(self, base: Table) -> list[str]:
        """Paths of data files that are in it more than once, sorted.

        Raises:
            StorageError: the catalog or the storage failed.
        """
        with _explained("read", self.identifier):
            paths = Counter(base.inspect.files()["file_path"].to_pylist())
        return sorted(path for path, times in paths.items() if times > 1)


def open_table(name: str, options: GivenValues = NO_VALUES) -> IcebergTable:
    """Open a table by its name.

    Args:
        name: "[catalog:]namespace.table"; without a catalog it is the one that pyiceberg takes for
            the default.
        options: of the catalog, besides those of `.pyiceberg.yaml` and of `PYICEBERG_CATALOG__…`;
            as a table or as "NAME=VALUE,NAME=VALUE".

    Raises:
        ConfigError: it is no such name, or there is no such catalog.
        StorageError: the catalog does not answer.
    """
    catalog, _, identifier = name.rpartition(":")
    if _IDENTIFIER.fullmatch(identifier) is None:
        raise ConfigError(
            f"table {name!r}: must be like lake.clicks, or with a catalog prod:lake.clicks"
        )
    try:
        loaded = load_catalog(catalog or None, **dict(parse_catalog_options(options)))
    except (ValueError, ImportError) as exc:
        raise ConfigError(
            f"catalog {catalog or 'default'!r} of table {name!r} cannot be used: {exc}. Describe "
            "it in ~/.pyiceberg.yaml, or by variables such as PYICEBERG_CATALOG__DEFAULT__URI"
        ) from exc
    except Exception as exc:  # each catalog has errors of its own
        raise StorageError(f"cannot open catalog {catalog!r}: {_in_words(exc)}") from exc
    warehouse = loaded.properties.get("warehouse", "")
    if set("#?") & set(warehouse):
        raise ConfigError(
            f"catalog {catalog or 'default'!r} of table {name!r} has the warehouse {warehouse!r}: "
            "pyiceberg ends a path at # and ?. Use a folder without them"
        )
    return IcebergTable(loaded, identifier)


def _where(equal: Mapping[str, str | int], offsets: Interval | None = None) -> str:
    """Return the condition that columns have some values, none of which has a quote in it."""
    terms = [f"{name} = {value!r}" for name, value in equal.items()]
    if offsets is not None:
        terms += [f"offset >= {offsets.start}", f"offset < {offsets.end}"]
    return " and ".join(terms) or "true"


# -- where the ledger stands ----------------------------------------------------------------


def ledger_of(metadata: TableMetadata) -> Ledger:
    """Read what a table has, from its metadata.

    Raises:
        ConfigError: the table is of a version that has no sequence numbers.
        CorruptDataError: it cannot be told.
    """
    if metadata.format_version < FORMAT_VERSION:
        raise ConfigError(
            f"the table at {metadata.location} is of format version {metadata.format_version}: "
            f"upgrade it to {FORMAT_VERSION}"
        )
    oldest: Snapshot | None = None
    for oldest in lineage(metadata):
        if text := _of(oldest).get(LEDGER):
            return decode_ledger(text)
    if oldest is None or not _has_copy(metadata):
        return EMPTY
    return _copied_ledger(metadata, oldest)


def _has_copy(metadata: TableMetadata) -> bool:
    """Return whether the table's properties have a ledger, and it is this table's."""
    properties, own = metadata.properties, str(metadata.table_uuid)
    return LEDGER in properties and properties.get(LEDGER_TABLE, own) == own


def _copied_ledger(metadata: TableMetadata, oldest: Snapshot) -> Ledger:
    """Read the ledger in the table's properties, where no snapshot has it that is still there.

    Args:
        metadata: of the table.
        oldest: the first snapshot that is known of those the table comes from. Whether it had a
            parent cannot be told: expiry may take that away.
    """
    began, ended = (int(metadata.properties[name]) for name in (LEDGER_BEGAN, LEDGER_ENDED))
    sequence = oldest.sequence_number or 0
    if sequence < began:
        return EMPTY
    if sequence < ended:
        raise CorruptDataError(
            f"the table at {metadata.location} was rolled back to before its last range was "
            "committed, and no snapshot is left that tells what it had then. Roll it forward, or "
            "make a new table from the topic"
        )
    aside = _aside(metadata, ended) if oldest.parent_snapshot_id is None else None
    if aside is not None and _records(aside) != _records(oldest):
        raise CorruptDataError(
            f"the table at {metadata.location} was replaced after its last range was committed, or "
            f"that cannot be told: snapshot {aside.snapshot_id} has that range, and the table does "
            "not come from it as far as snapshots are left. If rows were replaced, make a new "
            "table from the topic; if none were, expire that snapshot"
        )
    return decode_ledger(metadata.properties[LEDGER])


def _aside(metadata: TableMetadata, sequence: int) -> Snapshot | None:
    """Find the snapshot of a sequence number, if it is there and neither tag nor branch is why.

    Then, as snapshots mostly expire by age, no younger one has expired, and whatever does not come
    from it was put in its place.
    """
    kept = {
        each.snapshot_id
        for name, ref in metadata.refs.items()
        if name != MAIN_BRANCH
        for each in _ancestors(metadata, metadata.snapshot_by_id(ref.snapshot_id))
    }
    there = [each for each in metadata.snapshots if each.sequence_number == sequence]
    return next((each for each in there if each.snapshot_id not in kept), None)


def _records(snapshot: Snapshot) -> str | None:
    """Return how many rows a table has by a snapshot, which a compaction does not change."""
    return _of(snapshot).get("total-records")


def lineage(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the snapshots that the current one comes from, itself first, as far as there are."""
    yield from _ancestors(metadata, metadata.current_snapshot())


def _ancestors(metadata: TableMetadata, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    by_id = {each.snapshot_id: each for each in metadata.snapshots}  # there may be thousands
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)


def _of(snapshot: Snapshot) -> Mapping[str, str]:
    summary = snapshot.summary
    return {} if summary is None else summary.additional_properties


def _committed(snapshot: Snapshot) -> CommittedRange:
    summary = _of(snapshot)
    try:
        added = msgspec.json.decode(summary[RANGE], type=TopicRange)
    except UNDECODABLE as exc:
        raise CorruptDataError(f"not the range of a snapshot: {exc}: {summary[RANGE]!r}") from exc
    return CommittedRange(
        snapshot.snapshot_id,
        snapshot.timestamp_ms,
        added,
        summary.get(JOB, ""),
        summary.get(ATTEMPT, ""),
    )


# -- a commit --------------------------------------------------------------------------------


def _copy_of(ledger: str, base: Table) -> dict[str, str]:
    """Make the properties that say the same as the next snapshot."""
    sequence = str(base.last_sequence_number + 1)
    began = base.properties[LEDGER_BEGAN] if _has_copy(base.metadata) else sequence
    return {
        LEDGER: ledger,
        LEDGER_BEGAN: began,
        LEDGER_ENDED: sequence,
        LEDGER_TABLE: str(base.metadata.table_uuid),
    }


def _grow(transaction: Transaction, base: Table, file: str) -> None:
    """Add the columns that a file has and the table never had; all files of a range are alike.

    Raises:
        SchemaMismatchError: it has one, or a field, that was renamed, dropped or recreated.
    """
    schema = _footer(base, file)
    check_unchanged(base, schema.names)
    with transaction.update_schema() as update:
        update.union_by_name(schema)


def _footer(base: Table, path: str) -> pa.Schema:
    import pyarrow.parquet as pq  # noqa: PLC0415 - wanted by few

    with base.io.new_input(path).open() as source:
        return pq.read_schema(source)


@contextmanager
def _types_checked(table: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedPyArrowTypeException as exc:
        raise SchemaMismatchError(
            f"table {table} cannot be made: {exc}. Iceberg has no such type: the topic goes into "
            "files, or another topic has the column otherwise"
        ) from exc


@contextmanager
def _explained(doing: str, table: str) -> Iterator[None]:
    """Turn what catalogs and storages raise into errors that say what to do."""
    try:
        yield
    except NoSuchTableError as exc:
        raise ConfigError(
            f"there is no table {table}; the first range that is put in makes it"
        ) from exc
    except MemqError:
        raise
    except Exception as exc:  # each catalog and storage has errors of its own
        raise StorageError(f"cannot {doing} table {table}: {_in_words(exc)}") from exc


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
