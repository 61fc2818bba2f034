"""The audit where storage, queue and reports do not fit together: a broker in the test process."""

import asyncio

import msgspec
import pytest

from memq.broker.retention import expire
from memq.client.admin import AsyncAdminClient
from memq.client.audit import audit
from memq.client.audit.audit import audit_topic
from memq.client.audit.reporter import report_consumed
from memq.client.producer.producer import AsyncProducer
from memq.core.audit.reports import ConsumedReport, SequenceRun, encode_report
from memq.core.audit.result import Verdict
from memq.core.notification import decode_notification
from memq.core.queue import Publication
from memq.core.topic import AUDIT_TOPIC
from memq.storage.keys import key_of_uri
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client
from tests.integration.broker.test_retention import later
from tests.topics.reading import queue_topic
from tests.unit.core.audit.test_produced import report


class World:
    """A broker on storage and queue in memory, which no reader can reach but through the broker."""

    def __init__(self, running, storage, queue):
        self.address, self.storage, self.queue = running.address, storage, queue
        self._running = running

    async def create(self, **options):
        async with AsyncAdminClient(self.address) as admin:
            await admin.create_topic("t", **{"batch_age": "1ms"} | options)

    async def produce(self, messages, producer_id="p", topic="t"):
        """Write Messages, each in a Batch of its own."""
        async with AsyncProducer(self.address, topic=topic, producer_id=producer_id) as producer:
            for number in range(messages):
                await (await producer.write(b"%d" % number, timestamp=number))

    async def tell(self, report):
        """Write a report by hand."""
        async with AsyncProducer(self.address, topic=AUDIT_TOPIC) as producer:
            await (await producer.write(encode_report(report), key=report.topic.encode()))

    async def audit(self, **options):
        return await audit_topic(self.address, "t", **options)

    async def entries(self, topic="t"):
        return await self.queue.fetch(
            await queue_topic(self.queue, topic), 0, 0, max_entries=1_000, max_bytes=1 << 20
        )

    async def notifications(self, topic="t"):
        return [decode_notification(entry.payload) for entry in await self.entries(topic)]

    async def delete(self, *offsets, topic="t"):
        """Delete objects behind the broker's back."""
        notifications = await self.notifications(topic)
        for offset in offsets:
            self.storage.delete(key_of_uri(notifications[offset].uri))

    async def expire(self, seconds):
        """Let the broker's clock stand later from now on, and retention and forgetting come."""
        later(self._running, seconds)
        hosted, context = self._running.topics.get("t"), self._running.context
        await expire(hosted, context)
        for partition in hosted.partitions.values():
            partition.processor.window.expire(context.now().mono_ms)

    async def report_of(self, last, **fields):
        """A true report over the Messages of producer `p` up to a sequence."""
        runs = [notification.producers[0] for notification in await self.notifications()]
        runs = [run for run in runs if run.last <= last]
        true = {
            "records": sum(run.records for run in runs),
            "crc_sum": sum(run.crc_sum for run in runs),
            "window_start_ms": (await self.notifications())[0].sealed_ms,
            "window_end_ms": 0,
        }
        return report(last=last, **({"first": 0} | true | fields))


@pytest.fixture
async def here(tmp_path):
    storage, queue = InMemoryStorage(), InMemoryQueue()
    async with broker(tmp_path, storage=storage, queue=queue) as running:
        yield World(running, storage, queue)


def only(result):
    """The one producer in one write partition that there is."""
    (producer,) = result.producers
    return producer


@pytest.mark.parametrize("deep", [False, True])
async def test_storage_out_of_reach_is_read_through_the_broker(here, deep):
    """A machine that cannot read the storage audits all the same, and finds what is gone."""
    await here.create()
    await here.produce(3)
    assert (await here.audit(deep=deep)).clean
    await here.delete(1)
    result = await here.audit(deep=deep)
    assert only(result).lost == [SequenceRun(1, 1)]
    assert "does not exist" in result.damage[0]


async def test_what_a_killed_producer_has_not_reported(here):
    """Its Messages are counted, nobody is blamed or cleared; what is gone of them is lost."""
    async with client(here._running) as killed:
        await killed.create(batch_age="1ms")
        for number in range(4):
            await killed.write(number)
    result = await here.audit()
    assert (result.verdict, only(result).produced_messages) == (Verdict.PARTLY, 0)
    assert (result.total("unreported_messages"), result.total("unreported_records")) == (4, 4)
    await here.delete(2)
    result = await here.audit()
    assert result.verdict is Verdict.UNCLEAN
    assert (only(result).lost, only(result).lost_records) == ([SequenceRun(2, 2)], 1)


async def test_what_nobody_reported_and_retention_removed_is_not_clean(here):
    """Nothing is left that tells of a producer that was killed; so only a later window is clean."""
    async with client(here._running) as killed:
        await killed.create(batch_age="1ms", retention="1h", dedup_window="1h")
        await killed.write(0)
    await here.expire(3_601)
    since_ms = here._running.context.now().wall_ms
    await here.produce(1, producer_id="q")

    whole, later_one = await here.audit(), await here.audit(start_ms=since_ms)
    assert (whole.verdict, later_one.verdict) == (Verdict.PARTLY, Verdict.CLEAN)
    assert "Retention has removed what was published" in whole.beyond[0]


async def test_only_retention_excuses_what_is_nowhere(here):
    """Where no notification is left, how far retention has come says what it can have removed."""
    await here.create(retention="1h", dedup_window="1h")
    await here.produce(2, producer_id="q")
    told = await here.report_of(1)
    start_ms = told.window_start_ms - 3_600_000
    await here.tell(msgspec.structs.replace(told, window_start_ms=start_ms))
    await here.queue.truncate(await queue_topic(here.queue), 0, 2)
    result = await here.audit()
    assert (result.expired_reports, result.verdict) == (1, Verdict.UNCLEAN)
    by_producer = {each.name.producer_id: each for each in result.producers}
    assert by_producer["p"].expired == [SequenceRun(0, 1)]
    assert by_producer["q"].lost == [SequenceRun(0, 1)]  # removed by hand, an hour too soon


@pytest.mark.parametrize("suspect", [False, True])
async def test_retention_that_overtakes_the_audit_raises_no_alarm(here, suspect):
    """What is removed while the audit runs, to its end, is not called lost, and not clean."""
    await here.create(retention="1h", dedup_window="1h")
    await here.produce(3)
    if suspect:  # by reports that do not agree; what it wrote is read last
        await here.tell(await here.report_of(2, records=9))

    class Overtaken(audit.BatchInspector):
        async def _inspect(self, batch):
            await here.expire(3_601)
            return await super()._inspect(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "BatchInspector", Overtaken)
        result = await here.audit()
    assert (only(result).lost, only(result).expired) == ([], [SequenceRun(0, 2)])
    assert (result.damage, result.verdict) == ([], Verdict.PARTLY)


async def test_late_report_about_an_earlier_topic_neither_alarms_nor_hides(here):
    """What a producer of the old topic tells of the new one's time is about the old one alone."""
    await here.create()
    await here.produce(3)
    old = await here.report_of(2)
    async with AsyncAdminClient(here.address) as admin:
        old_topic_id = (await admin.describe_topic("t")).topic_id
        await admin.delete_topic("t")
    await here.create()
    await here.produce(2)
    late = {"window_start_ms": old.window_start_ms + 60_000, "last": 5, "records": 6}
    await here.tell(msgspec.structs.replace(old, topic_id=old_topic_id, **late))
    result = await here.audit()
    assert (only(result).produced_messages, result.clean) == (2, True)
    await here.delete(1)
    assert only(await here.audit()).lost == [SequenceRun(1, 1)]


async def test_everything_is_looked_at_before_a_loss_is_claimed(here, monkeypatch):
    """A producer whose clock is ahead reports Messages from before its window: they are found."""
    await here.create(audited="false", dedup_window="10s", upload_deadline="1s")
    monkeypatch.setattr(audit, "SLACK_MS", 100 - 10_000)  # with the dedup_window, 100 ms
    await here.produce(4)
    ahead_ms = (await here.notifications())[-1].sealed_ms + 30_000
    await here.expire(60)  # removes nothing: the report is stored later
    await here.tell(await here.report_of(5, window_start_ms=ahead_ms, records=6))
    async with AsyncAdminClient(here.address) as admin:
        await admin.alter_topic("t", audited="true")
    result = await here.audit(start_ms=ahead_ms)
    assert only(result).stored_messages == 4
    assert (only(result).lost, only(result).lost_records) == ([SequenceRun(4, 5)], 2)
    assert result.total("unreported_messages") == 0


async def test_damaged_notifications_are_named(here):
    """By its offset, in the topic and in the audit topic; reports that cover it are believed."""
    await here.create()
    await here.produce(2)
    info = {"topic": "t", "consumer": "job", "partition": 0, "start": 0, "end": 3}
    counts = dict.fromkeys(("batches", "messages", "records", "crc_sum"), 9)
    times = {"window_start_ms": 0, "window_end_ms": 0}
    told = [ConsumedReport(**info, **counts, **times)]
    await asyncio.to_thread(report_consumed, here.address, told)
    for topic in ("t", AUDIT_TOPIC):
        end = (await here.entries(topic))[-1].timestamp_ms
        await here.queue.publish(
            await queue_topic(here.queue, topic), 0, [Publication(0, b"nonsense", end)]
        )
    result = await here.audit()
    assert only(result).stored_messages == 2
    named = {line.split(": ")[0] for line in result.damage}
    assert named == {"t/0 offset 2", f"{AUDIT_TOPIC}/0 offset 2"}
    assert result.consumers[0].total("consumed").messages == 2
