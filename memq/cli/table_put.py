"""`memq table put` and `follow`: what a table lacks of a topic is put in, without Spark.

Theory of operation
-------------------
What is to be put in is fixed once, as `memq.tables.scan` does: all that is published by then and
not in the ledger, of every read partition. It is cut into ranges, and each becomes a file and a
commit of its own (`memq.tables.commit`). So a killed process leaves whole ranges in the table, and
the same command goes on with the others; nothing is put in twice, even if others put ranges in.

To follow is to do that again and again. Nothing is remembered between two rounds, so a round after
a crash is one like any other. What may pass (brokers, storage or catalog that do not answer, a
commit of somebody else) ends the round, and the next one begins after a wait.

The columns are looked up once the ranges are fixed: a Batch with columns that a reader does not
know would lose them. A broker may not have heard yet of columns that another one has sealed a Batch
with; such a Batch is refused, and tried again.
"""

from __future__ import annotations

import math
import signal
import sys
import time
import uuid
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pyarrow as pa

from memq.cli.command import check_reachable
from memq.cli.formats import open_sink
from memq.cli.output import notice, progress_bar
from memq.client.read_range import AsyncTopicReader, TopicReader
from memq.core.format.schema import ORIGIN_COLUMNS
from memq.core.manifest import Totals
from memq.core.units import counted
from memq.errors import MemqError, RangeConflictError, UnavailableError
from memq.reading.plan import Selection
from memq.runtime.retry import STORAGE_BACKOFF
from memq.runtime.system import SYSTEM
from memq.tables.commit import Written, commit_range
from memq.tables.fitting import NAMING_COLUMNS, check_columns, check_names, fitted, widened
from memq.tables.ledger import TopicRange
from memq.tables.scan import NO_OFFSETS, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memq.reading.plan import ReadPlan
    from memq.reading.rows import RowsOfBatch
    from memq.tables.iceberg import IcebergTable
    from memq.tables.scan import Settled

RANGE_BYTES = 512 << 20  # stored, of a range: what an interruption repeats, and a file of good size
EXPIRE_EVERY_S = 60.0  # snapshots; that is a commit of its own


def put_topic(table: IcebergTable, topic: str, bootstrap: str, **reading: Any) -> list[TopicRange]:
    """Put in what a table lacks of a topic, and return the ranges, each with what is in it.

    Args:
        table: the table, which is made when there is none.
        topic: the topic.
        bootstrap: some brokers.
        reading: further options of the reader.

    Raises:
        SchemaMismatchError: the topic's columns do not fit a table, or this one.
        DataLossError: retention has removed what was not put in.
        RangeConflictError: somebody else has put in a part of a range meanwhile.
        MemqError: brokers, storage or catalog failed.
    """
    job = "memq table put"
    with _opened(topic, bootstrap, job, reading) as reader:
        settled = _settled(table, reader, topic, RANGE_BYTES)
        size = sum(each.size_bytes for each in settled.plans)
        with progress_bar(f"{job} {topic}", size) as advance:
            return list(_put_all(settled, reader, topic, job, advance))


def follow_topic(
    table: IcebergTable,
    topic: str,
    bootstrap: str,
    *,
    every_ms: float,
    max_bytes: float,
    keep_snapshots_ms: float | None = None,
    start: datetime | None = None,
    until_caught_up: bool = False,
    output: str = "table",
    **reading: Any,
) -> None:
    """Put in what a table lacks of a topic, again and again.

    Args:
        table: the table, which is made when there is none.
        topic: the topic.
        bootstrap: some brokers.
        every_ms: from the beginning of a round to that of the next.
        max_bytes: stored, after which a commit takes no more Batches.
        keep_snapshots_ms: forget snapshots of the table that are older; None to keep all.
        start: leave out what was published before; None for all that is retained.
        until_caught_up: end with what is published now.
        output: "json" for a line about each range.
        reading: further options of the reader.

    Raises:
        MemqError: as `put_topic`, what does not pass.
    """
    failures, expired_s, job = 0, -math.inf, "memq table follow"
    with _opened(topic, bootstrap, job, reading) as reader:
        since = NO_OFFSETS
        if start is not None:
            found = reader.offsets(int(start.timestamp() * 1000))
            since = {each.partition: each.end if each.at is None else each.at for each in found}
        while True:
            begun_s = time.monotonic()
            try:
                settled = _settled(table, reader, topic, max_bytes, since)
                for done in _put_all(settled, reader, topic, job, lambda _: None):
                    _tell(done, output)
                if keep_snapshots_ms is not None and begun_s >= expired_s + EXPIRE_EVERY_S:
                    table.expire(datetime.now(UTC) - timedelta(milliseconds=keep_snapshots_ms))
                    expired_s = begun_s
            except MemqError as exc:
                if not (exc.retriable or isinstance(exc, RangeConflictError)):
                    raise
                if not failures:  # a catalog's own words have lines
                    notice(f"memq: waiting, and trying again: {' '.join(str(exc).split())}")
                time.sleep(STORAGE_BACKOFF.equal_jitter_s(failures, SYSTEM.random))
                failures += 1
                continue
            if failures:
                notice("memq: going on")
            failures = 0
            if until_caught_up:
                return
            time.sleep(max(0.0, begun_s + every_ms / 1_000 - time.monotonic()))


def _tell(done: TopicRange, output: str) -> None:
    """Say that a range was put in: to a program, or to somebody at a terminal."""
    if output == "json":
        click.echo(msgspec.json.encode(done))
    elif sys.stderr.isatty():
        notice(f"memq: {done}: {counted(done.records, 'record')}")


@contextmanager
def _opened(
    topic: str, bootstrap: str, job: str, reading: Mapping[str, Any]
) -> Iterator[TopicReader]:
    check_reachable(bootstrap)
    opening = AsyncTopicReader(bootstrap, topic=topic, metadata=True, client=job, **reading)
    with TopicReader(opening) as reader:
        yield reader


def _schema_of(reader: TopicReader, topic: str) -> pa.Schema:
    """Return the columns of the table.

    Raises:
        SchemaMismatchError: the topic's do not fit a table.
    """
    own = list(reader.schema)[: -len(ORIGIN_COLUMNS)]
    check_columns(pa.schema(own), topic, NAMING_COLUMNS, table=True)
    check_names(reader.schema, topic)
    named = [*reader.schema, *(pa.field(name, pa.string()) for name in NAMING_COLUMNS[:2])]
    return pa.schema([pa.field(each.name, widened(each.type)) for each in named])


def _settled(
    table: IcebergTable,
    reader: TopicReader,
    topic: str,
    range_bytes: float,
    since: Mapping[int, int] = NO_OFFSETS,
) -> Settled[ReadPlan]:
    """Fix what is to be put in; the table is made if there is none."""
    table.create(_schema_of(reader, topic))
    plan = partial(reader.plan, piece_bytes=range_bytes)
    settled = settle(table, reader, topic, {}, lambda rest: plan(Selection(*rest[:3])), since=since)
    ends = {each.partition: each.end for each in settled.seam.rest}
    if ends and reader.lasting(ends) != ends:  # the ledger keeps them
        raise UnavailableError(f"{topic} is not backed up yet up to {ends}; try again")
    reader.refresh()
    return settled


def _put_all(
    settled: Settled[ReadPlan],
    reader: TopicReader,
    topic: str,
    job: str,
    advance: Callable[[int], None],
) -> Iterator[TopicRange]:
    """Put ranges in, and yield those that were not in the table already."""
    schema = _schema_of(reader, topic)
    for rest, found in zip(settled.seam.rest, settled.plans, strict=True):
        # Offsets without a Batch go in as well, with the range after them, or the last.
        ends = [*(each.range.end for each in found.pieces[:-1]), rest.end]
        for (start, end), piece in zip_longest(pairwise([rest.start, *ends]), found.pieces):
            span = rest._replace(start=start, end=end)._asdict()
            batches = [] if piece is None else _known(reader, reader.rows(found, [piece]))
            wanted = TopicRange(topic=topic, **span)
            with _finished():
                done = _put(settled.table, schema, wanted, batches, job=job, advance=advance)
            yield from done


def _known(reader: TopicReader, batches: Iterable[RowsOfBatch]) -> Iterator[RowsOfBatch]:
    """Yield Batches, as long as they have no columns that the reader does not know."""
    for each in batches:
        if each.batch.notification.schema_id not in reader.schema_ids:
            raise UnavailableError(
                f"{each.batch} has columns that the broker which was asked has not heard of yet; "
                "try again"
            )
        yield each


def _put(
    table: IcebergTable,
    schema: pa.Schema,
    wanted: TopicRange,
    batches: Iterable[RowsOfBatch],
    *,
    job: str,
    advance: Callable[[int], None],
) -> list[TopicRange]:
    """Put a range in, and return it, unless it is in the table."""
    attempt = uuid.uuid4().hex

    def write() -> Written:
        totals, path = Totals(), f"{wanted.folder(table.location, attempt)}/part-0.parquet"
        with table.new_file(path) as file, closing(open_sink("parquet", file, schema)) as sink:
            for batch, found in batches:
                for rows in found:
                    names = (pa.repeat(each, len(rows)) for each in (wanted.topic, wanted.topic_id))
                    columns = map(fitted, [*rows.columns, *names], schema)
                    sink.write(pa.record_batch(list(columns), schema=schema))
                totals = totals.plus(batch.notification)
                advance(batch.notification.size_bytes)
        counts = totals._asdict()
        del counts["bytes"]
        return Written(msgspec.structs.replace(wanted, **counts), [path] if totals.records else [])

    outcome = commit_range(table, wanted, write, attempt=attempt, job=job)
    return [outcome.written.range] if outcome.committed and outcome.written else []


@contextmanager
def _finished() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait for the end of the block; a second one does not."""
    came: list[int] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def note(number: int, _: object) -> None:
        came.append(number)
        if len(came) > 1:
            restore()
            signal.raise_signal(number)

    for each in before:
        signal.signal(each, note)
    try:
        yield
    finally:
        restore()
        if came:
            signal.raise_signal(came[0])
