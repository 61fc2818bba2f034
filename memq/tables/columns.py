"""Which columns of a table are still those that the topic's were put in as.

Theory of operation
-------------------
A table knows its columns by ids, and what is put in has names. Who renames or drops a column may
give its name to another one. Then rows that are put in, or read, would have the values of both. So
a column, or a field of a struct, must be the only one that was made under its name, and be called
so. All else is refused, and not guessed at; a name that a column had for a while is free again.

What a column was called when it was made is told from the schemas that the table keeps from before.
Where some were removed, the mapping from names to ids, for files without ids, has the names from
before as well.

(Two cases cannot be seen. A column that the owner has added under a name becomes the topic's when
that gets one. And where schemas have been removed, a name that went from one column to another one
is in the mapping only once.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.types import ListType, MapType, StructType

from memq.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField

TOP = -1
"""Stands for the parent of columns that are in no other one."""


class Columns(NamedTuple):
    """All columns that a table has or is known to have had, fields of structs too.

    Attributes:
        now: those that it has, by id.
        parents: the id of what a column is in, by its id.
        names: all that a column has been called, by its id.
        first: what it was called first, by its id; more than one where that cannot be told.
    """

    now: dict[int, NestedField]
    parents: dict[int, int]
    names: dict[int, set[str]]
    first: dict[int, set[str]]

    def called(self, name: str, parent: int) -> set[int]:
        """Return the columns in another one that have a name, or had it."""
        return {
            id_
            for id_, names in self.names.items()
            if name in names and self.parents[id_] == parent
        }

    def within(self, id_: int) -> Iterator[int]:
        """Give a column that the table has, and all in it."""
        yield id_
        yield from (each.field_id for _, each in _fields(self.now[id_].field_type, id_))


def columns_of(base: Table) -> Columns:
    """Return the columns of a table.

    Args:
        base: the table as it was.
    """
    known = Columns({}, {}, {}, {})
    for schema in sorted(base.metadata.schemas, key=lambda each: each.schema_id):
        for parent, field in _fields(schema.as_struct(), TOP):
            known.parents[field.field_id] = parent
            known.names.setdefault(field.field_id, set()).add(field.name)
            known.first.setdefault(field.field_id, {field.name})
    mapping = base.name_mapping()
    for parent, id_, names in _mapped(mapping.root if mapping is not None else (), TOP):
        if before := names - known.names.get(id_, set()):
            known.first[id_] = before  # of a schema that was removed
        known.parents.setdefault(id_, parent)
        known.names.setdefault(id_, set()).update(names)
    known.now.update((each.field_id, each) for _, each in _fields(base.schema().as_struct(), TOP))
    return known


def check_unchanged(base: Table, columns: Iterable[tuple[str, pa.DataType | None]]) -> None:
    """Refuse columns, and fields in them, that were renamed, dropped or made anew in a table.

    Args:
        base: the table as it was.
        columns: names and types, as the topic has them; without a type, nothing in it is looked at.
            What the table never had fits.

    Raises:
        SchemaMismatchError: naming the column.
    """
    for path in _misfits(columns_of(base), columns, TOP, ""):
        raise SchemaMismatchError(
            f"column {path!r} was renamed, dropped or made anew in the table at {base.location()}, "
            "so which values are the topic's cannot be told. Rename it back, or put the topic into "
            "a table of its own; who only reads may leave the column out"
        )


def _misfits(
    known: Columns,
    columns: Iterable[tuple[str, pa.DataType | None]],
    parent: int,
    above: str,
) -> Iterator[str]:
    for name, kind in columns:
        called = known.called(name, parent)
        here = {id_ for id_ in called if id_ in known.now and known.now[id_].name == name}
        if here != {id_ for id_ in called if name in known.first[id_]}:
            yield f"{above}{name}"
        for id_ in here:
            yield from _misfits(known, _in(kind), id_, f"{above}{name}.")


def _in(kind: pa.DataType | None) -> list[tuple[str, pa.DataType]]:
    """Return what a type has in it, by the names that it has in Iceberg."""
    import pyarrow.types as pat  # noqa: PLC0415 - wanted by few

    if kind is None:
        return []
    if pat.is_struct(kind):
        return [(each.name, each.type) for each in kind]
    if pat.is_map(kind):
        return [("key", kind.key_type), ("value", kind.item_type)]
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return [("element", kind.value_type)]
    return []


def _fields(kind: IcebergType, parent: int) -> Iterator[tuple[int, NestedField]]:
    """All that a type has in it, with the id of what that is in."""
    fields: tuple[NestedField, ...] = ()
    match kind:
        case StructType():
            fields = kind.fields
        case ListType():
            fields = (kind.element_field,)
        case MapType():
            fields = (kind.key_field, kind.value_field)
    for each in fields:
        yield parent, each
        yield from _fields(each.field_type, each.field_id)


def _mapped(fields: Iterable[MappedField], parent: int) -> Iterator[tuple[int, int, set[str]]]:
    for each in fields:
        if each.field_id is not None:
            yield parent, each.field_id, set(each.names)
            yield from _mapped(each.fields, each.field_id)
