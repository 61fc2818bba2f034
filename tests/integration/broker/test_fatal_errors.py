"""An error that nothing expected stops the broker, in whatever callback it shows itself."""

import asyncio
import threading

import pytest

from memq.broker.connection import ServedConnection
from memq.core.wire import messages as m
from tests.integration.broker.support import TIMEOUT_S, broker, client


class PlantedError(Exception):
    """A bug."""


def _fail(*_: object) -> None:
    raise PlantedError


async def stopped(b) -> BaseException:
    """The error that stops the broker."""
    return await asyncio.wait_for(b.failed(), TIMEOUT_S)


@pytest.mark.parametrize(
    "callback", ["buffer_updated", "get_buffer", "_flush", "_flush_unless_busy", "connection_lost"]
)
async def test_a_bug_in_a_callback_of_a_connection(tmp_path, monkeypatch, callback) -> None:
    """What asyncio calls when bytes come, when answers leave, and when a client has gone."""
    async with broker(tmp_path) as b:
        async with client(b) as c:
            monkeypatch.setattr(ServedConnection, callback, _fail)
            asking = asyncio.ensure_future(c.ask(m.DescribeCluster(own=True)))
            if callback == "connection_lost":
                await asking
            else:
                assert isinstance(await stopped(b), PlantedError)
            asking.cancel()
        assert isinstance(await stopped(b), PlantedError)
        monkeypatch.undo()


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
