"""An error that nothing expected stops the broker, in whatever callback it shows itself."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from memq.broker.connection import BrokerConnection
from memq.core.wire import messages as m
from memq.errors import MemqError
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, broker, client, until


class PlantedError(Exception):
    """A bug."""


def _fail(*_: object) -> None:
    raise PlantedError


async def stopped(b) -> BaseException:
    """The error that stops the broker."""
    return await asyncio.wait_for(b.failed(), TIMEOUT_S)


async def test_a_bug_in_the_timer_of_a_write_partition(tmp_path, monkeypatch) -> None:
    """The timer that seals an open Batch."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create(batch_age="50ms")
        processor = b.topics.get("t").partitions[0].processor
        monkeypatch.setattr(processor, "tick", _fail)
        write = asyncio.ensure_future(c.write(0))
        assert isinstance(await stopped(b), PlantedError)
        monkeypatch.undo()
        write.cancel()


@pytest.mark.parametrize(
    "callback", ["buffer_updated", "get_buffer", "_flush", "_flush_unless_busy", "connection_lost"]
)
async def test_a_bug_in_a_callback_of_a_connection(tmp_path, monkeypatch, callback) -> None:
    """What asyncio calls when bytes come, when answers leave, and when a client has gone."""
    async with broker(tmp_path) as b:
        async with client(b) as c:
            monkeypatch.setattr(BrokerConnection, callback, _fail)
            asking = asyncio.ensure_future(c.ask(m.Metadata(topics=[])))
            if callback == "connection_lost":
                await asking
            else:
                assert isinstance(await stopped(b), PlantedError)
            asking.cancel()
        assert isinstance(await stopped(b), PlantedError)
        monkeypatch.undo()


async def test_a_bug_in_a_thread_of_storage(tmp_path, monkeypatch) -> None:
    """A put that hangs past its deadline gives its memory back from its own thread."""
    storage = GatedStorage()
    async with broker(tmp_path, storage=storage, upload_threads=1) as b, client(b) as c:
        await c.create(batch_messages=1, upload_deadline="100ms")
        storage.gate.clear()
        with pytest.raises(MemqError):
            await c.write(0)
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "is_closed", _fail)
            storage.gate.set()
            assert isinstance(await stopped(b), PlantedError)


async def test_a_bug_where_a_body_ends(tmp_path, monkeypatch) -> None:
    """The memory of a body comes back in whatever thread let go of it last."""
    async with broker(tmp_path) as b:
        monkeypatch.setattr(b.context.memory, "_returned", None)
        body = b.context.memory.lend(300 << 10)
        thread = threading.Thread(target=list.clear, args=([body],))
        del body
        thread.start()
        del thread
        assert isinstance(await stopped(b), AttributeError)
        monkeypatch.undo()


async def test_a_client_that_is_gone_at_once_is_no_bug(tmp_path) -> None:
    """Connections that are reset while they are accepted stop nothing."""
    async with broker(tmp_path) as b:
        host, _, port = b.address.rpartition(":")
        for _ in range(50):
            sock = socket.create_connection((host, int(port)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
        await until(lambda: len(b.connections) == 0)
        async with client(b) as c:
            await c.create()
        assert not b.context.fatal_errors.failure.done()


async def test_the_loop_is_as_it_was_when_brokers_have_stopped(tmp_path) -> None:
    """Brokers of one loop that stop in any order leave its handler of errors alone."""
    seen: list[dict] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    try:
        async with broker(tmp_path / "a") as a, broker(tmp_path / "b") as b:
            await a.stop()
            loop.call_soon(_fail)
            assert isinstance(await stopped(b), PlantedError)
            assert not a.context.fatal_errors.failure.done()
        loop.call_soon(_fail)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(seen[-1]["exception"], PlantedError)
        assert not a.context.fatal_errors.failure.done()
    finally:
        loop.set_exception_handler(None)
