"""Every metric after a history that is known in full: counters, gauges and histograms."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, MemqError, StorageError, UnknownTopicError
from memq.runtime.system import Runtime
from tests.integration.broker.support import GatedStorage, broker, client, until

BEGIN_S = 1_750_000_000


class Still:
    """A machine whose clocks go on when the test says so, and by no microsecond otherwise."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.runtime = Runtime(
            mono_s=lambda: 1_000 + self.passed_ms / 1_000,
            wall_ns=lambda: BEGIN_S * 10**9 + self.passed_ms * 10**6,
        )

    @property
    def wall_s(self) -> float:
        return BEGIN_S + self.passed_ms / 1_000


class Storage(GatedStorage):
    """Counts as an object store does; fails while it is to, until every deadline has passed."""

    def __init__(self, machine: Still) -> None:
        super().__init__()
        self.fails = False
        self.machine = machine

    def put(self, key, buffers, *, timeout_s):
        if self.fails:
            self.machine.passed_ms += 120_000
            raise StorageError("503")
        super().put(key, buffers, timeout_s=timeout_s)


async def scrape(b):
    """What /metrics says of the broker: the value of each series, by name and labels."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{b.admin_port}/metrics") as answer,
    ):
        text = await answer.text()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("process_")  # of the machine, which does not stand still
    }


def of(found, name, *labels, topic=None):
    """The value of one series."""
    topics = [("topic", topic)] if topic else []
    return found[name, *sorted([*labels, *topics])]


@pytest.fixture
async def told(tmp_path):
    """The series after the history below, the broker, the machine, and what clients were told."""
    machine = Still()
    storage = Storage(machine)
    sent = {"a": [], "b": []}
    async with broker(tmp_path, storage=storage, runtime=machine.runtime) as b, client(b) as c:
        await c.create("a", read_partitions=2, batch_messages=1, audited=False)
        await c.create("b", batch_messages=2, batch_age="10m", audited=False)

        async def write(topic, sequence, records, took_ms=0):
            header, body = c.message(
                sequence,
                *(b"%d" % each for each in range(records)),
                topic=topic,
                min_timestamp_us=int(machine.wall_s * 1e6) - 40_000_000,
                max_timestamp_us=int(machine.wall_s * 1e6),
            )
            sent[topic].append(len(body))
            storage.gate.clear()
            writing = asyncio.ensure_future(c.ask(header, body))
            before = b.topics.get(topic).messages_received
            await until(lambda: b.topics.get(topic).messages_received > before)
            machine.passed_ms += took_ms
            storage.gate.set()
            return writing

        # Topic a: five Batches of 1 to 5 LogMessages, each published after another time.
        for sequence, took_ms in enumerate((0, 20, 300, 2_600, 70_000)):
            await (await write("a", sequence, sequence + 1, took_ms))
        for _ in range(2):  # a duplicate, twice
            assert (await (await write("a", 3, 4))).duplicate
        # Topic b: two Messages in one Batch, after 7 s, and a Batch that misses its deadline.
        first = await write("b", 0, 10, 7_000)
        second = await write("b", 1, 20)
        await asyncio.gather(first, second)
        storage.fails = True
        failing = [await write("b", sequence, 1) for sequence in (2, 3)]
        for each in await asyncio.gather(*failing, return_exceptions=True):
            assert isinstance(each, MemqError)
        storage.fails = False
        # What is refused: two unknown topics, an invalid request; and a connection that is closed.
        for _ in range(2):
            with pytest.raises(UnknownTopicError):
                await c.ask(m.FetchOffsets(topic="nothing"))
        with pytest.raises(InvalidRequestError):
            await c.ask(m.FetchNotifications(topic="a", positions=[]))
        host, _, port = b.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
        await reader.read()
        writer.close()
        machine.passed_ms += 5_000
        async with client(b):
            await until(lambda: b.context.memory.used_bytes == 0)
            found = await scrape(b)
            yield found, b, machine, sent


async def test_every_metric_is_what_happened(told):
    """Each series has the very value that the history gives it, and topics do not mix."""
    found, b, machine, sent = told
    expected = {
        "memq_messages_received_total": {"a": 7, "b": 4},
        "memq_bytes_received_total": {name: sum(sizes) for name, sizes in sent.items()},
        "memq_batches_published_total": {"a": 5, "b": 1},
        "memq_records_published_total": {"a": 15, "b": 30},
        "memq_batch_publish_seconds_count": {"a": 5, "b": 1},
        "memq_batch_publish_seconds_sum": {"a": 0.02 + 0.3 + 2.6 + 70, "b": 7},
        "memq_stored_through_seconds": dict.fromkeys("ab", machine.wall_s),
    }
    for name, by_topic in expected.items():
        for topic, value in by_topic.items():
            assert of(found, name, topic=topic) == pytest.approx(value), (name, topic)
    assert of(found, "memq_messages_repeated_total", topic="a") == 2
    assert ("memq_messages_repeated_total", ("topic", "b")) not in found
    assert of(found, "memq_batches_failed_total", topic="b") == 1
    assert ("memq_batches_failed_total", ("topic", "a")) not in found
    sizes = [each.size_bytes for each in b.context.storage.list("")]
    published = [of(found, "memq_bytes_published_total", topic=topic) for topic in "ab"]
    assert sum(published) == sum(sizes)
    assert published[0] > published[1] > 0
    # A refusal counts once by its code, a connection that was closed once by its reason.
    refused = {
        dict(labels)["code"]: value
        for (name, *labels), value in found.items()
        if name == "memq_requests_refused_total"
    }
    assert refused == {"unknown_topic": 2, "invalid_request": 1, "storage": 2}
    closed = [v for (name, *_), v in found.items() if name == "memq_connections_closed_total"]
    assert sum(closed) == 1
    assert of(found, "memq_connections") == 2
    assert of(found, "memq_memory_used_bytes") == 0
    assert of(found, "memq_memory_limit_bytes") == b.context.memory.limit_bytes
    assert of(found, "memq_memory_idle_bytes") == b.context.memory.idle_bytes
    assert of(found, "memq_answer_bytes") == 0
    assert of(found, "memq_answer_limit_bytes") == b.context.scheduler.limit_bytes

    await b.topics.delete("a")
    left = [labels for _, *labels in await scrape(b)]
    assert not any(("topic", "a") in labels for labels in left), "an alert would fire for ever"
    assert any(("topic", "b") in labels for labels in left)
