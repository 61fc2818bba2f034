"""Which ranges `memq table put` puts in, and what it says of them, without a catalog."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from memq.cli import table_put
from memq.client.read_plan import Piece, ReadPlan, Selection
from memq.client.read_range import RowsOfBatch
from memq.core.format.schema import ORIGINS
from memq.core.ranges import OffsetRange
from memq.errors import SchemaMismatchError
from memq.tables.commit import Outcome


class File(io.BytesIO):
    """A file that keeps what was written to it when it is closed."""

    content = b""

    def close(self):
        self.content = self.getvalue()
        super().close()


class Table:
    """Files, and the schema that the table was made with."""

    location = "memory:///lake"

    def __init__(self):
        self.files, self.made = {}, []

    def create(self, schema):
        self.made.append(schema)

    @contextlib.contextmanager
    def new_file(self, path):
        self.files[path] = File()
        yield self.files[path]
        self.files[path].close()


NUMBERS = pa.schema([("n", pa.uint8())])


class Reader:
    """Reads Batches of two rows each, whose value is their offset."""

    incarnation = "i"

    def __init__(self, schema=NUMBERS):
        self.schema = pa.schema([*schema, *ORIGINS])
        self.planned, self.closed = [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def plan(self, selection, *, piece_bytes):
        self.planned.append((selection, piece_bytes))
        return plan()

    def rows(self, _plan, pieces):
        for piece in pieces:
            for offset in range(piece.range.start, piece.range.end):
                told = SimpleNamespace(
                    messages=1,
                    records=2,
                    size_bytes=10,
                    producers=[SimpleNamespace(crc_sum=1 << offset)],
                )
                columns = [pa.array([offset] * 2, self.schema[0].type)]
                columns += [pa.nulls(2, each.type) for each in ORIGINS]
                yield RowsOfBatch(
                    SimpleNamespace(notification=told),
                    [pa.record_batch(columns, schema=self.schema)],
                )


def plan(*spans):
    """A plan of pieces with these offsets, of partition 0."""
    pieces = [
        Piece(range=OffsetRange(0, *span, "i"), batches=span[1] - span[0], size_bytes=10)
        for span in spans
    ]
    return ReadPlan(times=None, pieces=pieces)


class Put:
    """One run with a settled plan; commits as it is told."""

    def __init__(self, monkeypatch, rest, plans, reader=None, outcomes=()):
        self.table, self.reader = Table(), reader or Reader()
        self.wanted, self.written, self.attempts = [], [], []
        self.outcomes, self.done, self.opened = list(outcomes), [], []
        settled = SimpleNamespace(seam=SimpleNamespace(rest=rest), plans=plans)

        def settle(table, reader, topic, until, make):
            assert (table, reader, topic, until) == (self.table, self.reader, "t", {})
            make(OffsetRange(1, 2, 3, "i"))
            return settled

        monkeypatch.setattr(table_put, "settle", settle)
        monkeypatch.setattr(table_put, "check_reachable", lambda _: None)
        monkeypatch.setattr(table_put, "AsyncTopicReader", self._open)
        monkeypatch.setattr(table_put, "TopicReader", lambda _: self.reader)
        monkeypatch.setattr(table_put, "commit_range", self._commit)
        monkeypatch.setattr(table_put, "progress_bar", self._bar)

    def _open(self, *arguments, **named):
        self.opened.append((arguments, named))

    @contextlib.contextmanager
    def _bar(self, label, size):
        self.done.append((label, size))
        yield self.done.append

    def _commit(self, table, wanted, write, *, attempt, job):
        assert (table, job) == (self.table, table_put.JOB)
        self.wanted.append((wanted.partition, wanted.start, wanted.end))
        self.attempts.append(attempt)
        outcome = self.outcomes.pop(0) if self.outcomes else "committed"
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == "there before":
            return Outcome(None, committed=False)
        self.written.append(write())
        return Outcome(self.written[-1], committed=outcome == "committed")

    def run(self):
        return table_put.put_topic(self.table, "t", "b:1", zone="z")


@pytest.mark.parametrize(
    ("rest", "plans", "wanted"),
    [
        ([], [], []),
        ([(0, 0, 4)], [plan((0, 4))], [(0, 0, 4)]),
        ([(0, 0, 4)], [plan((0, 2), (2, 4))], [(0, 0, 2), (0, 2, 4)]),
        # Offsets without a Batch: before the first, between two, and after the last.
        ([(0, 1, 9)], [plan((2, 3), (5, 6))], [(0, 1, 3), (0, 3, 9)]),
        ([(0, 1, 9)], [plan((2, 3), (5, 6), (7, 8))], [(0, 1, 3), (0, 3, 6), (0, 6, 9)]),
        ([(0, 1, 9)], [plan()], [(0, 1, 9)]),
        ([(0, 0, 2), (0, 5, 7)], [plan((0, 2)), plan((5, 7))], [(0, 0, 2), (0, 5, 7)]),
        ([(0, 0, 2), (3, 5, 7)], [plan(), plan((5, 6))], [(0, 0, 2), (3, 5, 7)]),
    ],
)
def test_every_offset_goes_in_once(monkeypatch, rest, plans, wanted):
    """Ranges follow each other without a gap, each with the rows of one piece."""
    put = Put(monkeypatch, [OffsetRange(*each, "i") for each in rest], plans)
    done = put.run()
    assert put.wanted == wanted
    assert [(each.partition, each.start, each.end) for each in done] == wanted
    assert {(each.topic, each.incarnation) for each in done} <= {("t", "i")}
    pieces = [each for one in plans for each in one.pieces]
    assert sum(each.batches for each in done) == sum(each.batches for each in pieces)
    assert put.reader.closed
    assert len(set(put.attempts)) == len(put.attempts)
    assert put.reader.planned == [(Selection(1, 2, 3), table_put.RANGE_BYTES)]
    ((arguments, named),) = put.opened
    assert (arguments, named["zone"], named["metadata"]) == (("b:1",), "z", True)


def test_what_is_in_a_range(monkeypatch):
    """Its rows with the names of topic and incarnation, its counts, and progress as it is read."""
    put = Put(monkeypatch, [OffsetRange(0, 0, 9, "i")], [plan((0, 2), (4, 5)), plan()])
    with pytest.raises(ValueError, match="zip"):
        put.run()  # a plan for each range
    put = Put(monkeypatch, [OffsetRange(0, 0, 9, "i")], [plan((0, 2), (4, 5))])
    first, second = put.run()
    assert (first.batches, first.messages, first.records, first.crc_sum) == (2, 2, 4, 0b11)
    assert (second.batches, second.messages, second.records, second.crc_sum) == (1, 1, 2, 0b10000)
    assert put.done == [("memq table put t", 20), 10, 10, 10]
    paths = [path for each in put.written for path in each.files]
    assert paths == list(put.table.files)
    for path, each, attempt in zip(paths, (first, second), put.attempts, strict=True):
        assert path == f"{each.folder('memory:///lake', attempt)}/part-0.parquet"
    found = [parquet.read_table(io.BytesIO(each.content)) for each in put.table.files.values()]
    assert [table["n"].to_pylist() for table in found] == [[0, 0, 1, 1], [4, 4]]
    assert found[0]["n"].type == pa.int16()
    assert found[0].column_names[-2:] == ["topic", "memq_incarnation"]
    assert set(found[0]["topic"].to_pylist()) == {"t"}
    assert set(found[0]["memq_incarnation"].to_pylist()) == {"i"}
    assert found[0].schema.names == put.table.made[0].names


def test_only_what_this_run_has_put_in_is_shown(monkeypatch):
    """Not what was there, nor what another one was faster with; the others go on."""
    rest = [OffsetRange(0, 0, 8, "i")]
    plans = [plan((0, 2), (2, 4), (4, 6), (6, 8))]
    outcomes = ["committed", "there before", "another was faster", "committed"]
    put = Put(monkeypatch, rest, plans, outcomes=outcomes)
    assert [(each.start, each.end) for each in put.run()] == [(0, 2), (6, 8)]
    assert len(put.wanted) == 4


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("topic", pa.int8())]),
        pa.schema([("n", pa.null())]),
        pa.schema([("a", pa.int8()), ("A", pa.int8())]),
        pa.schema([("Sequence", pa.int8())]),
    ],
)
def test_columns_that_no_table_can_have_make_none(monkeypatch, schema):
    """They are refused before the table is."""
    put = Put(monkeypatch, [], [], reader=Reader(schema))
    with pytest.raises(SchemaMismatchError):
        put.run()
    assert put.table.made == []
    assert put.reader.closed
