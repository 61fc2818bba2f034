"""A producer with a name of its own publishes once, also when the topic has grown in between."""

from __future__ import annotations

import pytest

from memq import AdminClient, Producer


@pytest.mark.parametrize("ordering", ["none", "producer"])
def test_write_partitions_added_between_two_runs_double_nothing(broker, ordering):
    """A named job that is run again after the topic has got more write partitions finds all that
    its first run published, and goes on behind it.
    """
    name = f"grown-{ordering}"
    with AdminClient(broker.address) as admin:
        admin.create_topic(name, write_partitions=2, batch_age="1ms", ordering=ordering)

    def run(count):
        with Producer(broker.address, topic=name, producer_id="nightly") as producer:
            places = []
            for number in range(count):
                delivery = producer.write(b"%d" % number, timestamp=number)
                producer.flush(30)
                places.append(delivery.result(30))
            return places

    first = run(5)
    with AdminClient(broker.address) as admin:
        admin.alter_topic(name, write_partitions=5)
    second = run(7)

    assert second[:5] == [place._replace(duplicate=True) for place in first]
    assert [place.duplicate for place in second[5:]] == [False, False]
