"""The columns of a table by their ids, and what they have been called.

A table knows its columns by ids. It keeps its schemas from before, in which an id may have had
another name, and a mapping from names to ids for files that have no ids. Expiry may have removed
old schemas; then the mapping alone tells of names from before, and it has no order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.types import ListType, MapType, StructType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        mapped: the names that it has in files without ids, by its id.
    """

    now: dict[int, NestedField]
    parents: dict[int, int]
    names: dict[int, set[str]]
    mapped: dict[int, set[str]]

    def called(self, name: str, parent: int = TOP) -> set[int]:
        """The columns in another one that have a name, or had it."""
        return {
            id_
            for id_, names in self.names.items()
            if name in names and self.parents[id_] == parent
        }

    def within(self, id_: int) -> Iterator[int]:
        """A column that the table has, and all in it."""
        yield id_
        yield from (each.field_id for _, each in _fields(self.now[id_].field_type, id_))


def columns_of(base: Table) -> Columns:
    """The columns of a table.

    Args:
        base: the table as it was.
    """
    known = Columns({}, {}, {}, {})
    for schema in base.metadata.schemas:
        for parent, field in _fields(schema.as_struct(), TOP):
            known.parents[field.field_id] = parent
            known.names.setdefault(field.field_id, set()).add(field.name)
    mapping = base.name_mapping()
    for parent, id_, names in _mapped(mapping.root if mapping is not None else (), TOP):
        known.parents.setdefault(id_, parent)
        known.names.setdefault(id_, set()).update(names)
        known.mapped[id_] = names
    for _, field in _fields(base.schema().as_struct(), TOP):
        known.now[field.field_id] = field
    return known


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
