"""A catalog in a folder, and files of ranges in it."""

import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import open_table
from memq.tables.ledger import TopicRange

NAME = "lake.clicks"
SCHEMA = pa.schema(
    [
        ("value", pa.int64()),
        ("topic", pa.string()),
        ("memq_topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
RECORDS = 3
"""Of each offset."""


def catalog_options(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


def lake_table(folder: Path, schema: pa.Schema = SCHEMA):
    """A table in a catalog of its own, as another process would open it."""
    table = open_table(f"local:{NAME}", catalog_options(folder))
    table.create(schema)
    return table


def clicks(start: int, end: int, partition: int = 0, topic_id: str = "a1") -> TopicRange:
    return TopicRange(topic="clicks", topic_id=topic_id, partition=partition, start=start, end=end)


def rows(wanted: TopicRange, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The records of a range: some of each offset, which their value tells apart."""
    offsets = [offset for offset in range(wanted.start, wanted.end) for _ in range(RECORDS)]
    count = len(offsets)
    columns = {
        "value": [offset * RECORDS + n % RECORDS for n, offset in enumerate(offsets)],
        "topic": [wanted.topic] * count,
        "memq_topic_id": [wanted.topic_id] * count,
        "partition": [wanted.partition] * count,
        "offset": offsets,
    }
    return pa.table(
        [pa.array(columns.get(field.name, [0.5] * count), field.type) for field in schema],
        schema=schema,
    )


def write(table, wanted: TopicRange, attempt: str, data: pa.Table, prefix="") -> Written:
    """Write a file, whose name may begin with something."""
    folder = Path(table.location.removeprefix("file://")) / "data" / attempt
    folder.mkdir(parents=True)
    path = folder / f"{prefix}{wanted.start}.parquet"
    pq.write_table(data, path)
    return Written(msgspec.structs.replace(wanted, records=data.num_rows), [f"file://{path}"])


def put(table, wanted: TopicRange, data: pa.Table | None = None):
    """Commit a range, with files of this attempt."""
    attempt = uuid.uuid4().hex
    data = rows(wanted) if data is None else data
    return commit_range(
        table, wanted, lambda: write(table, wanted, attempt, data), attempt=attempt, job="test"
    )


def compact(table) -> None:
    """Write all rows anew, as programs do that know nothing of ledgers."""
    loaded = table.load()
    loaded.overwrite(loaded.scan().to_arrow())


def values(table) -> list[int]:
    return sorted(table.load().scan().to_arrow()["value"].to_pylist())


def all_of(end: int) -> list[int]:
    return list(range(end * RECORDS))
