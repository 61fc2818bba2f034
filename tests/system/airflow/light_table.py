"""`spark_apps/range_to_iceberg.py` without Spark, as `light_app` is without it."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_memq.topics import contents_of
from memq import read_range
from memq.client.topic import SyncTopicClient
from memq.core.ranges import OffsetRange
from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import IcebergTable, open_table
from memq.tables.ledger import TopicRange
from tests.system.airflow.light_app import arguments, write_manifest

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("memq_incarnation", pa.string()),
        ("partition", pa.int32()),
    ]
)


def main() -> None:
    """One range into a table."""
    given = arguments()
    started_ms = int(time.time() * 1000)
    offsets = OffsetRange(given.partition, given.start, given.end, given.incarnation)
    with SyncTopicClient(given.bootstrap, given.topic) as client:
        contents = contents_of(client, offsets)
    wanted = TopicRange(
        topic=given.topic,
        **offsets._asdict(),
        batches=contents.batches,
        messages=contents.messages,
        records=contents.records,
        crc_sum=contents.crc_sum,
    )
    values = read_range(
        given.bootstrap,
        topic=given.topic,
        partition=given.partition,
        start=given.start,
        end=given.end,
    )["value"]
    table = open_table(given.output)
    table.create(SCHEMA)
    attempt = uuid4().hex
    commit_range(
        table,
        wanted,
        lambda: _write(table, wanted, values, attempt),
        attempt=attempt,
        job=given.job,
    )
    write_manifest(given, contents, table.location, started_ms)


def _write(
    table: IcebergTable, wanted: TopicRange, values: pa.ChunkedArray, attempt: str
) -> Written:
    count = len(values)
    named = {
        "topic": [wanted.topic] * count,
        "memq_incarnation": [wanted.incarnation] * count,
        "partition": [wanted.partition] * count,
    }
    rows = pa.table({"value": values.cast(pa.binary()), **named}, schema=SCHEMA)
    folder = Path(table.location.removeprefix("file://")) / "data" / attempt
    folder.mkdir(parents=True)
    pq.write_table(rows, folder / "part-0.parquet")
    return Written(wanted, [f"file://{folder}/part-0.parquet"])
