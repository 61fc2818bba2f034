"""Reports on their way to a broker that misbehaves on demand: the data never pays for its audit."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from memq.client.audit.reporter import AuditReporter, ReportSender
from memq.client.cluster import Cluster
from memq.client.consumer.consumer import AsyncConsumer
from memq.client.producer.producer import AsyncProducer
from memq.core.audit.reports import decode_reports
from memq.core.format.message import decode_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.runtime import Runtime
from memq.core.topic import AUDIT_TOPIC
from memq.errors import SequenceConflictError
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.queue import InMemoryQueue
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.broker.support import broker as running
from tests.integration.broker.support import client, until
from tests.unit.core.audit.test_backlog import report

LOGGER = "memq.client.audit.reporter"


@pytest.fixture
async def broker():
    tiny = TinyBroker(audited=True)
    tiny.add_topic(AUDIT_TOPIC)
    async with tiny.serve():
        yield tiny


@pytest.fixture
async def cluster(broker):
    found = Cluster(broker.address)
    yield found
    await found.close()


def told(broker):
    """Reports that the broker has, with the topic that each is filed under."""
    return [
        (key, report)
        for published in broker.published.values()
        if published.request.topic == AUDIT_TOPIC
        for key, value in zip(
            *(
                column.to_pylist()
                for column in decode_message(published.body, DEFAULT_SCHEMA).columns[:2]
            ),
            strict=True,
        )
        for report in decode_reports(value)
    ]


def ranges(broker):
    """First and last sequence of each report that the broker has."""
    return [(each.first, each.last) for _, each in told(broker)]


class Reports:
    """Hands out what it was given, once."""

    def __init__(self, *reports):
        self.waiting = list(reports)

    def __call__(self):
        taken, self.waiting = self.waiting, []
        return taken


async def test_producer_reports_when_it_closes(broker):
    """Closing a producer leaves one report, under the topic's name, over all that it sent."""
    async with AsyncProducer(broker.address, topic="events", client="shop") as producer:
        for number in range(3):
            await (await producer.write(b"%d" % number))
    ((key, found),) = told(broker)
    assert key == b"events"
    assert (found.producer_id, found.client) == (producer.producer_id, "shop")
    assert (found.first, found.last, found.records, found.failed) == (0, 2, 3, [])
    sent = [each for each in broker.published.values() if each.request.topic == "events"]
    assert found.crc_sum == sum(each.crc for each in sent)


async def test_what_was_given_up_is_reported_as_failed(broker):
    """A Message that the broker refused for good is named, and not counted."""
    async with AsyncProducer(broker.address, topic="events", linger="0ms") as producer:
        await (await producer.write(b"fine"))
        broker.faults.append(SequenceConflictError("full"))
        delivery = await producer.write(b"refused")
        with pytest.raises(SequenceConflictError):
            await delivery
    ((_, found),) = told(broker)
    assert (found.first, found.last, found.records, found.failed) == (0, 1, 1, [(1, 1)])


async def test_topic_that_is_not_audited_is_not_reported(broker):
    """Producers report only where the topic says so."""
    broker.add_topic("quiet")
    async with AsyncProducer(broker.address, topic="quiet") as producer:
        await (await producer.write(b"x"))
    assert told(broker) == []


async def test_producer_that_sent_nothing_reports_nothing(broker):
    """Nothing to say means no Message in the audit topic."""
    async with AsyncProducer(broker.address, topic="events"):
        pass
    assert told(broker) == []


async def test_reports_go_out_at_intervals(broker, cluster):
    """A producer that runs on is heard of all the same."""
    source = Reports(report(0, 4))
    reporter = AuditReporter(cluster, source, interval_s=0.01)
    reporter.start()
    await until(lambda: len(told(broker)) == 1)
    source.waiting = [report(5, 6)]
    await until(lambda: len(told(broker)) == 2)
    await reporter.close()
    assert ranges(broker) == [(0, 4), (5, 6)]


@pytest.mark.parametrize(
    ("age_s", "wall_s", "pause_s"),
    [
        (0, 3_601, 10),
        (359, 3_601, 10),
        (360, 3_601, 59 + 15),
        (720, 3_690, 30 + 15),
        (1_800, 3_601, 299 + 15),
        (86_400, 3_601, 599 + 15),
        (86_400, 7_199, 1 + 15),
    ],
)
async def test_older_producer_reports_after_full_minutes(broker, age_s, wall_s, pause_s):
    """Every full hour is reported by all producers soon after it, and most of the time by few."""
    runtime = Runtime(wall_ns=lambda: wall_s * 1_000_000_000, random=lambda: 0.5)
    cluster = Cluster(broker.address, runtime=runtime)
    steady = AuditReporter(cluster, Reports(), steady=True)
    assert (steady._pause_s(age_s), AuditReporter(cluster, Reports())._pause_s(age_s)) == (
        pause_s,
        10,
    )
    await cluster.close()


async def test_write_partitions_share_a_value(broker, cluster):
    """What a producer says of several write partitions leaves as one LogMessage."""
    several = [msgspec.structs.replace(report(0, 4), write_partition=at) for at in range(3)]
    assert await AuditReporter(cluster, Reports(*several)).report()
    assert [each for _, each in told(broker)] == several
    (published,) = broker.published.values()
    assert published.request.records == 1


async def test_lost_ack_does_not_report_twice(broker, cluster):
    """An ack that is lost inside a call is asked for again under the same name."""
    reporter = AuditReporter(cluster, Reports(report(0, 4)))
    broker.faults.append("drop after")
    assert await reporter.report()
    assert ranges(broker) == [(0, 4)]
    assert broker.repeats == 1


async def test_report_that_failed_goes_with_the_next(broker, cluster, caplog):
    """What could not be delivered waits, joined to what comes; the first failure is logged."""
    source = Reports(report(0, 4))
    reporter = AuditReporter(cluster, source)
    broker.faults += [SequenceConflictError("full"), SequenceConflictError("full")]
    with caplog.at_level(logging.INFO, LOGGER):
        assert not await reporter.report()
        source.waiting = [report(5, 9)]
        assert not await reporter.report()
        assert await reporter.report()
    assert ranges(broker) == [(0, 9)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "full" in caplog.records[0].message
    assert "[3 sent]> <ReportBacklog [0 reports over 0 Messages]>" in repr(reporter)


async def test_broker_without_an_audit_topic_costs_no_data(caplog):
    """Where reports cannot go anywhere the data is delivered, and closing says what is missing."""
    async with TinyBroker(audited=True).serve() as broker:
        with caplog.at_level(logging.WARNING, LOGGER):
            async with AsyncProducer(broker.address, topic="events") as producer:
                await (await producer.write(b"x"))
    assert producer.stats.acked_messages == 1
    assert len(caplog.records) == 2
    assert AUDIT_TOPIC in caplog.records[0].message
    assert "1 Message of this client not reported" in caplog.records[1].message


async def test_close_ends_within_its_timeout(broker, caplog):
    """A broker that swallows the report holds up closing for the timeout given, and no longer."""
    with caplog.at_level(logging.WARNING, LOGGER):
        producer = AsyncProducer(broker.address, topic="events")
        await producer.start()
        await (await producer.write(b"x"))
        broker.faults.extend(["ignore"] * 20)
        started_s = asyncio.get_running_loop().time()
        await producer.close(timeout=0.2)
        assert asyncio.get_running_loop().time() - started_s < 2
    assert "not reported" in caplog.records[-1].message
    assert told(broker) == []


async def test_a_consumer_closes_within_its_timeout(tmp_path):
    """A report that the broker does not store holds up a consumer no longer than a producer."""
    queue = FaultyQueue(InMemoryQueue(), [Fault("publish", "hang", first=2, times=None)])
    async with running(tmp_path, queue=queue) as b, client(b) as c:
        await c.create()
        await c.write(0)
        consumer = AsyncConsumer(
            b.address, topic="t", group="g", start="earliest", read_through="broker"
        )
        await consumer.start()
        assert await consumer.poll(10) is not None
        await consumer.commit()
        await until(queue.hung.is_set)
        started_s = asyncio.get_running_loop().time()
        await consumer.close(timeout=0.2)
        took_s = asyncio.get_running_loop().time() - started_s
        queue.end_hangs()
        assert took_s < 2


async def test_close_waits_for_the_report_under_way(broker, cluster):
    """Closing in the middle of a report neither loses it nor sends it twice."""
    source = Reports(report(0, 4))
    reporter = AuditReporter(cluster, source, interval_s=0.001)
    broker.hold = True
    reporter.start()
    await until(lambda: broker.held)
    source.waiting = [report(5, 6)]
    closing = asyncio.ensure_future(reporter.close(10))
    for _ in range(5):
        await asyncio.sleep(0)
    assert source.waiting  # what comes last is asked for when the report under way has ended
    broker.release()
    await closing
    assert ranges(broker) == [(0, 4), (5, 6)]


async def test_unexpected_error_ends_the_reports_and_is_logged(cluster, caplog):
    """A bug in reporting is not swallowed, and does not reach the application either."""

    def broken():
        raise ZeroDivisionError

    reporter = AuditReporter(cluster, broken, interval_s=0.001)
    with caplog.at_level(logging.ERROR, LOGGER):
        reporter.start()
        await until(lambda: caplog.records)
        await reporter.close()
    assert [record.message for record in caplog.records] == [
        "reports to the audit have stopped",
        "the last report to the audit failed",
    ]
    assert {record.exc_info[0] for record in caplog.records} == {ZeroDivisionError}


async def test_what_should_not_wait_leaves_once_in_an_interval(broker, cluster):
    """The first at once, and one that comes soon after it with the next; closing sends the rest."""
    source, woken = Reports(report(0, 4)), asyncio.Event()
    reporter = AuditReporter(cluster, source, woken=woken, interval_s=1_000)
    reporter.start()
    woken.set()
    await until(lambda: ranges(broker) == [(0, 4)])
    await until(lambda: not woken.is_set())
    source.waiting = [report(5, 6)]
    woken.set()
    await until(lambda: not woken.is_set())  # it was seen, and waits
    for _ in range(9):
        await asyncio.sleep(0)
    assert source.waiting
    await reporter.close()
    assert ranges(broker) == [(0, 4), (5, 6)]


async def test_each_message_of_reports_has_a_name_of_its_own(broker, cluster):
    """Also one that was refused: what is sent next is not taken for it, and waits for nothing."""
    sender = ReportSender(cluster)
    await sender.send([report(0, 4)], 9)
    broker.faults.append(SequenceConflictError("full"))
    with pytest.raises(SequenceConflictError):
        await sender.send([report(5, 6)], 9)
    await sender.send([report(5, 6)], 9)
    requests = [each.request for each in broker.published.values()]
    assert [(each.sequence, each.first_unsettled) for each in requests] == [(0, 0), (2, 2)]
    assert len({(each.producer_id, each.write_partition) for each in requests}) == 1
    assert ReportSender(cluster)._id != sender._id


async def test_a_message_of_reports_has_one_deadline(broker, cluster, monkeypatch):
    """What it takes to find the topic is not there for the write any more."""
    now_s = [0.0]
    find, given_s = cluster.topic, []
    cluster.runtime = Runtime(mono_s=lambda: now_s[0])

    async def slow(name, *, timeout_s):
        given_s.append(timeout_s)
        now_s[0] += 4
        return await find(name)

    async def write(_self, _header, _body, _crc, *, timeout_s):
        given_s.append(timeout_s)

    monkeypatch.setattr(cluster, "topic", slow)
    monkeypatch.setattr("memq.client.audit.reporter.TopicClient.write", write)
    await ReportSender(cluster).send([report(0, 4)], 9)
    assert given_s == [9, 5]


async def test_a_report_that_is_interrupted_waits(broker, cluster):
    """Nobody knows whether it is stored: it is sent again, before what comes after it."""
    source = Reports(report(0, 4), report(0, 1, write_partition=1))
    reporter = AuditReporter(cluster, source)
    broker.hold = True
    sending = asyncio.ensure_future(reporter.report())
    await until(lambda: broker.held)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert reporter._backlog.messages == 7
    broker.hold = False
    source.waiting = [report(5, 9)]
    assert await reporter.report()
    assert sorted(ranges(broker)[-2:]) == [(0, 1), (0, 9)]


async def test_what_was_dropped_is_told_when_a_client_closes(broker, cluster, caplog):
    """It is in no report either, though none waits any more."""
    reporter = AuditReporter(cluster, Reports())
    reporter.start()
    reporter._backlog.dropped_messages = 3
    with caplog.at_level(logging.WARNING, LOGGER):
        await reporter.close()
    assert "3 Messages of this client not reported" in caplog.text
