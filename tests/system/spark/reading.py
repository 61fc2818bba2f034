"""Rows that all ways to read a topic must agree in, and what sends some."""

from collections import Counter

from memq import Producer

NAME = ("write_partition", "producer_id", "epoch", "sequence", "position")
ROW = (*NAME, "value")
"""What makes a row: who sent it, where in which Message, and what it says."""


def rows_of(frame):
    """Rows of a DataFrame as a multiset."""
    return Counter((*row[:-1], bytes(row[-1])) for row in frame.select(*ROW).collect())


def rows_of_table(table):
    """Rows of an Arrow table as a multiset."""
    return Counter(zip(*(table.column(name).to_pylist() for name in ROW), strict=True))


def produce(address, topic, values, **options):
    """Send some values and wait until they are stored."""
    with Producer(address, topic=topic, acks="all", **options) as producer:
        for value in values:
            producer.write(value, key=value[:2], headers={"h": value[-2:]})
        producer.flush(timeout=30)
