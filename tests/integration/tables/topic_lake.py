"""A topic, and a table that some of its ranges are put into."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from memq import AdminClient, Producer, read_range, scan
from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import open_table
from memq.tables.ledger import TopicRange
from tests.integration.tables.lake import catalog_options

SCHEMA = pa.schema([("n", pa.int64()), ("tag", pa.uint16()), ("at", pa.timestamp("us", "UTC"))])
ROWS = 10
"""Of each Batch."""


def as_spark_has(kind):
    """The type that Spark writes for one: all may be null, and of numbers Iceberg has few."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, as_spark_has(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(as_spark_has(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(as_spark_has(kind.key_type), as_spark_has(kind.item_type))
    return pa.int32() if kind == pa.uint16() else kind


class TopicLake:
    """A topic, and a table that some of its ranges are put into."""

    def __init__(self, address, folder, partitions=1, schema=SCHEMA, **options):
        self.address, self.folder, self.topic = address, folder, f"t{uuid.uuid4().hex[:8]}"
        with AdminClient(address) as admin:
            admin.create_topic(
                self.topic,
                schema=schema,
                batch_age="5ms",
                read_partitions=partitions,
                **options,
            )
        self.schema = schema
        self.written = 0

    def grow(self, name="score"):
        """Add a column to the topic."""
        self.schema = self.schema.append(pa.field(name, pa.float64()))
        with AdminClient(self.address) as admin:
            admin.alter_topic(self.topic, schema=self.schema)

    def produce(self, batches):
        with Producer(self.address, topic=self.topic, acks="all") as producer:
            for _ in range(batches):
                numbers = list(range(self.written, self.written + ROWS))
                columns = {"n": numbers, "tag": [n % 7 for n in numbers], "at": numbers}
                columns["score"] = columns["number"] = [n / 2 for n in numbers]
                wanted = {name: columns[name] for name in self.schema.names}
                producer.write_table(pa.table(wanted, schema=self.schema))
                producer.flush(timeout=30)
                self.written += ROWS

    @property
    def table(self):
        return open_table(f"local:lake.{self.topic}", catalog_options(self.folder))

    def ends(self):
        with AdminClient(self.address) as admin:
            return {each.partition: each.end for each in admin.offsets(self.topic)}

    def put(self, start, end, partition=0, *, prefix="", without_rows=False):
        """Put a range in as Spark does: with the types that Iceberg has.

        Args:
            start: first offset.
            end: one past the last one.
            partition: read partition.
            prefix: of the name of its file.
            without_rows: as if none of its Messages could be read.
        """
        read = read_range(
            self.address,
            topic=self.topic,
            partition=partition,
            start=start,
            end=end,
            metadata=True,
        )
        with AdminClient(self.address) as admin:
            topic_id = admin.describe_topic(self.topic).topic_id
        rows = pa.Table.from_arrays(
            [each.combine_chunks().cast(as_spark_has(each.type)) for each in read.columns],
            names=read.schema.names,
        )
        for name, value in (("topic", self.topic), ("memq_topic_id", topic_id)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value), len(rows)))
        table = self.table
        table.create(rows.schema)
        wanted = TopicRange(
            topic=self.topic, topic_id=topic_id, partition=partition, start=start, end=end
        )

        def write():
            if without_rows:
                return Written(wanted, [])
            folder = Path(table.location.removeprefix("file://")) / "data"
            folder.mkdir(exist_ok=True, parents=True)
            path = folder / f"{prefix}{uuid.uuid4().hex}.parquet"
            pq.write_table(rows, path)
            counted = msgspec.structs.replace(wanted, records=len(rows))
            return Written(counted, [f"file://{path}"])

        return commit_range(table, wanted, write, attempt=uuid.uuid4().hex, job="test")

    def scan(self, **options):
        return scan(self.address, topic=self.topic, table=self.table, **options)

    def numbers(self, **options):
        return sorted(self.scan(**options).read_all()["n"].to_pylist())
