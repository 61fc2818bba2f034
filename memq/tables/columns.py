"""Which column of a table is the topic's: columns by their ids, and what they have been called.

Theory of operation
-------------------
A table knows its columns by ids, and what is put in has names. So the topic's column is the one
that was made under its name, whatever it is called now: one that got the name later is another one.
Both are told from the schemas that the table keeps from before. Expiry may have removed some; then
the mapping from names to ids, for files without ids, has the names from before as well, in no
order.

Files that are put in fit by name. So each of their columns, and each field of a struct, must be
called as it was made, or be new.

To read, ids do: of a renamed column, files with ids have the id, and files without have a name that
is mapped to it. That holds while nobody else has or had one of its two names. And that it is the
topic's is known of columns that the table was made with: one that was added later may be its
owner's, and have been renamed before the topic had one. All else is refused, and not guessed at.

(Two cases cannot be seen. A column that the owner has added under a name becomes the topic's when
that gets one. And where schemas have been removed, a name that went from one column to another one
is in the mapping only once.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.types import ListType, MapType, StructType

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField

INCARNATION = "memq_incarnation"
"""A column of tables that MemQ has made, and of no others."""

TOP = -1
"""Stands for the parent of columns that are in no other one."""

DROPPED = "was dropped"
"""What has become of a column that the table had, and has no more."""


class Columns(NamedTuple):
    """All columns that a table has or is known to have had, fields of structs too.

    Attributes:
        table: where it is.
        now: those that it has, by id.
        made: those that it was made with by MemQ, as far as that is known.
        parents: the id of what a column is in, by its id.
        names: all that a column has been called, by its id.
        first: what it was called first, by its id; more than one where that cannot be told.
        mapped: the names that it has in files without ids, by its id.
    """

    table: str
    now: dict[int, NestedField]
    made: set[int]
    parents: dict[int, int]
    names: dict[int, set[str]]
    first: dict[int, set[str]]
    mapped: dict[int, set[str]]

    def called(self, name: str, parent: int = TOP) -> set[int]:
        """The columns in another one that have a name, or had it."""
        return {
            id_
            for id_, names in self.names.items()
            if name in names and self.parents[id_] == parent
        }

    def here(self, name: str, parent: int = TOP) -> int | None:
        """The column in another one that has a name now."""
        there = (id_ for id_ in self.called(name, parent) if id_ in self.now)
        return next((id_ for id_ in there if self.now[id_].name == name), None)

    def within(self, id_: int) -> Iterator[int]:
        """A column that the table has, and all in it."""
        yield id_
        yield from (each.field_id for _, each in _fields(self.now[id_].field_type, id_))


def columns_of(base: Table) -> Columns:
    """The columns of a table.

    Args:
        base: the table as it was.
    """
    known = Columns(base.location(), {}, set(), {}, {}, {}, {})
    schemas = sorted(base.metadata.schemas, key=lambda each: each.schema_id)
    numbers = {each.schema_id for each in schemas}
    unsure = set()
    for schema in schemas:
        if schema.schema_id == 0 and INCARNATION in schema.column_names:
            known.made.update(each.field_id for each in schema.fields)
        for parent, field in _fields(schema.as_struct(), TOP):
            id_ = field.field_id
            if id_ not in known.names and schema.schema_id - 1 not in {-1, *numbers}:
                unsure.add(id_)  # a schema that was removed may have had it
            known.parents[id_] = parent
            known.names.setdefault(id_, set()).add(field.name)
            known.first.setdefault(id_, {field.name})
    mapping = base.name_mapping()
    for parent, id_, names in _mapped(mapping.root if mapping is not None else (), TOP):
        before = names - known.names.get(id_, set())
        if before and (id_ in unsure or id_ not in known.first):
            known.first[id_] = before
        known.parents.setdefault(id_, parent)
        known.names.setdefault(id_, set()).update(names)
        known.mapped[id_] = names
    known.now.update((each.field_id, each) for _, each in _fields(base.schema().as_struct(), TOP))
    return known


def misfits(known: Columns, schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """The columns, and fields in them, that do not fit by their names.

    Args:
        known: the columns of the table.
        schema: of files that are put in.

    Yields:
        Their paths, and what has become of them in the table. What it never had is not among them.
    """
    yield from _misfits(known, [(each.name, each.type) for each in schema], TOP, "")


def column_now(known: Columns, name: str) -> str | None:
    """The name that a column of a topic has now; None where the table does not have it.

    Args:
        known: the columns of the table.
        name: that it has in the topic.

    Raises:
        ConfigError: it cannot be told.
    """
    became = _became(known, name)
    if not became:
        return None if known.here(name) is None else name
    if became == DROPPED:
        return None
    ids = known.called(name)
    if len(ids) == 1 and (now := _renamed(known, ids.pop(), name)) is not None:
        return now
    raise _unreadable(known, name, became)


def check_readable(known: Columns, schema: pa.Schema) -> None:
    """Make sure that columns can be read as those of a topic, and fields in them by their names.

    Args:
        known: the columns of the table.
        schema: of the topic.

    Raises:
        ConfigError: one cannot.
    """
    for each in schema:
        now = column_now(known, each.name)
        if now is not None:
            id_ = known.here(now)
            inner = _misfits(known, _in(each.type), TOP if id_ is None else id_, f"{each.name}.")
            for path, became in inner:
                raise _unreadable(known, path, became)


def _unreadable(known: Columns, path: str, became: str) -> ConfigError:
    return ConfigError(
        f"column {path!r} {became} in the table at {known.table}, and which values are the "
        "topic's cannot be told: leave the column out of those that are read until that is undone"
    )


def _renamed(known: Columns, id_: int, name: str) -> str | None:
    """The name that a column has that is the topic's for sure, and can be read by its id."""
    if id_ not in known.made or name not in known.first[id_] & known.mapped.get(id_, set()):
        return None
    now = known.now[id_].name
    return now if known.called(now) == {id_} else None


def _misfits(
    known: Columns, fields: Iterable[tuple[str, pa.DataType]], parent: int, above: str
) -> Iterator[tuple[str, str]]:
    for name, kind in fields:
        if became := _became(known, name, parent):
            yield f"{above}{name}", became
        elif (id_ := known.here(name, parent)) is not None:
            yield from _misfits(known, _in(kind), id_, f"{above}{name}.")


def _became(known: Columns, name: str, parent: int = TOP) -> str:
    """What has become of the column that was made under a name; nothing where it is still there,
    or never was.
    """
    made = {id_ for id_ in known.called(name, parent) if name in known.first[id_]}
    here, there = known.here(name, parent), made & known.now.keys()
    if elsewhere := there - {here}:
        return f"is called {known.now[min(elsewhere)].name!r}"
    if here is not None and here not in made:
        return f"was called {min(known.first[here])!r} before"
    return DROPPED if made and not there else ""


def _in(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """What a type has in it, by the names that it has in Iceberg."""
    import pyarrow.types as pat  # noqa: PLC0415 - wanted by few

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
