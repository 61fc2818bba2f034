"""The queue in a real Kafka that hangs, dies, or is not there."""

import asyncio
import itertools
import shutil

import pytest

from memq.core.named_values import parse_queue_options
from memq.core.queue import Publication
from memq.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    MemqError,
    PublishUncertainError,
    QueueError,
)
from memq.queue import open_kafka
from memq.queue.kafka import confluent
from tests.harness.services.kafka import Kafka

PARTITIONS = 2
AWAY_S = 12.0  # longer than Kafka leaves a transaction open


@pytest.fixture(scope="module")
def own_kafka(service_jars, tmp_path_factory):
    """A Kafka of this module alone, which may be frozen and killed."""
    with Kafka(tmp_path_factory.mktemp("kafka"), jars=service_jars) as server:
        yield server


class Writer:
    """Publishes numbers, one after the other, each until it is known to be there."""

    def __init__(self, queue, write_partition):
        self.queue, self.write_partition = queue, write_partition
        self.acked, self.said = {}, None

    async def write(self, until):
        for number in itertools.count():
            if until.is_set():
                return
            payload = b"%d:%d" % (self.write_partition, number)
            partition = number % PARTITIONS
            while not await self.is_there(payload, partition):
                await asyncio.sleep(0.1)

    async def is_there(self, payload, partition):
        try:
            publications = [Publication(partition, payload, 1)]
            (offset,) = await self.queue.publish("t", self.write_partition, publications)
        except PublishUncertainError:
            offset = await self.read_back(payload, partition)
        except FencedError:
            raise
        except QueueError as exc:
            self.said = exc
            return False
        if offset is not None:
            self.acked[payload] = partition, offset
        return offset is not None

    async def read_back(self, payload, partition):
        while True:
            try:
                await self.queue.fence("t", self.write_partition, again=True)
                return (await everything(self.queue))[partition].get(payload)
            except FencedError:
                raise
            except MemqError as exc:
                self.said = exc
                await asyncio.sleep(0.1)


async def everything(queue):
    """Payloads and offsets of each partition; none is there twice."""
    found = []
    for partition in range(PARTITIONS):
        start, end = await queue.offsets("t", partition)
        entries = []
        while start < end:
            entries += await queue.fetch("t", partition, start, max_entries=500, max_bytes=1 << 20)
            start = entries[-1].offset + 1
        found.append({entry.payload: entry.offset for entry in entries})
        assert len(found[-1]) == len(entries)
    return found


@pytest.mark.parametrize("fault", ["frozen", "killed"])
@pytest.mark.timeout(240)
async def test_what_is_acked_is_there_once_whatever_kafka_goes_through(own_kafka, process, fault):
    """Writers go on when Kafka is back, nothing acked is lost, and nothing is there twice."""
    queue = await process(port=own_kafka.port)
    await queue.create_topic("t", PARTITIONS)
    await queue.fence("t", 0, 1)
    writers = [Writer(queue, number) for number in range(2)]
    end = asyncio.Event()
    tasks = [asyncio.create_task(writer.write(end)) for writer in writers]
    await everybody_writes(writers)
    if fault == "frozen":
        own_kafka.freeze()
        await asyncio.sleep(AWAY_S)
        own_kafka.thaw()
    else:
        own_kafka.kill()
        await asyncio.to_thread(own_kafka.start)
    await everybody_writes(writers)
    end.set()
    await asyncio.gather(*tasks)
    successor = await process("other", port=own_kafka.port)
    await successor.fence("t", 0, 1)
    found = await everything(successor)
    for writer in writers:
        for payload, (partition, offset) in writer.acked.items():
            assert found[partition][payload] == offset
    assert sum(map(len, found)) == sum(len(writer.acked) for writer in writers)
    with pytest.raises(FencedError):
        await queue.publish("t", 0, [Publication(0, b"late", 1)])


async def test_what_kafka_has_lost_is_named(own_kafka, process, cluster, caplog):
    """A partition that comes back as it was some time ago is missed, and not waited for."""
    queue = await process(port=own_kafka.port)
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)
    folder, copy = own_kafka.folder / "data" / f"{cluster}.t-0", own_kafka.folder / "copy"

    async def publish_some(running_ms):
        publications = [Publication(0, b"x", 1, running_ms)]
        (offset,) = await until_known(lambda: queue.publish("t", 0, publications))
        # The partition has its marker: else Kafka writes it after it was started again, where a
        # record was that is lost, and the end says nothing.
        place = queue._place("t", 0)
        while any(each.stable != each.written for each in await queue._client.bounds([place])):
            await asyncio.sleep(0.05)
        return offset

    kept = await publish_some(100)
    own_kafka.kill()
    shutil.copytree(folder, copy)
    await asyncio.to_thread(own_kafka.start)
    lost = await publish_some(200)
    assert (await queue.offsets("t", 0))[1] == lost + 1
    own_kafka.kill()
    shutil.rmtree(folder)
    copy.rename(folder)
    await asyncio.to_thread(own_kafka.start)
    with pytest.raises(DataLossError, match=rf"lost data of {cluster}\..*: .*up to offset"):
        await until_known(lambda: queue.offsets("t", 0))
    assert (await until_known(lambda: queue.offsets("t", 0)))[1] == kept + 1
    assert [each for each in caplog.records if each.levelname == "CRITICAL"]


async def until_known(call):
    """Ask again while Kafka is not there yet."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except (PublishUncertainError, FencedError):
                raise
            except QueueError:
                await asyncio.sleep(0.1)


async def everybody_writes(writers):
    """Wait until each writer has written some more.

    A Kafka that is killed during a commit may keep the transaction open for ever, which is a fault
    of its own (docs/queue.md, A transaction that hangs); then the test cannot go on.
    """
    before = [len(writer.acked) for writer in writers]
    try:
        async with asyncio.timeout(120):
            while any(
                len(each.acked) < count + 20 for each, count in zip(writers, before, strict=True)
            ):
                await asyncio.sleep(0.05)
    except TimeoutError:
        said = [repr(writer.said) for writer in writers]
        if await keeps_a_transaction_open(writers[0].queue):
            pytest.xfail(f"Kafka keeps a transaction open: {said}")
        raise AssertionError(f"writers do not go on: {said}") from None


async def keeps_a_transaction_open(queue):
    """Whether Kafka itself shows one for longer than it leaves any open."""
    places = [queue._state_topic.place, *(queue._place("t", each) for each in range(PARTITIONS))]
    before = await queue._client.bounds(places)
    await asyncio.sleep(AWAY_S)
    after = await queue._client.bounds(places)
    return any(
        old.stable == new.stable < old.written for old, new in zip(before, after, strict=True)
    )


async def test_a_kafka_that_is_not_there_is_an_error_in_time(monkeypatch):
    """A start without Kafka ends with one line, and leaves no thread that holds the process."""
    monkeypatch.setattr(confluent, "REQUEST_S", 0.5)
    with pytest.raises(QueueError, match=r"cannot make topic c\.memq-state.*Connection refused"):
        await open_kafka("kafka://127.0.0.1:9", frozenset(), cluster_id="c", broker_id="b")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("no.such=1", 'No such configuration property: "no.such"'),
        ("transactional.id=x", "transactional.id cannot be set: memq does so itself"),
        ("topic.replication.factor=three", "expected a number"),
        ("security.protocol=ssl,ssl.ca.location=/no.pem", "ssl.ca.location failed"),
        ("security.protocol=ssl,ssl.key.pem=secret", "ssl.key.pem failed"),
    ],
)
async def test_options_that_make_no_sense_are_refused(options, problem):
    """What Kafka's client does not know, or is ours to say, is named and no secret is shown."""
    with pytest.raises(ConfigError, match=problem) as error:
        await open_kafka(
            "kafka://127.0.0.1:9", parse_queue_options(options), cluster_id="c", broker_id="b"
        )
    assert "secret" not in str(error.value)


async def test_settings_of_topics_reach_kafka(kafka_server, process):
    """Options that begin with "topic." are those of the topics that are made."""
    queue = await process(**{"topic.segment.bytes": "1048576", "topic.replication.factor": "1"})
    await queue.create_topic("t", 1)
    refused = await process(**{"topic.no.such": "1"})
    with pytest.raises(QueueError, match="Unknown topic config"):
        await refused.create_topic("u", 1)
