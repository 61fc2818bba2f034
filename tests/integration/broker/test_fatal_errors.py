"""An error that nothing expected stops the broker, in whatever callback it shows itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from memq.broker.connection import ServedConnection
from memq.core.wire import messages as m
from memq.errors import MemqError
from tests.integration.broker.support import TIMEOUT_S, GatedStorage, broker, client


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
            monkeypatch.setattr(ServedConnection, callback, _fail)
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
