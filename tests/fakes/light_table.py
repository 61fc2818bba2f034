"""`spark_apps/range_to_iceberg.py` without Spark, as `light_app` is without it."""

import time
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_memq.planning.topics import contents_of
from memq import read_range
from memq.client.topic import SyncTopicClient
from memq.core.ranges import OffsetRange
from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import IcebergTable, open_table
from memq.tables.ledger import TopicRange
from tests.fakes.light_app import arguments, write_manifest

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("memq_topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def main() -> None:
    """One range into a table."""
    given = arguments()
    started_ms = int(time.time() * 1000)
    offsets = OffsetRange(given.partition, given.start, given.end, given.topic_id)
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
    rows = pa.concat_tables(_rows(given.bootstrap, wanted, at) for at in range(*offsets[1:3]))
    table = open_table(given.output)
    table.create(SCHEMA)
    attempt = uuid4().hex
    commit_range(
        table,
        wanted,
        lambda: _write(table, wanted, rows, attempt),
        attempt=attempt,
        job=given.job,
    )
    write_manifest(given, contents, table.location, started_ms)


def _rows(bootstrap: str, wanted: TopicRange, offset: int) -> pa.Table:
    """The rows of a Batch."""
    place = {"topic": wanted.topic, "partition": wanted.partition}
    values = read_range(bootstrap, **place, start=offset, end=offset + 1)["value"]
    named = {**place, "memq_topic_id": wanted.topic_id, "offset": offset}
    columns = {name: [value] * len(values) for name, value in named.items()}
    return pa.table({"value": values.cast(pa.binary()), **columns}, schema=SCHEMA)


def _write(table: IcebergTable, wanted: TopicRange, rows: pa.Table, attempt: str) -> Written:
    folder = Path(table.location.removeprefix("file://")) / "data" / attempt
    folder.mkdir(parents=True)
    pq.write_table(rows, folder / "part-0.parquet")
    return Written(wanted, [f"file://{folder}/part-0.parquet"])
