"""`memq table put`: all that a table lacks of a topic is put in, without Spark.

Theory of operation
-------------------
What is to be put in is fixed once, as `memq.tables.scan` does: all that is published by then and
not in the ledger, of every read partition. It is cut into ranges, and each becomes a file and a
commit of its own (`memq.tables.commit`). So a killed process leaves whole ranges in the table, and
the same command goes on with the others; nothing is put in twice, even if others put ranges in.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from memq.cli.command import check_reachable
from memq.cli.formats import open_sink
from memq.cli.output import progress_bar
from memq.client.read_range import AsyncTopicReader, TopicReader
from memq.core.format.schema import ORIGIN_COLUMNS
from memq.core.manifest import Totals
from memq.reading.plan import Selection
from memq.tables.commit import Written, commit_range
from memq.tables.fitting import NAMING_COLUMNS, check_columns, check_names, fitted, widened
from memq.tables.ledger import TopicRange
from memq.tables.scan import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memq.reading.rows import RowsOfBatch
    from memq.tables.iceberg import IcebergTable

JOB = "memq table put"
RANGE_BYTES = 512 << 20  # stored, of a range: what an interruption repeats, and a file of good size


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
    check_reachable(bootstrap)
    opening = AsyncTopicReader(bootstrap, topic=topic, metadata=True, client=JOB, **reading)
    done: list[TopicRange] = []
    with TopicReader(opening) as reader:
        own = list(reader.schema)[: -len(ORIGIN_COLUMNS)]
        check_columns(pa.schema(own), topic, NAMING_COLUMNS, table=True)
        check_names(reader.schema, topic)
        named = [*reader.schema, *(pa.field(name, pa.string()) for name in NAMING_COLUMNS[:2])]
        schema = pa.schema([pa.field(each.name, widened(each.type)) for each in named])
        table.create(schema)
        plan = partial(reader.plan, piece_bytes=RANGE_BYTES)
        settled = settle(table, reader, topic, {}, lambda rest: plan(Selection(*rest[:3])))
        size = sum(each.size_bytes for each in settled.plans)
        with progress_bar(f"{JOB} {topic}", size) as advance:
            for rest, found in zip(settled.seam.rest, settled.plans, strict=True):
                # Offsets without a Batch go in as well, with the range after them, or the last.
                ends = [*(each.range.end for each in found.pieces[:-1]), rest.end]
                for (start, end), piece in zip_longest(pairwise([rest.start, *ends]), found.pieces):
                    span = rest._replace(start=start, end=end)._asdict()
                    batches = [] if piece is None else reader.rows(found, [piece])
                    wanted = TopicRange(topic=topic, **span)
                    done += _put(table, schema, wanted, batches, advance)
    return done


def _put(
    table: IcebergTable,
    schema: pa.Schema,
    wanted: TopicRange,
    batches: Iterable[RowsOfBatch],
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

    outcome = commit_range(table, wanted, write, attempt=attempt, job=JOB)
    return [outcome.written.range] if outcome.committed and outcome.written else []
