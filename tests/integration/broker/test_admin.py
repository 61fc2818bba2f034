"""The pages of the admin HTTP, and every metric after a history that is known in full."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from memq.broker.hosted_topic import NOT_OWNED
from memq.broker.object_root import MAX_MISSING_NAMED, MissingObject, Presence
from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, StorageError, UnknownTopicError
from memq.runtime.system import Runtime
from tests.integration.broker.support import GatedStorage, broker, client, page, until

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


@asynccontextmanager
async def quiet(tmp_path, **options):
    """A broker that looks at nothing by itself, so that its state stays as a test makes it."""
    async with broker(tmp_path, **options) as b:
        for task in b._background:
            task.cancel()
        await asyncio.gather(*b._background, return_exceptions=True)
        yield b


async def test_a_topic_has_its_offsets_and_watermark(tmp_path) -> None:
    """Each read partition with its own start and end, and the earliest watermark of any."""
    async with quiet(tmp_path, runtime=Still().runtime) as b, client(b) as c:
        await c.create("t", read_partitions=2, batch_messages=1)
        for sequence in range(3):
            await c.write(sequence)
        hosted = b.topics.get("t")
        await b.context.queue.truncate(hosted.topic.queue_topic, 0, 1)
        status, found = await page(b, "/topics/t")
        assert status == 200
        assert found["topic"] == "t"
        assert found["read_partitions"] == [
            {"partition": 0, "start": 1, "end": 2},
            {"partition": 1, "start": 0, "end": 1},
        ]
        steps = []
        offsets = b.context.queue.offsets

        async def marks():
            steps.append("watermark")
            return [NOT_OWNED, 9_000, 7_000, 8_000], [1]

        async def ends(*arguments):
            steps.append("ends")
            return await offsets(*arguments)

        hosted.watermarks, b.context.queue.offsets = marks, ends
        _, found = await page(b, "/topics/t")
        assert found["stored_through_ms"] == 7_000
        assert steps == ["watermark", "ends", "ends"]  # what it covers lies before the ends


async def test_the_status_page(tmp_path) -> None:
    """What each write partition holds, memory, and a few of the objects that are missing."""
    storage = GatedStorage()
    async with quiet(tmp_path, storage=storage, broker_id="one") as b, client(b) as c:
        await c.create("t", write_partitions=2, batch_age="1ms")
        storage.gate.clear()
        writing = asyncio.ensure_future(c.write(0, write_partition=1))
        await until(b.topics.get("t").partitions[1].uploads)
        lost = [MissingObject("t", 0, n, f"00/{n}", f"memory:///00/{n}") for n in range(101)]
        b.context.presence = Presence("memory:///", 120, tuple(lost), 0)
        status, found = await page(b, "/status")
        assert status == 200
        assert (found["broker_id"], found["address"]) == ("one", b.address)
        assert (found["ready"], found["not_ready"]) == (True, [])
        assert found["connections"] == 1
        assert found["memory_peak_bytes"] >= found["memory_used_bytes"] > 0
        assert found["objects"]["root"] == "memory:///"
        assert (found["objects"]["looked_for"], found["objects"]["missing"]) == (120, 101)
        assert len(found["objects"]["such_as"]) == MAX_MISSING_NAMED == 100
        assert found["objects"]["such_as"][0]["offset"] == 0
        of = {(each["topic"], each["write_partition"]): each for each in found["write_partitions"]}
        assert set(of) == {("_memq_audit", 0), ("t", 0), ("t", 1)}
        assert all(each["parked_messages"] == 0 for each in of.values())
        assert of["t", 1] != of["t", 0] | {"write_partition": 1}
        storage.gate.set()
        await writing
        assert "/topics/NAME" in (await page(b, "/"))[1]
        assert (await page(b, "/nothing"))[0] == 404


async def test_ready_is_who_can_be_given_something_to_do(tmp_path) -> None:
    """Each reason counts alone and they are told together; while it starts or stops only that."""
    yes = (True, False)
    async with quiet(tmp_path) as b:
        context, queue = b.context, b.context.services.queue
        for leased, ready, lost, refusing in itertools.product(yes, yes, range(3), yes):
            objects = tuple(MissingObject("t", 0, n, "k", "u") for n in range(lost))
            context.presence = Presence("r", 2, objects, 0)
            context.leased, context.apart = (lambda leased=leased: leased), "no session"
            context.ready = ready
            if refusing:
                queue.failed("503", certain=True)
            else:
                queue.worked()
            expected = ["refuses since"] * refusing
            expected += ["no object below r for 2 of 2"] * (lost == 2)
            expected += ["it is not certain to be part of its cluster: no session"] * (not leased)
            expected = expected if ready else ["it starts or stops"]
            for reason, part in zip(context.not_ready(), expected, strict=True):
                assert part in reason
            assert (await page(b, "/ready"))[0] == (503 if expected else 200)
        context.ready = True


async def scrape(b):
    """What /metrics says of the broker: the value of each series, by name and labels."""
    _, text = await page(b, "/metrics")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("process_")  # of the machine, which does not stand still
    }


async def happened(b, c, machine, storage) -> dict[str, list[int]]:
    """Let a history happen that is known in full; sizes of what was sent to each topic."""
    sent: dict[str, list[int]] = {"a": [], "b": []}
    await c.create("a", read_partitions=2, batch_messages=1, audited=False)
    await c.create("b", batch_messages=2, batch_age="10m", audited=False)

    async def write(topic, sequence, records, took_ms=0):
        values = [b"%d" % each for each in range(records)]
        header, body = c.message(sequence, *values, topic=topic)
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
    await asyncio.gather(await write("b", 0, 10, 7_000), await write("b", 1, 20))
    storage.fails = True
    failing = [await write("b", sequence, 1) for sequence in (2, 3)]
    for each in await asyncio.gather(*failing, return_exceptions=True):
        assert isinstance(each, StorageError)
        assert each.retriable
    storage.fails = False
    # What is refused: two unknown topics, an invalid request; and a connection that is closed.
    for request in (
        m.FetchOffsets(topic="nothing"),
        m.FetchOffsets(topic="nothing"),
        m.FetchNotifications(topic="a", positions=[]),
    ):
        with pytest.raises((UnknownTopicError, InvalidRequestError)):
            await c.ask(request)
    host, _, port = b.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
    await reader.read()
    writer.close()
    return sent


async def test_every_metric_is_what_happened(tmp_path):
    """Each series has the very value that the history gives it, and topics do not mix."""
    machine = Still()
    storage = Storage(machine)
    async with broker(tmp_path, storage=storage, runtime=machine.runtime) as b, client(b) as c:
        sent = await happened(b, c, machine, storage)
        machine.passed_ms += 5_000
        await until(lambda: b.context.memory.used_bytes == 0)
        found = await scrape(b)
        for name, of_a, of_b in (
            ("memq_messages_received_total", 7, 4),
            ("memq_bytes_received_total", sum(sent["a"]), sum(sent["b"])),
            ("memq_batches_published_total", 5, 1),
            ("memq_records_published_total", 15, 30),
            ("memq_batch_publish_seconds_count", 5, 1),
            ("memq_batch_publish_seconds_sum", 0.02 + 0.3 + 2.6 + 70, 7),
            ("memq_stored_through_seconds", machine.wall_s, machine.wall_s),
            ("memq_messages_repeated_total", 2, None),
            ("memq_batches_failed_total", None, 1),
        ):
            by_topic = [found.get((name, ("topic", topic))) for topic in "ab"]
            assert by_topic == [each and pytest.approx(each) for each in (of_a, of_b)], name
        published = [found["memq_bytes_published_total", ("topic", topic)] for topic in "ab"]
        assert sum(published) == sum(each.size_bytes for each in storage.list(""))
        assert published[0] > published[1] > 0
        # A refusal counts once by its code, a connection that was closed once by its reason.
        assert {
            key[1][1]: found[key] for key in found if key[0] == "memq_requests_refused_total"
        } == {"unknown_topic": 2, "invalid_request": 1, "storage": 2}
        assert sum(found[key] for key in found if key[0] == "memq_connections_closed_total") == 1
        memory, scheduler = b.context.memory, b.context.scheduler
        for name, value in (
            ("connections", 1),
            ("memory_used_bytes", 0),
            ("memory_limit_bytes", memory.limit_bytes),
            ("memory_idle_bytes", memory.idle_bytes),
            ("answer_bytes", 0),
            ("answer_limit_bytes", scheduler.limit_bytes),
        ):
            assert found[(f"memq_{name}",)] == value
        await b.topics.delete("a")
        left = [labels for _, *labels in await scrape(b)]
        assert not any(("topic", "a") in labels for labels in left), "an alert would fire for ever"
        assert any(("topic", "b") in labels for labels in left)
