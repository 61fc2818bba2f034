"""The pages of the admin HTTP, and what a broker says of itself."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import asynccontextmanager

import aiohttp

from memq.broker.hosted_topic import NOT_OWNED
from memq.broker.object_root import MAX_MISSING_NAMED, MissingObject, Presence
from memq.runtime.system import Runtime
from tests.integration.broker.support import GatedStorage, broker, client, until

NOW_MS = 1_750_000_000_000


def still() -> Runtime:
    """A machine whose clocks stand still."""
    return Runtime(mono_s=lambda: 1_000.0, wall_ns=lambda: NOW_MS * 1_000_000)


@asynccontextmanager
async def quiet(tmp_path, **options):
    """A broker that looks at nothing by itself, so that its state stays as a test makes it."""
    async with broker(tmp_path, **options) as b:
        for task in b._background:
            task.cancel()
        await asyncio.gather(*b._background, return_exceptions=True)
        yield b


async def page(b, path: str):
    """Status and content of a page, which is JSON where it says so."""
    url = f"http://127.0.0.1:{b.admin_port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
        is_json = answer.content_type == "application/json"
        return answer.status, json.loads(text) if is_json else text


async def test_a_topic_has_its_offsets_and_watermark(tmp_path) -> None:
    """Each read partition with its own start and end, and the earliest watermark of any."""
    async with quiet(tmp_path, runtime=still()) as b, client(b) as c:
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
        b.context.presence = Presence("memory:///", 101, tuple(lost), 0)
        found = (await page(b, "/status"))[1]
        assert (found["ready"], found["not_ready"]) == (False, b.context.not_ready())
        assert (await page(b, "/health"))[0] == 200  # a restart would not change it
        assert (await page(b, "/ready"))[0] == 503
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
