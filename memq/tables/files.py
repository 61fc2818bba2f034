"""The data files of a table, for engines that read Parquet by the names of columns.

Theory of operation
-------------------
A table in Iceberg is more than its files. Rows of a file may be deleted by a mark in another one,
and columns are known by their ids: one that was renamed has its old name in files from before, and
one that was dropped and made anew has its name in files that do not have its values. A name such
as `user-id` stands in files of other writers as `user_x2Did`. Who reads files by names sees none of
that, and would give wrong rows without an error.

It sees exactly the rows of the table where no row is marked as deleted, all files are Parquet, and
each column that is read has always had its name, and no value but null where a file does not have
it. That is so for what MemQ puts in, for columns that are added, and for compaction by whomever, as
long as names are of letters, digits and `_`: where others are read, files with ids are looked into.
A table of which it is not so is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyiceberg.manifest import FileFormat

from memq.core.units import counted
from memq.errors import ConfigError
from memq.tables.columns import check_unchanged, paths_now

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table

    from memq.tables.iceberg import IcebergTable

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that every writer leaves as they are."""


def plain_files(
    table: IcebergTable, base: Table, equal: Mapping[str, str], columns: Collection[str]
) -> list[str]:
    """Locations of the files that may have rows in which columns have given values.

    Args:
        table: the table.
        base: it as it was.
        equal: the value by column.
        columns: all that are to be read.

    Returns:
        Files whose rows are rows of the table as they stand there; some have other values than
        those that were given.

    Raises:
        SchemaMismatchError: a column was renamed, dropped or made anew, or has a default value.
        ConfigError: who reads the files by names of columns would not see the rows of the table.
        StorageError: the catalog or the storage failed.
    """
    check_unchanged(base, columns)
    tasks = table.files_with(base, equal)
    marked = [each.file.file_path for each in tasks if each.delete_files]
    if marked:
        raise ConfigError(
            f"table {table.identifier} marks rows as deleted that are in its files, in "
            f"{counted(len(marked), 'file')} such as {marked[0]}: rewrite these files, or use "
            "memq.scan, which leaves such rows out"
        )
    for each in tasks:
        if each.file.file_format != FileFormat.PARQUET:
            raise ConfigError(
                f"table {table.identifier} has a file that is not Parquet: {each.file.file_path}"
            )
    paths = [each.file.file_path for each in tasks]
    _check_spelling(table, base, paths, _spelled_otherwise(base, columns))
    return paths


def _spelled_otherwise(base: Table, columns: Collection[str]) -> dict[int, str]:
    """Return the names, by id, that writers of Iceberg spell otherwise in Parquet, as Avro would
    not have them; those that may be are enough.
    """
    return {
        id_: path[-1]
        for id_, path in paths_now(base).items()
        if path[0] in columns and _PLAIN.fullmatch(path[-1]) is None
    }


def _check_spelling(
    table: IcebergTable, base: Table, paths: Sequence[str], names: Mapping[int, str]
) -> None:
    """Make sure that columns, by id, have their names in all files that have them by their ids."""
    if not names:
        return
    for path, footer in zip(paths, table.footers(base, paths), strict=True):
        for id_, name in _ids_in_file(footer):
            if names.get(id_, name) != name:
                raise ConfigError(
                    f"column {names[id_]!r} of table {table.identifier} is called {name!r} in "
                    f"{path}, as other writers spell such names: leave this column out, or use "
                    "memq.scan, which knows it by its id"
                )


def _ids_in_file(fields: Iterable[pa.Field]) -> Iterator[tuple[int, str]]:
    """The ids that the columns of a file have in it, if they do, and their names there."""
    for each in fields:
        id_ = (each.metadata or {}).get(b"PARQUET:field_id")
        if id_ is not None:
            yield int(id_), each.name
        kind = each.type
        yield from _ids_in_file(kind.field(n) for n in range(kind.num_fields))
