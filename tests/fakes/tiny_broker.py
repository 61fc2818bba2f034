"""A broker in a few lines over real sockets: it keeps Messages in memory and misbehaves on demand.

It checks what the real one checks of a Write (CRC, identity, order) and dedups by name, so that
tests can compare what was acked with what is `published`.
"""

import asyncio
from collections import defaultdict, deque
from contextlib import asynccontextmanager, suppress

from memq.core.format.message import decode_message, open_message
from memq.core.format.schema import DEFAULT_SCHEMA, deserialize_schema, schema_id, serialize_schema
from memq.core.topic import TopicConfig
from memq.core.wire.connection import HandshakeReceived, Refused, ServerConnection
from memq.core.wire.frame import FrameReader
from memq.core.wire.messages import (
    BrokerInfo,
    Metadata,
    MetadataAnswer,
    TopicInfo,
    Write,
    WriteAnswer,
)
from memq.errors import MemqError, SequenceGapError, UnauthorizedError, UnknownTopicError


def write_request(acks=-1, topic="events"):
    """The header of a Write of one record."""
    return Write(
        topic=topic,
        write_partition=0,
        producer_id="p",
        epoch=0,
        sequence=0,
        first_unsettled=0,
        acks=acks,
        schema_id="s",
        records=1,
        min_timestamp_us=0,
        max_timestamp_us=0,
    )


class Published:
    """One Message as the broker took it."""

    def __init__(self, request, body, crc, offset):
        self.request = request
        self.body = bytes(body)
        self.crc = crc
        self.offset = offset


class TinyBroker:
    """Start it with `async with TinyBroker().serve()`; see the attributes for how it misbehaves.

    Attributes:
        faults: outcomes of the next Writes: an error to answer with, "drop" to cut the connection
            before, "drop after" to publish and then cut it, "ignore" to never answer.
        hold: while set, Writes are published but answered only by `release`.
        answers: what other requests are answered with, by type: an answer, an error, or a function
            of the request that gives one. What has none is never answered.
        asked: those requests, as they came.
        hosts: address by write partition; None where all is here.
        topic_id: of the topics.
        queue_address: of the topics; None where it is here.
        coordinators: of topics whose `queue_address` is another one.
        brokers: what Metadata tells of the brokers; None for this one alone.
        frozen: while set, nothing is answered and nobody welcomed.
        version: of the topics, for Metadata that waits; `change` ends the wait.
        zones: that clients have named, as they came.
        published: Messages by (write partition, producer id, epoch, sequence), in order.
    """

    def __init__(self, *, token="", max_body_bytes=64 << 20, **options):
        self.token = token
        self.max_body_bytes = max_body_bytes
        self.faults = deque()
        self.hold = False
        self.held = []
        self.answers = {}
        self.asked = []
        self.queue_address = None
        self.coordinators = {}
        self.brokers = None
        self.frozen = False
        self.version = ""
        self.zones = []
        self._waiting = []
        self.published = {}
        self.writes = 0
        self.metadata_requests = 0
        self.topics = {}
        self.connections = set()
        self.address = ""
        self.hosts = None
        self.topic_id = "0" * 16
        self._expected = defaultdict(int)
        self._server = None
        self._changed = None
        self.add_topic("events", **options)

    def add_topic(self, name, schema=DEFAULT_SCHEMA, **options):
        options = {"audited": False} | options
        self.topics[name] = (TopicConfig.create(name, **options), serialize_schema(schema))

    @asynccontextmanager
    async def serve(self, port=0):
        await self.start(port)
        try:
            yield self
        finally:
            await self.stop()

    async def start(self, port=0):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self):
        self._server.close()
        self.cut()
        self._waiting.clear()
        await asyncio.gather(*(connection.lost for connection in self.connections))

    def cut(self):
        """Break every connection."""
        for connection in list(self.connections):
            connection.transport.abort()

    async def until(self, condition, timeout_s=20):
        """Wait for the Write that makes a condition true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed = asyncio.get_running_loop().create_future()
                await self._changed

    def change(self, version):
        """Tell who waits for it that the topics have changed."""
        self.version = version
        waiting, self._waiting = self._waiting, []
        for connection, event in waiting:
            connection.reply(event.correlation_id, self.metadata(event.header))

    def wait(self, connection, event):
        """Keep a Metadata request until `change`."""
        self._waiting.append((connection, event))
        self.note_change()

    @property
    def waiting(self):
        """Metadata requests that wait."""
        return len(self._waiting)

    def count(self, kind):
        """How often a request of that type came."""
        return sum(isinstance(request, kind) for request in self.asked)

    def note_change(self):
        """A request was dealt with."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def release(self):
        """Answer the Writes that are held."""
        self.hold = False
        held, self.held = self.held, []
        for connection, correlation_id, answer in held:
            connection.reply(correlation_id, answer)

    def tables(self, topic="events"):
        """Rows of every Message, in the order of publishing."""
        schema = deserialize_schema(self.topics[topic][1])
        return [decode_message(entry.body, schema) for entry in self.published.values()]

    def metadata(self, request):
        self.metadata_requests += 1
        names = list(self.topics) if request.topics is None else request.topics
        missing = [name for name in names if name not in self.topics]
        if missing:
            raise UnknownTopicError(f"topic {missing[0]!r} does not exist")
        return MetadataAnswer(
            cluster_id="tiny",
            brokers=self.brokers or [BrokerInfo(id="b0", address=self.address)],
            topics=[self._info(name) for name in names],
            version=self.version,
        )

    def write(self, request, body, crc):
        """Publish once; returns the answer."""
        _, schema = self.topics[request.topic]
        batch = open_message(body, deserialize_schema(schema))
        assert batch.num_rows == request.records
        assert request.first_unsettled <= request.sequence
        key = (request.write_partition, request.producer_id, request.epoch, request.sequence)
        duplicate = key in self.published
        if duplicate:
            assert self.published[key].crc == crc, "a retry must send the same bytes"
        else:
            self._check_order(key, request)
            offset = len(self.published)
            self.published[key] = Published(request, body, crc, offset)
        offset = self.published[key].offset
        if request.acks == 1:
            return WriteAnswer(duplicate=duplicate)
        return WriteAnswer(
            partition=0, offset=offset, batch_id=f"batch-{offset}", duplicate=duplicate
        )

    def _check_order(self, key, request):
        if self.topics[request.topic][0].ordering != "producer":
            return
        expected = max(self._expected[key[:3]], request.first_unsettled)
        if request.sequence != expected:
            raise SequenceGapError(f"got {request.sequence}, expected {expected}")
        self._expected[key[:3]] = expected + 1

    def _info(self, name):
        config, schema = self.topics[name]
        return TopicInfo(
            config=config,
            topic_id=self.topic_id,
            schemas={schema_id(schema): schema},
            schema_id=schema_id(schema),
            hosts=self.hosts or [self.address] * config.write_partitions,
            named_partitions=config.write_partitions,
            queue_address=self.coordinators.get(
                name, self.address if self.queue_address is None else self.queue_address
            ),
        )


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, broker):
        self.broker = broker
        self.wire = ServerConnection(
            cluster_id="tiny",
            broker_id="b0",
            admit=self.admit,
            max_body_bytes=broker.max_body_bytes,
        )
        self.reader = FrameReader(max_header_bytes=64 << 10, max_body_bytes=broker.max_body_bytes)

    def admit(self, asked):
        if asked.token != self.broker.token:
            raise UnauthorizedError("not this token")
        return "User:anonymous", 0

    def connection_made(self, transport):
        self.transport = transport
        self.lost = asyncio.get_running_loop().create_future()
        self.broker.connections.add(self)

    def connection_lost(self, exc):
        self.broker.connections.discard(self)
        self.lost.set_result(None)

    def get_buffer(self, sizehint):
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes):
        try:
            for frame in self.reader.buffer_updated(nbytes):
                if not self.transport.is_closing():
                    self._handle(self.wire.receive(frame))
        except MemqError as exc:
            self._send(self.wire.goodbye(exc))
            self.transport.close()

    def reply(self, correlation_id, answer):
        if self.transport.is_closing():
            return
        if isinstance(answer, MemqError):
            self._send(self.wire.fail(correlation_id, answer))
        else:
            self._send(self.wire.answer(correlation_id, answer))

    def _handle(self, event):
        if self.broker.frozen:
            return
        if isinstance(event, HandshakeReceived):
            self.broker.zones.append(event.zone)
        if isinstance(event, HandshakeReceived | Refused):
            self._send(event.buffers_to_send)
        elif isinstance(event.header, Metadata) and self._must_wait(event.header):
            self.broker.wait(self, event)
        elif isinstance(event.header, Metadata):
            try:
                self.reply(event.correlation_id, self.broker.metadata(event.header))
            except MemqError as exc:
                self.reply(event.correlation_id, exc)
        elif isinstance(event.header, Write):
            self._write(event)
        else:
            self._answer(event)

    def _must_wait(self, request):
        return request.max_wait_ms > 0 and request.known == self.broker.version

    def _answer(self, event):
        broker, request = self.broker, event.header
        broker.asked.append(request)
        answer = broker.answers.get(type(request))
        if callable(answer):
            answer = answer(request)
        if answer is not None:
            self.reply(event.correlation_id, answer)
        broker.note_change()

    def _write(self, event):
        broker = self.broker
        broker.writes += 1
        fault = broker.faults.popleft() if broker.faults else None
        if fault == "drop":
            self.transport.abort()
            return
        if fault == "ignore":
            return
        answer = fault
        if not isinstance(fault, MemqError):
            try:
                answer = broker.write(event.header, event.body, event.body_crc)
            except MemqError as exc:
                answer = exc
        if fault == "drop after":
            self.transport.abort()
        elif broker.hold:
            broker.held.append((self, event.correlation_id, answer))
        elif not event.oneway:
            self.reply(event.correlation_id, answer)
        broker.note_change()

    def _send(self, buffers):
        with suppress(RuntimeError):
            self.transport.writelines(buffers)
