"""A topic, and a table that some of its ranges are put into."""

import uuid

import pyarrow as pa

from memq import AdminClient, Producer, read_range, scan
from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import open_table
from memq.tables.ledger import TopicRange
from tests.integration.tables.lake import catalog_options, write

SCHEMA = pa.schema([("n", pa.int64()), ("tag", pa.uint16()), ("at", pa.timestamp("us", "UTC"))])
ROWS = 10
"""Of each Batch."""


class TopicLake:
    """A topic, and a table that some of its ranges are put into."""

    def __init__(self, address, folder, partitions=1, schema=SCHEMA):
        self.address, self.folder, self.topic = address, folder, f"t{uuid.uuid4().hex[:8]}"
        self.schema, self.partitions = schema, partitions
        self.written = 0
        self._create()

    def _create(self):
        with AdminClient(self.address) as admin:
            admin.create_topic(
                self.topic,
                schema=self.schema,
                batch_age="5ms",
                read_partitions=self.partitions,
            )

    def recreate(self):
        """Delete the topic, and create one of its name whose numbers begin with 1,000."""
        with AdminClient(self.address) as admin:
            admin.delete_topic(self.topic)
        self._create()
        self.written = 1_000

    def grow(self):
        """Add the column `score` to the topic."""
        self.schema = self.schema.append(pa.field("score", pa.float64()))
        with AdminClient(self.address) as admin:
            admin.alter_topic(self.topic, schema=self.schema)

    def produce(self, batches):
        with Producer(self.address, topic=self.topic, acks="all") as producer:
            for _ in range(batches):
                numbers = list(range(self.written, self.written + ROWS))
                columns = {"n": numbers, "tag": [n % 7 for n in numbers], "at": numbers}
                columns["score"] = [n / 2 for n in numbers]
                wanted = {name: columns[name] for name in self.schema.names}
                producer.write_table(pa.table(wanted, schema=self.schema))
                producer.flush(timeout=30)
                self.written += ROWS

    @property
    def table(self):
        return open_table(f"local:lake.{self.topic}", catalog_options(self.folder))

    def range(self, start, end):
        """Offsets of the first read partition of the topic that there is."""
        with AdminClient(self.address) as admin:
            topic_id = admin.describe_topic(self.topic).topic_id
        return TopicRange(topic=self.topic, topic_id=topic_id, partition=0, start=start, end=end)

    def put(self, start, end, *, prefix="", without_rows=False):
        """Put a range in as Spark does: with the types that Iceberg has.

        Args:
            start: first offset.
            end: one past the last one.
            prefix: of the name of its file.
            without_rows: as if none of its Messages could be read.
        """
        where = {"topic": self.topic, "partition": 0, "start": start, "end": end}
        read = read_range(self.address, metadata=True, **where)
        wanted = self.range(start, end)
        rows = pa.Table.from_arrays(
            [
                each.cast(pa.int32()) if each.type == pa.uint16() else each
                for each in read.combine_chunks().columns
            ],
            names=read.schema.names,
        )
        for name, value in (("topic", self.topic), ("memq_topic_id", wanted.topic_id)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value), len(rows)))
        table = self.table
        table.create(rows.schema)
        attempt = uuid.uuid4().hex

        def made():
            if without_rows:
                return Written(wanted, [])
            return write(table, wanted, attempt, rows, prefix=prefix)

        return commit_range(table, wanted, made, attempt=attempt, job="test")

    def scan(self, **options):
        return scan(self.address, topic=self.topic, table=self.table, **options)

    def numbers(self, **options):
        return sorted(self.scan(**options).read_all()["n"].to_pylist())
