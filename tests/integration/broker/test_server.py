"""How a broker starts, stops, gives up, and what it does in the background meanwhile."""

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from memq.broker import server
from memq.broker.config import BrokerConfig
from memq.broker.server import Broker, serve
from memq.core.wire import messages as m
from memq.errors import ClosedError, ConfigError, MemqError, StorageError
from memq.queue.embedded.queue import EmbeddedQueue
from memq.runtime.system import Runtime
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import GatedStorage, client, failing, page, until


class PlantedError(Exception):
    """A bug."""


def made(tmp_path, **seams) -> Broker:
    """A broker that was not started."""
    options = {"data_dir": str(tmp_path / "data"), "port": 0, "admin_port": 0}
    options |= seams.pop("options", {})
    return Broker(BrokerConfig.create(options), **seams)


def refuses(address: str) -> bool:
    """Whether nobody listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as asking:
        return asking.connect_ex((host, int(port))) != 0


class ClosedStorage(InMemoryStorage):
    """Says whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


# -- start ----------------------------------------------------------------------------------


STEPS = [
    (EmbeddedQueue, "times"),
    (server, "BrokerContext"),
    (server.Handlers, "__init__"),
    (Broker, "_listen"),
    (server.OwnTopics, "start"),
    (server, "restore_groups"),
    (server, "look_for_objects"),
    (server.AdminServer, "start"),
    (server.FatalErrors, "watch"),
    (Broker, "_work"),
]


@pytest.mark.parametrize("error", [StorageError("503"), PlantedError("a bug")], ids=type)
@pytest.mark.parametrize(("where", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_start_that_fails_anywhere_leaves_nothing_open(tmp_path, where, name, error) -> None:
    """The error comes out as it was, storage and queue are closed, and the next start serves."""
    storage = ClosedStorage()
    first = made(tmp_path, storage=storage)
    with failing(where, name, error), pytest.raises(type(error)) as raised:
        asyncio.run(serve(first, None))
    assert raised.value is error
    assert storage.closed
    again = made(tmp_path, storage=InMemoryStorage())
    assert asyncio.run(serve(again, lambda _: os.kill(os.getpid(), signal.SIGTERM))) == 0


async def test_nobody_is_served_before_the_topics_are_taken_over(tmp_path, monkeypatch) -> None:
    """The port is claimed first and answers last; /ready is not there before the topics are."""
    going, reached = asyncio.Event(), asyncio.Event()
    look = server.look_for_objects

    async def slow(*arguments):
        reached.set()
        await going.wait()
        return await look(*arguments)

    monkeypatch.setattr(server, "look_for_objects", slow)
    running = made(tmp_path, storage=InMemoryStorage(), queue=InMemoryQueue())
    starting = asyncio.ensure_future(running.start())
    await reached.wait()
    assert not running.context.ready
    assert running.context.not_ready() == ["it starts or stops"]
    assert refuses(running.address)
    assert running.admin_port == 0
    going.set()
    await starting
    assert running.context.not_ready() == []
    async with client(running) as c:
        assert (await c.ask(m.Metadata(topics=None))).topics
    assert (await page(running, "/ready"))[0] == 200
    assert await running.stop()


async def test_a_data_directory_that_cannot_be_made_is_named(tmp_path) -> None:
    """Below a file there is no folder; the error is one of the storage, and says where."""
    (tmp_path / "data").write_bytes(b"")
    below = made(tmp_path, options={"data_dir": str(tmp_path / "data/below")})
    with pytest.raises(StorageError, match=f"cannot make {tmp_path}/data/below: "):
        await below.start()
    for option, value in (("data_dir", f"{tmp_path}/data"), ("storage", f"file://{tmp_path}/data")):
        options = {"data_dir": str(tmp_path / "other"), option: value}
        with pytest.raises(ConfigError, match=f"{option} = {tmp_path}/data is a file"):
            await made(tmp_path, options=options).start()
        assert not (tmp_path / "other").exists()


# -- stop -----------------------------------------------------------------------------------


class Threads:
    """A machine whose executors are remembered."""

    def __init__(self, **clocks) -> None:
        self.made: list[ThreadPoolExecutor] = []
        self.runtime = Runtime(threads=self._make, **clocks)

    def _make(self, count: int, name: str) -> ThreadPoolExecutor:
        self.made.append(ThreadPoolExecutor(count, name))
        return self.made[-1]

    def __iter__(self):
        return iter(self.made)


async def test_a_stop_in_its_order(tmp_path) -> None:
    """While what was accepted is stored nobody new is let in; all is acked, and then closed."""
    storage, queue, threads, steps = GatedStorage(), InMemoryQueue(), Threads(), []
    note = lambda name, call: lambda *args: (steps.append(name), call(*args))[1]  # noqa: E731
    queue.save_times = note("times", queue.save_times)
    queue.close = note("queue", queue.close)
    storage.close = note("storage", storage.close)
    b = made(tmp_path, storage=storage, queue=queue, runtime=threads.runtime)
    await b.start()
    context = b.context
    async with client(b) as c:
        await c.create(batch_age="1ms")
        storage.gate.clear()
        writing = asyncio.ensure_future(c.write(0))
        await until(lambda: context.memory.used_bytes > 0)
        background = list(b._background)
        steps.clear()
        stopping = asyncio.ensure_future(b.stop())
        await until(lambda: context.stopping)
        assert context.not_ready() == ["it starts or stops"]
        assert refuses(b.address)
        assert await page(b, "/health") == (200, "ok, but not ready: it starts or stops\n")
        assert await page(b, "/ready") == (503, "not ready: it starts or stops\n")
        with pytest.raises(ClosedError):
            context.check_not_stopping()
        with pytest.raises(MemqError):
            await c.write(1)
        assert not steps
        assert not any(each.done() for each in background)
        storage.gate.set()
        assert (await writing).offset == 0  # the ack leaves before the connection is closed
        assert await stopping is True
        await until(lambda: c.connection.closed)
    assert steps[-3:] == ["times", "queue", "storage"]
    assert all(each.done() for each in background)
    assert len(background) == 7
    assert len(b.connections) == 0
    assert refuses(f"127.0.0.1:{b.admin_port}")
    assert len(list(threads)) == 3
    assert all(each._shutdown for each in threads)
    assert not any(thread.is_alive() for each in threads for thread in each._threads)


async def test_an_upload_that_hangs_does_not_keep_the_broker(tmp_path) -> None:
    """After the time to drain the broker ends and says that it did not; nothing was acked."""
    storage, threads = GatedStorage(), Threads()
    options = {"drain_timeout": "50ms"}
    b = made(tmp_path, options=options, storage=storage, runtime=threads.runtime)
    await b.start()
    try:
        async with client(b) as c:
            await c.create(batch_age="1ms")
            storage.gate.clear()
            writing = asyncio.ensure_future(c.write(0))
            await until(lambda: b.context.memory.used_bytes > 0)
            executors = (b.context.reads, b.context.uploads)
            waiting = [each.submit(storage.gate.wait, 60) for each in executors for _ in range(50)]
            async with asyncio.timeout(20):
                assert await b.stop() is False
            assert [each.cancelled() for each in waiting].count(True) > 50
            with pytest.raises(MemqError):
                await writing
        assert all(each._shutdown for each in threads)
    finally:
        storage.gate.set()


# -- a process ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start(tmp_path, monkeypatch, number) -> None:
    """It gives up what it has begun, says it is no failure, and is never ready."""
    storage, ended = ClosedStorage(), []

    async def long(*_: object) -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    monkeypatch.setattr(server, "look_for_objects", long)
    assert asyncio.run(serve(made(tmp_path, storage=storage), ended.append)) == 0
    assert ended == [True]
    assert storage.closed
    monkeypatch.undo()
    asyncio.run(EmbeddedQueue(tmp_path / "data/queue").close())


def test_an_error_that_nothing_expected_is_a_failure(tmp_path) -> None:
    """It stops the broker, in order, and the exit code tells of it though all was stored."""
    storage = ClosedStorage()

    def ready(b: Broker) -> None:
        b.context.fatal_errors.report("here", PlantedError("a bug"))

    assert asyncio.run(serve(made(tmp_path, storage=storage), ready)) == 1
    assert storage.closed
