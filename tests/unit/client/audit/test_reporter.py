"""Reports that wait to be delivered: nothing said twice, nothing forgotten, memory bounded."""

import asyncio
import logging
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.audit import reporter
from memq.client.audit.counters import ProducedCounters
from memq.client.audit.reporter import AuditReporter, ReportBacklog
from memq.client.cluster import Cluster
from memq.client.producer.accumulator import SealedMessage
from memq.client.producer.delivery import Delivery, StoredAt
from memq.client.producer.producer import AsyncProducer
from memq.client.producer.state_machine import NamedMessage, PartitionState, StateMachineOptions
from memq.core.audit import reports as audit
from memq.core.audit.reports import decode_reports, encode_report, encode_reports
from memq.core.format.message import decode_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.topic import AUDIT_TOPIC
from memq.errors import DeliveryTimeoutError, SequenceConflictError
from memq.runtime.system import Runtime
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.broker.support import until
from tests.unit.core.audit.test_produced import report

OPTIONS = StateMachineOptions(
    topic="t",
    topic_id="0" * 16,
    producer_id="p",
    epoch=0,
    acks=-1,
    ordered=False,
    fixed_partitions=False,
    max_in_flight=1,
    delivery_timeout_s=1,
    answer_timeout_s=1,
)
ROOM = 1 << 20


class Producer:
    """Submits and settles Messages in any order, and remembers what became of them."""

    def __init__(self, write_partitions):
        self.counters = ProducedCounters(OPTIONS, "", now_ms=lambda: 1)
        self.partitions = [PartitionState(number, "") for number in range(write_partitions)]
        self.open = []
        self.sealed = defaultdict(dict)  # write partition -> sequence -> message
        self.failed = set()

    def seal(self, number):
        partition = self.partitions[number]
        sequence = partition.next_sequence
        partition.next_sequence += 1
        crc = (number * 1_000 + sequence) * 2_654_435_761 % 2**32
        body = pa.py_buffer(bytes(sequence + 1))
        message = SealedMessage(body, crc, "s", sequence + 1, 0, 0, 0.0, Delivery())
        entry = NamedMessage(message, partition, sequence, 0.0)
        self.sealed[number][sequence] = message
        self.counters.submitted(entry)
        self.open.append(entry)

    def settle(self, place, delivered):
        entry = self.open.pop(place % len(self.open))
        if not delivered:
            self.failed.add((entry.partition.number, entry.sequence))
        stored = StoredAt("t", 0, 0, "b", entry.partition.number, entry.sequence, duplicate=False)
        self.counters.settled(entry, stored if delivered else DeliveryTimeoutError("late"))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("seal"), st.integers(0, 2)),
        st.tuples(st.just("settle"), st.tuples(st.integers(0, 99), st.booleans())),
        st.tuples(st.just("report"), st.sampled_from(["delivered", "failed"])),
    ),
    max_size=120,
)


@given(steps=steps, room=st.sampled_from([300, 600, ROOM]))
def test_delivered_reports_cover_each_sequence_once(steps, room):
    """However Messages are settled and reports fail, each sequence ends up in just one report,
    whose sums are those of its Messages.
    """
    producer, backlog, delivered = Producer(3), ReportBacklog(), []

    def send(outcome):
        backlog.add(producer.counters.take_reports())
        while taken := backlog.take(room):
            if outcome == "failed":
                backlog.put_back(taken)
                return
            delivered.extend(
                report for _, value in encode_reports(taken) for report in decode_reports(value)
            )

    for step, argument in steps:
        if step == "seal":
            producer.seal(argument)
        elif step == "settle" and producer.open:
            producer.settle(*argument)
        elif step == "report":
            send(argument)
            assert len(backlog._waiting) <= 3
    while producer.open:
        producer.settle(0, delivered=True)
    send("delivered")

    assert backlog.messages == backlog.dropped_messages == 0
    ends = defaultdict(int)
    for each in delivered:
        number = each.write_partition
        assert each.first == ends[number]
        ends[number] = each.last + 1
        failed = {s for first, last in each.failed for s in range(first, last + 1)}
        assert failed == {
            s for s in range(each.first, each.last + 1) if (number, s) in producer.failed
        }
        messages = [
            producer.sealed[number][s] for s in range(each.first, each.last + 1) if s not in failed
        ]
        assert each.records == sum(message.records for message in messages)
        assert each.size_bytes == sum(message.size_bytes for message in messages)
        assert each.crc_sum == sum(message.crc32c for message in messages) % 2**64
    assert ends == {number: len(sealed) for number, sealed in producer.sealed.items()}


@pytest.mark.parametrize(
    ("limit", "value", "second"),
    [
        ("MAX_REPORT_MESSAGES", 9, report(5, 9)),
        ("MAX_FAILED_RUNS", 1, report(5, 9, failed={6})),
    ],
)
def test_reports_are_not_joined_beyond_what_a_reader_takes(monkeypatch, limit, value, second):
    """A joined report keeps to the limits of a report, and uses them up."""
    monkeypatch.setattr(audit, limit, value)
    backlog = ReportBacklog()
    backlog.add([report(0, 4, failed={1}), report(5, 8)])
    assert [each.last for each in backlog.take(ROOM)] == [8]
    backlog.add([report(0, 4, failed={1}), second])
    assert [each.first for each in backlog.take(ROOM)] == [0, 5]


def test_oldest_report_is_dropped_when_too_much_waits(monkeypatch):
    """At the bound the oldest report goes, and its Messages are counted."""
    monkeypatch.setattr(audit, "MAX_FAILED_RUNS", 1)
    monkeypatch.setattr(reporter, "MAX_WEIGHT", 5)
    backlog = ReportBacklog()
    backlog.add([report(at, at + 4, failed={at}) for at in (0, 5, 10)])
    assert backlog.dropped_messages == 5
    assert [each.first for each in backlog.take(ROOM)] == [5, 10]


def test_what_is_taken_fits_one_message():
    """As many reports as there is room for, and the others the next time."""
    backlog = ReportBacklog()
    backlog.add([report(0, 6, write_partition=number) for number in range(5)])
    room = 2 * len(encode_report(report(0, 6, write_partition=0))) + 10
    sizes = []
    while taken := backlog.take(room):
        sizes.append(len(taken))
    assert sizes == [2, 2, 1]


def test_report_that_fits_no_message_is_dropped():
    """A report too large for any Message does not keep the others back."""
    backlog = ReportBacklog()
    backlog.add([report(0, 6, client="x" * 1_000), report(0, 0, write_partition=1)])
    assert [each.write_partition for each in backlog.take(900)] == [1]
    assert backlog.dropped_messages == 7


# -- reports on their way to a broker that misbehaves on demand ---------------------------------


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


def ranges(broker):
    """First and last sequence of each report that the broker has."""
    return [
        (report.first, report.last)
        for published in broker.published.values()
        if published.request.topic == AUDIT_TOPIC
        for value in decode_message(published.body, DEFAULT_SCHEMA).column("value").to_pylist()
        for report in decode_reports(value)
    ]


class Reports:
    """Hands out what it was given, once."""

    def __init__(self, *reports):
        self.waiting = list(reports)

    def __call__(self):
        taken, self.waiting = self.waiting, []
        return taken


async def test_older_producer_reports_after_full_minutes(broker):
    """Every full hour is reported by all producers soon after it, and most of the time by few."""
    runtime = Runtime(wall_ns=lambda: 3_690 * 1_000_000_000, random=lambda: 0.5)
    cluster = Cluster(broker.address, runtime=runtime)
    steady = AuditReporter(cluster, Reports(), steady=True)
    pauses_s = [steady._pause_s(age_s) for age_s in (0, 359, 360, 720, 1_800, 86_400)]
    assert pauses_s == [10, 10, 30 + 15, 30 + 15, 210 + 15, 510 + 15]
    assert AuditReporter(cluster, Reports())._pause_s(86_400) == 10
    await cluster.close()


async def test_report_that_failed_goes_with_the_next(broker, cluster):
    """What could not be delivered waits, joined to what comes."""
    source = Reports(report(0, 4))
    reporter = AuditReporter(cluster, source)
    broker.faults += [SequenceConflictError("full"), SequenceConflictError("full")]
    assert not await reporter.report()
    source.waiting = [report(5, 9)]
    assert not await reporter.report()
    assert await reporter.report()
    assert ranges(broker) == [(0, 9)]


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
        assert asyncio.get_running_loop().time() - started_s < 15, "no attempt ends sooner"
    assert "not reported" in caplog.records[-1].message
    assert ranges(broker) == []


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
