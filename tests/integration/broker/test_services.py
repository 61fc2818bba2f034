"""With a service that refuses, everybody is told which, since when and how; and when it is over."""

import asyncio

import pytest

from memq.broker import services
from memq.client.producer import producer
from memq.core.wire import messages as m
from memq.errors import StorageError
from memq.testing import InMemoryStorage
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import broker, client, page, until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What takes seconds takes milliseconds."""
    for name in ("GRACE_MS", "SLOW_MS", "HOLD_MS"):
        monkeypatch.setattr(services, name, 30)
    monkeypatch.setattr(services, "PROBE_S", 0.02)
    monkeypatch.setattr(services, "PROBE_LIMIT_S", 0.1)
    monkeypatch.setattr(producer, "HEED_S", 0.05)
    monkeypatch.setattr(producer, "PATIENCE_S", 0.05)


class RemoteStorage(InMemoryStorage):
    """A store that is asked now and then, and answers by an error while it has one."""

    remote = True
    error = None
    asked = 0

    def get_range(self, key, start, length):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return super().get_range(key, start, length)


async def test_a_store_that_refuses_is_named_and_so_is_its_end(tmp_path, caplog):
    """An idle broker whose store refuses says so within seconds, in /ready and to its clients."""
    storage = RemoteStorage()
    async with broker(tmp_path, storage=storage) as b, client(b) as c:
        storage.error = StorageError("403 AccessDenied")
        storage.error.refused = True  # which is an answer
        before = storage.asked
        await until(lambda: storage.asked > before + 2)
        assert not b.context.not_ready()
        storage.error = StorageError("503 SlowDown")
        await until(b.context.not_ready)
        status, text = await page(b, "/ready")
        assert status == 503
        assert "storage (" in text
        assert "refuses since 20" in text
        assert text.endswith("503 SlowDown\n")
        found = await c.ask(m.DescribeCluster(own=True))
        assert found.status.not_ready == b.context.not_ready()
        await until(lambda: "a service refuses: storage" in caplog.text)
        storage.error = None
        await until(lambda: not b.context.not_ready())
        assert await page(b, "/ready") == (200, "ready\n")
        await until(lambda: "storage answers again" in caplog.text)
    said = [record.getMessage() for record in caplog.records]
    assert sum("a service refuses: storage" in each for each in said) == 1


@pytest.mark.parametrize("kind", ["fail", "hang"])
async def test_a_queue_that_refuses_is_named_and_not_the_storage(tmp_path, kind):
    """When notifications are not published, it is the queue that is told of."""
    queue = FaultyQueue(InMemoryQueue(), [Fault("publish", kind, times=20)])
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create("t", batch_age="1ms")
        write = asyncio.ensure_future(c.write(0))
        await until(b.context.not_ready)
        assert [each.partition(" ")[0] for each in b.context.not_ready()] == ["queue"]
        queue.end_hangs()
        await write
        await until(lambda: not b.context.not_ready())


async def test_half_open_requests_take_no_descriptors_from_clients(tmp_path, monkeypatch):
    """Of many connections to the admin HTTP the oldest make room, and each has its time."""
    monkeypatch.setattr("memq.broker.admin.MAX_CONNECTIONS", 5)
    async with broker(tmp_path) as b:
        held = [await asyncio.open_connection("127.0.0.1", b.admin_port) for _ in range(20)]
        for _, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        for reader, _ in held[:15]:
            with pytest.raises(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""  # before its time is up
                raise ConnectionResetError  # closed in order is closed as well
        assert (await page(b, "/ready"))[0] == 200
        for _, writer in held:
            writer.close()
