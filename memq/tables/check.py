"""Whether a table has the rows that its ledger says: counted by topic, topic id and offset.

Each row says which offset it is of. So a range that has fewer rows than were put in has lost some,
one that has more has some twice, and rows of offsets that the ledger does not have are of nobody's
commit. Ranges whose snapshots have expired are counted together, all of a read partition.

Rows are counted and not compared: where as many are lost as are there twice, of one range, or of
ranges whose snapshots have expired, nothing is found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from memq.core.ranges import Interval, OffsetRange, difference
from memq.core.units import counted
from memq.errors import ConfigError
from memq.tables.fitting import NAMING_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyiceberg.table import Table

    from memq.tables.iceberg import CommittedRange, IcebergTable
    from memq.tables.ledger import PartitionLedger, TopicRange

Key = tuple[str, str, int]
"""Topic, topic id, read partition."""


class TableCheck(NamedTuple):
    """What was found.

    Attributes:
        rows: that were counted.
        findings: what is wrong, a sentence each; none when all is as the ledger says.
    """

    rows: int
    findings: list[str]


def check_table(table: IcebergTable) -> TableCheck:
    """Count the rows of a table, and compare them with its ledger.

    It reads four columns of all rows, and keeps a number for each range.

    Raises:
        ConfigError: there is no such table, or it has no such columns.
        CorruptDataError: its ledger cannot be told.
        StorageError: the catalog or the storage failed.
    """
    state = table.look()
    loaded = state.base
    missing = set(NAMING_COLUMNS) - set(loaded.schema().column_names)
    if missing:
        raise ConfigError(
            f"table {table.identifier} has no column {min(missing)!r}, so its rows do not "
            "say which range they are of; only tables that MemQ has made can be checked"
        )
    ledgers = {key[:3]: key[3] for key in state.ledger.partitions()}
    ranges = table.ranges(loaded)
    pieces = {key: _pieces(key, held, ranges) for key, held in ledgers.items()}
    found: dict[Key, Counter[int]] = {}
    for batch in table.matching(loaded, {}, NAMING_COLUMNS):
        _count(batch, pieces, found)
    findings = [f"file {path} is in the table twice" for path in table.files_twice(loaded)]
    for key, held in ledgers.items():
        findings += _compared(key, held, pieces[key], found.get(key, Counter()))
    for key in sorted(found.keys() - ledgers.keys()):
        findings.append(
            f"{_name(key)}: {_rows(found[key].total())} of which the ledger has nothing"
        )
    return TableCheck(sum(each.total() for each in found.values()), findings)


def count_rows(table: IcebergTable, base: Table, wanted: TopicRange) -> int:
    """Count the rows of a range in a table.

    Args:
        table: the table.
        base: it as it was.
        wanted: the range.

    Raises:
        StorageError: the catalog or the storage failed.
    """
    piece = _Piece(wanted.start, wanted.end, None)
    key = _key(wanted.topic, wanted.offsets)
    found: dict[Key, Counter[int]] = {}
    equal: dict[str, str | int] = dict(zip(NAMING_COLUMNS, key, strict=False))
    offsets = Interval(wanted.start, wanted.end)
    for batch in table.matching(base, equal, NAMING_COLUMNS, offsets):
        _count(batch, {key: [piece]}, found)
    return found.get(key, Counter())[0]


class _Piece(NamedTuple):
    """Offsets whose rows are counted together; `records` is None if their snapshots expired."""

    start: int
    end: int
    records: int | None


def _pieces(key: Key, held: PartitionLedger, ranges: Iterable[CommittedRange]) -> list[_Piece]:
    mine = [each.range for each in ranges if _key(each.range.topic, each.range.offsets) == key]
    known = sorted(_Piece(each.start, each.end, each.records) for each in mine)
    rest = difference(held.intervals, [Interval(each.start, each.end) for each in known])
    return sorted([*known, *(_Piece(start, end, None) for start, end in rest)])


def _key(topic: str, offsets: OffsetRange) -> Key:
    return topic, offsets.topic_id, offsets.partition


def _count(
    batch: pa.RecordBatch, pieces: dict[Key, list[_Piece]], found: dict[Key, Counter[int]]
) -> None:
    """Add the rows of a batch to those of their piece; -1 stands for none."""
    import pyarrow as pa  # noqa: PLC0415 - wanted by few

    counts = pa.Table.from_batches([batch]).group_by(list(NAMING_COLUMNS))
    for row in counts.aggregate([([], "count_all")]).to_pylist():
        *naming, offset = (row[name] for name in NAMING_COLUMNS)
        key = (naming[0] or "", naming[1] or "", -1 if naming[2] is None else naming[2])
        at = _piece_at(pieces.get(key, []), offset)
        found.setdefault(key, Counter())[at] += row["count_all"]


def _piece_at(pieces: list[_Piece], offset: int | None) -> int:
    if offset is None:
        return -1
    at = bisect_right(pieces, offset, key=lambda each: each.start) - 1
    return at if at >= 0 and offset < pieces[at].end else -1


def _compared(
    key: Key, held: PartitionLedger, pieces: list[_Piece], found: Counter[int]
) -> Iterator[str]:
    for at, piece in enumerate(pieces):
        if piece.records is not None and piece.records != found[at]:
            name = OffsetRange(key[2], piece.start, piece.end)
            yield f"{_name(key)}, {name}: {_rows(found[at])}, and {piece.records} were put in"
    if found[-1]:
        yield f"{_name(key)}: {_rows(found[-1])} of offsets that the ledger does not have"
    rest = held.records - sum(piece.records or 0 for piece in pieces)
    there = sum(found[at] for at, piece in enumerate(pieces) if piece.records is None)
    if rest != there:
        yield (
            f"{_name(key)}, of ranges whose snapshots have expired: {_rows(there)}, and {rest} "
            "were put in"
        )


def _name(key: Key) -> str:
    topic, topic_id, partition = key
    return f"topic {topic!r} topic id {topic_id} partition {partition}"


def _rows(count: int) -> str:
    return f"{counted(count, 'row')} there"
