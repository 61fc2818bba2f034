"""What a stream tells the audit: each committed micro-batch, once, and nothing before."""

from __future__ import annotations

import asyncio

import pytest

from memq import AdminClient, Producer
from memq.client.audit.audit import audit_topic
from memq.errors import UnavailableError
from memq.spark import stream_reports
from tests.integration.spark.here import Stream

CONSUMER = "follower"


class Told(list):
    """The reports that got through, as (partition, start, end, Messages, records)."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.failing = False
        self._send = stream_reports.report_consumed
        monkeypatch.setattr(stream_reports, "report_consumed", self._report)

    def _report(self, bootstrap, reports, **options):
        if self.failing:
            raise UnavailableError("the audit topic is away")
        self._send(bootstrap, reports, **options)
        for each in reports:
            assert (each.consumer, each.final) == (CONSUMER, True)
            self.append((each.partition, each.start, each.end, each.messages, each.records))


@pytest.fixture
def told(monkeypatch):
    return Told(monkeypatch)


@pytest.fixture
def topic(broker, request):
    """A topic that is audited, and what writes to it."""
    name = request.node.name.partition("[")[0]
    with AdminClient(broker.address) as admin:
        if name in [each.config.name for each in admin.list_topics()]:
            admin.delete_topic(name)
        admin.create_topic(name, batch_age="1ms")

    def write(*values):
        with Producer(broker.address, topic=name) as producer:
            for value in values:
                producer.write(value).result(30)

    return name, write


def test_each_committed_micro_batch_is_told_once(broker, topic, told):
    """A micro-batch is told when Spark asks for the next one, not when it is planned or read."""
    name, write = topic
    write(b"0", b"1", b"2")
    stream = Stream(broker.address, topic=name, consumer=CONSUMER, maxOffsetsPerTrigger="1")
    start = stream._reader.initialOffset()
    end = stream._reader.latestOffset(start, stream._limit())
    stream.rows(start, end)
    assert told == []
    stream.offset = end
    assert len(stream.run()) == 2  # what was told makes no micro-batch
    stream.stop()

    assert told == [
        (0, 0, 1, 1, 1),
        (0, 1, 3, 2, 2),
    ]  # the rest together: 10 s had not passed
    assert "told" in stream.offset["partitions"]["0"]


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("told_before", [False, True])
def test_what_a_killed_driver_did_not_tell_is_told_by_the_next(
    broker, topic, told, caplog, *, told_before, replayed
):
    """Reports leave no gap where the driver dies, or the audit topic is away; the data goes on.

    Spark first runs the micro-batch again that was under way, where it had not ended.
    """
    name, write = topic
    write(b"0")
    stream = Stream(broker.address, topic=name, consumer=CONSUMER)
    told.failing = not told_before
    stream.run()
    write(b"1", b"2")
    before = stream.offset
    stream.take()
    killed = stream.offset
    stream.rows(killed, killed)

    told.failing = False
    stream.restart()
    if replayed:
        assert len(stream.rows(before, killed)) == 2
    write(b"3")
    stream.run()
    stream.stop()

    covered = [interval for _, *interval, _, _ in told]
    assert [0, 1] in covered if told_before else covered[0][0] == 0
    assert sorted({at for first, last in covered for at in range(first, last)}) == [0, 1, 2, 3]
    assert ("1 audit report not delivered yet" in caplog.text) is not told_before


def test_an_audit_finds_all_consumed(broker, topic):
    """The audit of a topic that a stream has read to its end is clean, for that consumer too."""
    name, write = topic
    write(*(b"%d" % number for number in range(5)))
    stream = Stream(broker.address, topic=name, consumer=CONSUMER, maxOffsetsPerTrigger="2")
    stream.run()
    stream.stop()

    result = asyncio.run(audit_topic(broker.address, name, consumers=[CONSUMER], grace_ms=0))
    (consumer,) = result.consumers
    figures = [(each.consumed.records, each.missed.records) for each in consumer.producers]
    assert (consumer.consumer, sum(consumed for consumed, _ in figures)) == (CONSUMER, 5)
    assert all(missed == 0 for _, missed in figures)
    assert not consumer.mismatches
