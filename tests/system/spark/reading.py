"""Reading a topic in all the ways that must agree."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from memq import AdminClient, Producer, read_range

NAME = ("write_partition", "producer_id", "epoch", "sequence", "position")
ROW = (*NAME, "value")
"""What makes a row: who sent it, where in which Message, and what it says."""


def rows_of(frame):
    """Rows of a DataFrame as a multiset."""
    return Counter((*row[:-1], bytes(row[-1])) for row in frame.select(*ROW).collect())


def rows_of_table(table):
    """Rows of an Arrow table as a multiset."""
    return Counter(zip(*(table.column(name).to_pylist() for name in ROW), strict=True))


def ends_of(address, topic):
    """End offsets by read partition."""
    with AdminClient(address) as admin:
        return {each.partition: each.end for each in admin.offsets(topic)}


def read_all(address, topic, ends=None, **options):
    """All of a topic up to some ends by `read_range`, one read partition after the other."""
    with AdminClient(address) as admin:
        retained = admin.offsets(topic)
    return pa.concat_tables(
        read_range(
            address,
            topic=topic,
            partition=each.partition,
            start=each.start,
            end=(ends or {}).get(each.partition, each.end),
            metadata=True,
            **options,
        )
        for each in retained
    )


def produce(address, topic, values, **options):
    """Send some values and wait until they are stored."""
    with Producer(address, topic=topic, acks="all", **options) as producer:
        for value in values:
            producer.write(value, key=value[:2], headers={"h": value[-2:]})
        producer.flush(timeout=30)
