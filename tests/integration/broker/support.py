"""A broker inside the test process, with storage and queue that the test controls."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp

from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.client.connection import BrokerConnection
from memq.client.security import Security
from memq.core.access.principals import ANONYMOUS
from memq.core.access.rules import Access
from memq.core.checksum import crc32c
from memq.core.format.message import encode_message, encode_records
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.runtime.system import SYSTEM
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue

ANYBODY = Access(ANONYMOUS, "127.0.0.1", None)  # where nobody has to say who they are
TIMEOUT_S = 60.0  # a backstop, no measure of speed


class GatedStorage(InMemoryStorage):
    """Storage whose puts wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def put(self, key, buffers, *, timeout_s):
        assert self.gate.wait(TIMEOUT_S), "the test left the gate shut"
        super().put(key, buffers, timeout_s=timeout_s)


class Client:
    """A client that speaks in requests."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.schema_id = ""

    async def ask(self, request: m.Struct, body=b"", timeout_s: float = TIMEOUT_S) -> m.Struct:
        header, _ = await self.connection.request(request, body, timeout_s=timeout_s)
        return header

    async def create(self, topic: str = "t", **options) -> m.TopicInfo:
        answer = await self.ask(m.CreateTopic(config=TopicConfig.create(topic, **options)))
        self.schema_id = answer.topic.schema_id
        return answer.topic

    async def know(self, topic: str) -> None:
        """Write with the schema of this topic from now on."""
        self.schema_id = (await self.ask(m.Metadata(topics=[topic]))).topics[0].schema_id

    async def write(self, sequence: int, *values: bytes, **fields) -> m.WriteAnswer:
        header, body = self.message(sequence, *values, **fields)
        return await self.ask(header, body)

    def message(self, sequence: int, *values: bytes, **fields) -> tuple[m.Write, bytes]:
        values = values or (b"value %d" % sequence,)
        batch = encode_records(None, list(values), None, [sequence] * len(values))
        defaults = {
            "topic": "t",
            "write_partition": 0,
            "producer_id": "p",
            "epoch": 0,
            "sequence": sequence,
            "first_unsettled": 0,
            "acks": -1,
            "schema_id": self.schema_id,
            "records": len(values),
            "min_timestamp_us": sequence,
            "max_timestamp_us": sequence,
        }
        return m.Write(**(defaults | fields)), encode_message(batch).to_pybytes()


def crc(body: bytes) -> int:
    """The CRC32C of a body."""
    return crc32c(body)


@asynccontextmanager
async def broker(
    tmp_path, *, storage=None, queue=None, runtime=SYSTEM, **options
) -> AsyncIterator[Broker]:
    """A started broker; it is stopped at the end."""
    options = {
        "data_dir": str(tmp_path),
        "port": 0,
        "admin_port": 0,
        "backup_interval": "0s",  # the storage is to have what a test puts there
    } | options
    running = Broker(
        BrokerConfig.create(options),
        storage=storage or InMemoryStorage(),
        queue=queue or InMemoryQueue(),
        runtime=runtime,
    )
    try:
        await running.start()
    except BaseException:
        await running.abandon()
        raise
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def client(
    running: Broker,
    token: str = "",
    zone: str = "",
    *,
    listener: str = "default",
    name: str = "test",
    group: str = "",
    **security: str,
) -> AsyncIterator[Client]:
    """A connected client, by a listener, with a name, in a group, with this security."""
    connection = await BrokerConnection.open(
        running.listeners[listener].address,
        client=name,
        token=token,
        zone=zone,
        group=group,
        security=Security.parse(security),
        connect_timeout_s=TIMEOUT_S,
    )
    try:
        yield Client(connection)
    finally:
        await connection.close()


async def page(running: Broker, path: str, **headers: str) -> tuple[int, Any]:
    """Status and content of a page of the admin HTTP, which is JSON where it says so."""
    url = f"http://127.0.0.1:{running.admin_port}{path}"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if "json" in answer.content_type else text


@contextmanager
def failing(owner, name: str, error: Exception, only=lambda *_: True) -> Iterator[None]:
    """Let a call fail meanwhile: always, or with some arguments only."""
    call = getattr(owner, name)

    def fails(*args, **options):
        if only(*args):
            raise error
        return call(*args, **options)

    setattr(owner, name, fails)
    try:
        yield
    finally:
        setattr(owner, name, call)


async def until(condition, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds, looking at it again each turn of the event loop."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Let the event loop turn so often: whatever needs no thread has happened by then."""
    for _ in range(count):
        await asyncio.sleep(0)
