"""The data files of a table, for engines that read Parquet by the names of columns.

Theory of operation
-------------------
A table in Iceberg is more than its files. Rows of a file may be deleted by a mark in another one,
and columns are known by their ids: one that was renamed has its old name in files from before, and
one that was dropped and made anew has its name in files that do not have its values. Who reads
files by names sees none of that, and would give wrong rows without an error.

It sees exactly the rows of the table where no row is marked as deleted, all files are Parquet, and
each column that is read has always had its name, and no value but null where a file does not have
it. That is so for what MemQ puts in, for columns that are added, and for compaction by whomever. A
table of which it is not so is refused; `memq.scan` goes by ids and marks, and reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import FileFormat
from pyiceberg.schema import index_by_name

from memq.core.units import counted
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField

    from memq.tables.iceberg import IcebergTable


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
        ConfigError: who reads the files by names of columns would not see the rows of the table.
        StorageError: the catalog or the storage failed.
    """
    changed = sorted(set(_changed(base)) & set(columns))
    if changed:
        raise ConfigError(
            f"column {changed[0]!r} of table {table.identifier} had another name before, has that "
            "of a column that was dropped, or has a default value, which its files do not say: "
            "leave the column out, or use memq.scan, which goes by ids"
        )
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
    return [each.file.file_path for each in tasks]


def _changed(base: Table) -> Iterator[str]:
    """The columns of which a file may have another one under their name, or they under another."""
    now = index_by_name(base.schema())
    histories = [index_by_name(each) for each in base.metadata.schemas]
    mapping = base.name_mapping()
    mapped = dict(_mapped("", mapping.root)) if mapping is not None else {}
    for name, id_ in now.items():
        ids = {names[name] for names in histories if name in names}
        names = {old for names in histories for old, its_id in names.items() if its_id == id_}
        names |= mapped.get(id_, set())  # where schemas from before were removed
        default = base.schema().find_field(id_).initial_default
        if ids != {id_} or names != {name} or default is not None:
            yield name.partition(".")[0]


def _mapped(above: str, fields: Iterable[MappedField]) -> Iterator[tuple[int, set[str]]]:
    """The names that columns have in files without ids, by id."""
    for each in fields:
        if each.field_id is not None:
            yield each.field_id, {f"{above}{name}" for name in each.names}
        for name in each.names:
            yield from _mapped(f"{above}{name}.", each.fields)
