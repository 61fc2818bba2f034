"""Topics of a test, at the broker of its module."""

import json

import pytest

from memq import AdminClient, Producer


class Topics:
    """Topics of one record a Batch, whose names begin with one that no other test has."""

    def __init__(self, address, prefix):
        self.address, self.prefix = address, prefix
        self.admin = AdminClient(address)

    def name(self, short):
        return f"{self.prefix}{short}"

    def make(self, short, *values, **options):
        self.admin.create_topic(self.name(short), **{"batch_age": "1ms"} | options)
        self.write(short, *values)

    def make_again(self, short, *values):
        self.delete(short)
        self.make(short, *values)

    def write(self, short, *values):
        with Producer(self.address, topic=self.name(short)) as producer:
            for value in values:
                producer.write(value.encode()).result(30)

    def write_rows(self, short, rows):
        with Producer(self.address, topic=self.name(short), acks="all") as producer:
            producer.write_table(rows)

    def delete(self, short):
        self.admin.delete_topic(self.name(short))

    def topic_id(self, short):
        return self.admin.describe_topic(self.name(short)).topic_id

    @property
    def pattern(self):
        """Options of a read of all that are there."""
        return {"topic": None, "subscribePattern": self.prefix.replace(".", "[.]") + "[a-z]+"}

    def subscribe(self, *shorts):
        """Options of a read of some."""
        return {"topic": None, "subscribe": ", ".join(map(self.name, shorts))}

    def offsets(self, **offsets):
        """JSON of offsets by topic and read partition."""
        return json.dumps({self.name(short): each for short, each in offsets.items()})


def values(rows):
    """Rows of a read, sorted, as (last part of the topic's name, value)."""
    return sorted(
        (row["topic"].rpartition(".")[2], row["value"].decode())
        for row in rows.select(["topic", "value"]).to_pylist()
    )


@pytest.fixture
def topics(broker, request):
    """Makes topics of this test."""
    made = Topics(broker.address, f"{request.node.name.partition('[')[0]}.")
    yield made
    for each in made.admin.list_topics():
        if each.config.name.startswith(made.prefix):
            made.admin.delete_topic(each.config.name)
    made.admin.close()
