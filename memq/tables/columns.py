"""Whether the columns of a table are still those that the topic's were put in as.

Theory of operation
-------------------
A table knows its columns by ids, and what is put in has names, as have the files for those who read
them. A column may be renamed or dropped, and its name given to another one. Then rows that are put
in, or read, would have the values of both. So every column that ever had the name must still be
there, and never have had another one; so must all that is in it. It may not have a default value
either, which files do not have. All else is refused, and nothing is followed.

What a column was called before is told from the schemas that the table keeps. Where some were
removed, the mapping from names to ids, for files without ids, has the names from before as well.

(Two cases cannot be seen. A column that the owner has added under a name becomes the topic's when
that gets one. And where schemas have been removed, a name that went from one column to another one
is in the mapping only once.)

Engines that read a table's files by the names of columns see its rows only where no row is marked
as deleted, all files are Parquet, and writers spell the names as they are: of letters, digits and
`_`. `check_plain` and `IcebergTable.plain_files` refuse a table of which it is not so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from pyiceberg.table.name_mapping import create_mapping_from_schema

from memq.errors import ConfigError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField

    Path = tuple[str, ...]
    """Name of a column, and of what is in it."""


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that every writer leaves as they are."""


def check_unchanged(base: Table, columns: Collection[str]) -> None:
    """Refuse columns that were renamed, dropped or recreated in a table, or have in them what was.

    Args:
        base: the table as it was.
        columns: their names; what the table never had fits.

    Raises:
        SchemaMismatchError: naming the column, and what was found.
    """
    mappings = [create_mapping_from_schema(each) for each in base.metadata.schemas]
    if (of_files := base.name_mapping()) is not None:
        mappings.append(of_files)
    paths: dict[int, set[Path]] = defaultdict(set)
    for mapping in mappings:
        for id_, path in _paths(mapping.root):
            paths[id_].add(path)
    now = dict(_paths(create_mapping_from_schema(base.schema()).root))
    for id_, found in sorted(paths.items()):
        names = sorted(found)
        if not any(path[0] in columns for path in names):
            continue
        if len(names) > 1:
            what = f"was renamed: it has been called {', '.join(map(_in_words, names))}"
        elif id_ not in now:
            what = "was dropped"
        elif base.schema().find_field(id_).initial_default is not None:
            what = "has a default value, which files do not have"
        else:
            continue
        name = next(path for path in names if path[0] in columns)
        raise SchemaMismatchError(
            f"column {_in_words(name)} of the table at {base.location()} {what}. So which values "
            "are the topic's cannot be told. Put the topic into a table of its own; readers "
            "may leave the column out"
        )


def check_plain(base: Table, columns: Collection[str]) -> None:
    """Refuse columns that engines would not find by their names in files of any writer.

    Raises:
        SchemaMismatchError: as `check_unchanged`.
        ConfigError: a name is not of letters, digits and `_`.
    """
    check_unchanged(base, columns)
    for _, path in _paths(create_mapping_from_schema(base.schema()).root):
        if path[0] in columns and _PLAIN.fullmatch(path[-1]) is None:
            raise ConfigError(
                f"column {_in_words(path)} of the table at {base.location()} is not of letters, "
                "digits and _, and some writers spell such a name otherwise in files: leave the "
                "column out, or use memq.scan, which knows it by its id"
            )


def _paths(fields: Iterable[MappedField], above: Path = ()) -> Iterator[tuple[int, Path]]:
    for each in fields:
        for name in each.names:
            if each.field_id is not None:
                yield each.field_id, (*above, name)
                yield from _paths(each.fields, (*above, name))


def _in_words(path: Path) -> str:
    return repr(".".join(path))
