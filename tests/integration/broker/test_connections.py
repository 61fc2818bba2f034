"""One connection of a broker, with a transport and a clock that the test moves."""

import asyncio
import itertools
import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import pytest

from memq.broker.connection import MAX_REQUESTS, MIN_RATE_BYTES_S
from memq.broker.fair_queuing import ClientFlows
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.core.wire.connection import ClientConnection
from memq.core.wire.frame import PREFIX_BYTES, FrameReader, encode_frame
from memq.errors import UnavailableError
from tests.integration.broker.support import Client, GatedStorage, broker, client, turns, until

CALM = {"stall_timeout": "10m", "handshake_timeout": "10m"}


class Transport(asyncio.Transport):
    """What a connection writes to, and stops reading from; a pair of sockets is below it."""

    def __init__(self) -> None:
        super().__init__()
        self.sock, self.other = socket.socketpair()
        self.sock.setblocking(False)
        self.sent = bytearray()
        self.unsent = 0
        self.reading, self.closing, self.aborted = True, False, False
        self.written = lambda: None

    def get_extra_info(self, name, default=None):
        return {"socket": self, "peername": ("10.0.0.1", 7)}.get(name, default)

    def fileno(self):
        return self.sock.fileno()

    def setsockopt(self, *_):
        pass

    def set_write_buffer_limits(self, high=None, low=None):
        assert high == 0

    def get_write_buffer_size(self):
        return self.unsent

    def write(self, data):
        assert not self.closing
        self.sent += data
        self.written()

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.aborted = True


class Peer:
    """A connection of a broker, and the client at its other end."""

    def __init__(self, b) -> None:
        self.broker = b
        self.it = b.connections.accept()
        self.transport = Transport()
        self.wire = ClientConnection("peer")
        self._frames = FrameReader(max_header_bytes=1 << 20, max_body_bytes=1 << 30)
        self._messages = Client(None)
        self.it.connection_made(self.transport)

    def receive(self, data) -> None:
        """Let bytes come."""
        data = memoryview(data)
        while data:
            buffer = self.it.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.it.buffer_updated(count)
            data = data[count:]

    async def shake_hands(self) -> None:
        self.receive(b"".join(self.wire.open()))
        await self.told(0)
        if "t" in self.broker.topics.names():
            self._messages.schema_id = self.broker.topics.get("t").topic.schema_id

    async def told(self, count: int) -> list[object]:
        """Answers, once there are so many; the handshake is taken along."""
        found: list[object] = []
        async with asyncio.timeout(60):
            while True:
                frames = self._frames.feed(bytes(self.transport.sent))
                found += [self.wire.receive(frame) for frame in frames]
                self.transport.sent.clear()
                if len(found) >= count and (count or found):
                    return found
                await asyncio.sleep(0)

    def ask(self, request, body=b"") -> bytes:
        return b"".join(map(bytes, self.wire.request(request, body)[1]))

    def write(self, sequence, *values, **fields) -> bytes:
        return self.ask(*self._messages.message(sequence, *values, **fields))

    def lost(self) -> None:
        self.it.connection_lost(None)
        self.transport.sock.close()
        self.transport.other.close()


@asynccontextmanager
async def peers(tmp_path, count=1, **options):
    """Connections of a broker with topic `t`; they are lost in the end, and leave nothing."""
    async with broker(tmp_path, **(CALM | options)) as b:
        await b.topics.create(TopicConfig.create("t", batch_age="1ms"))
        found = [Peer(b) for _ in range(count)]
        yield found
        for peer in found:
            if peer.it._transport is not None:
                peer.lost()
        await until(lambda: b.context.memory.used_bytes == b.context.scheduler.used_bytes == 0)
        assert len(b.connections) == 0
        assert not b.context.fatal_errors.failure.done()


async def test_answers_are_unread_when_none_leaves_or_they_drip(tmp_path) -> None:
    """From the last byte that was taken; and from the first wait, less what was taken since."""
    async with peers(tmp_path) as (peer,):
        await peer.shake_hands()
        it, transport = peer.it, peer.transport
        assert it.unread_s(it._loop.time() + 1_000) == 0
        transport.unsent = 10 * MIN_RATE_BYTES_S
        it.pause_writing()
        start_s = it._unread_since_s
        assert it.unread_s(start_s + 2) == 2
        assert it.unread_s(start_s + 5) == 5
        transport.unsent -= 3 * MIN_RATE_BYTES_S
        assert it.unread_s(start_s + 6) == 3, "3 s worth of 6 s was taken"
        transport.unsent -= 4 * MIN_RATE_BYTES_S
        assert it.unread_s(start_s + 7) == 0
        assert it.unread_s(start_s + 9) == 2
        transport.unsent += 100 * MIN_RATE_BYTES_S
        assert it.unread_s(start_s + 10) == 3, "what was sent meanwhile is not taken"
        transport.unsent -= MIN_RATE_BYTES_S
        assert it.unread_s(start_s + 11) == 3
        it.resume_writing()
        assert it.unread_s(start_s + 1_000) == 0
        it.pause_writing()
        assert it.unread_s(it._unread_since_s + 1) == 1, "it begins anew"
        transport.unsent -= MIN_RATE_BYTES_S
        assert it.unread_s(it._unread_since_s + 5) == 4, "what was taken before counts no more"
        peer.receive(peer.ask(m.Metadata(topics=["t"])))
        await turns()
        assert not transport.sent, "nothing is served that would not be read"
        it.resume_writing()
        await peer.told(1)


async def test_a_connection_is_read_when_nothing_speaks_against_it(tmp_path) -> None:
    """Whatever reasons come and go in whatever order, reading stops with the first one only."""
    async with peers(tmp_path) as (peer,):
        await peer.shake_hands()
        it, memory = peer.it, peer.broker.context.memory
        room = memory.limit_bytes

        def produce(full):
            (memory.admit if full else memory.release)(room)

        def switch(name, value):
            setattr(it, name, value)
            it._update_reading()

        switches = {
            "held": (it.hold, it.unhold),
            "held again": (it.hold, it.unhold),
            "unread": (it.pause_writing, it.resume_writing),
            "full": (lambda: produce(True), lambda: produce(False)),
            "resting": (lambda: switch("_rest", 1), it._rest_on),
            "crowded": (lambda: switch("_crowded", True), lambda: switch("_crowded", False)),
        }
        it._produces = True
        for order in itertools.permutations(switches):
            for count, name in enumerate(order):
                assert peer.transport.reading == (count == 0)
                switches[name][0]()
            assert not peer.transport.reading
            for count, name in enumerate(order[2:] + order[:2], 1):
                switches[name][1]()
                assert peer.transport.reading == (count == len(order))
        it._produces = False
        produce(True)
        assert peer.transport.reading, "it only asks"
        it._produces, it._incomplete_bytes = True, 5
        it.throttle()
        assert peer.transport.reading, "a body that has begun is read to its end"
        it._incomplete_bytes = 0
        it.throttle()
        assert not peer.transport.reading
        produce(False)
        assert peer.transport.reading


async def test_who_begins_to_produce_when_memory_is_full_is_told_so(tmp_path) -> None:
    """A small Message is refused and the connection lives; before a large one it is closed."""
    async with peers(tmp_path, 3) as (small, large, known):
        b = small.broker
        for peer in (small, large, known):
            await peer.shake_hands()
        known.receive(known.write(0))
        await known.told(1)
        memory = b.context.memory
        used = memory.limit_bytes
        memory.admit(used)
        small.receive(small.write(0, producer_id="small"))
        (told,) = await small.told(1)
        assert "are full" in str(told)
        small.receive(small.ask(m.Metadata(topics=["t"])))
        await small.told(1)
        large.receive(large.write(0, bytes(400_000), producer_id="large")[:200_000])
        assert large.transport.closing
        assert b"are full" in large.transport.sent
        assert memory.used_bytes == used
        for sequence, size in ((1, 8), (2, 400_000)):  # they came before reading could stop
            known.receive(known.write(sequence, bytes(size)))
            (told,) = await known.told(1)
            assert told.header.offset == sequence
            assert memory.used_bytes == used
        memory.release(used)
        small.receive(small.write(0, producer_id="small"))
        (told,) = await small.told(1)
        assert told.header.offset == 3


@pytest.mark.parametrize("short", [False, True])
async def test_who_takes_too_long_is_closed(tmp_path, short) -> None:
    """By its handshake, its frame or its answers; sooner where memory for these is short."""
    options = {"stall_timeout": "10m", "handshake_timeout": "5m"}
    async with peers(tmp_path, 4, **options) as (silent, stalled, deaf, good):
        b, now_s = good.broker, asyncio.get_running_loop().time()
        for peer in (stalled, deaf, good):
            await peer.shake_hands()
        stalled.receive(stalled.write(0, bytes(400_000))[:200_000])
        deaf.it.pause_writing()
        memory, scheduler, flows = b.context.memory, b.context.scheduler, ClientFlows()
        if short:
            memory.admit(memory.limit_bytes)
            scheduler.charge(flows, scheduler.limit_bytes)
            good.receive(good.ask(m.ListGroups()))
            await until(lambda: scheduler.full)
        for seconds in (55, 305, 595):
            b.connections.sweep(now_s + seconds)
            closed = [each.transport.closing for each in (silent, stalled, deaf, good)]
            late = short and seconds > 60
            assert closed == [seconds > 300, late, late, False]
        b.connections.sweep(now_s + 660)
        assert [each.transport.closing for each in (stalled, deaf, good)] == [True, True, False]
        for reason in ("handshake_timeout", "stalled", "unread"):
            assert b.context.metrics.connections_closed.labels(reason)._value.get() == 1
        if short:
            memory.release(memory.limit_bytes)
            scheduler.charge(flows, -scheduler.limit_bytes)


BAD_FIRST_FRAMES = [
    b"GET / HTTP/1.1\r\n\r\n" + bytes(32),
    b"".join(encode_frame(2, 1, b"\x80")),
    b"".join(encode_frame(1, 1, b"\x80", b"body before the handshake")),
    b"".join(encode_frame(1, 1, b"\x81\xa8versions\xa1x")),
]


async def test_a_bad_first_frame_closes_the_connection_with_a_reason(tmp_path) -> None:
    """Whatever is wrong with it, the client is told and cut off."""
    async with peers(tmp_path, len(BAD_FIRST_FRAMES)) as found:
        for peer, frame in zip(found, BAD_FIRST_FRAMES, strict=True):
            peer.receive(frame)
            assert peer.transport.closing
            assert len(peer.transport.sent) > PREFIX_BYTES


async def test_who_comes_when_there_are_too_many_is_turned_away(tmp_path) -> None:
    """Those stay who have said who they are; when one of them has gone there is room again."""
    async with peers(tmp_path, 2, max_connections=2) as found:
        b = found[0].broker
        for peer in found:
            await peer.shake_hands()
        one_more = Peer(b)
        assert [each.transport.closing for each in (*found, one_more)] == [False, False, True]
        assert b"most of 2 clients" in one_more.transport.sent
        one_more.lost()
        found[0].lost()
        another = Peer(b)
        assert not another.transport.closing
        another.lost()


async def test_a_crowded_connection_is_read_again_when_half_of_it_is_begun(tmp_path) -> None:
    """Requests are begun in the order in which they came, as many at a time as there may be."""
    async with peers(tmp_path) as (peer,):
        await peer.shake_hands()
        it, served, gates = peer.it, [], []

        async def news(request):
            served.append(request.after)
            gate = asyncio.Event()
            gates.append(gate)
            await gate.wait()

        it._handlers = SimpleNamespace(
            news=news, answer_bytes=lambda _: 0, serve=peer.broker.handlers.serve
        )
        for number in range(MAX_REQUESTS):
            assert peer.transport.reading
            peer.receive(peer.ask(m.Metadata(after=f"{number:04}")))
        await until(lambda: len(gates) == MAX_REQUESTS)
        for left in range(MAX_REQUESTS - 1, MAX_REQUESTS // 2 - 1, -1):
            assert not peer.transport.reading
            gates.pop(0).set()
            await until(lambda want=left: len(it._tasks) == want)
        assert peer.transport.reading
        for gate in gates:
            gate.set()
        await until(lambda: not it._tasks)
        assert served == [f"{number:04}" for number in range(MAX_REQUESTS)]


async def test_a_large_answer_is_not_cut_by_small_ones_or_a_goodbye(tmp_path) -> None:
    """What is sent while slices of it wait comes after it; when it is cut off, nothing follows."""
    async with peers(tmp_path) as (peer,):
        await peer.shake_hands()
        it, transport = peer.it, peer.transport
        body = bytes(range(256)) * 4_096
        transport.written = it.pause_writing  # as a transport does that cannot send at once
        sending = asyncio.ensure_future(it._send_large([b"head", body]))
        await turns()
        it.send([b"small"])
        await turns()
        assert transport.sent == b"head"
        while transport.sent != b"head" + body:
            it.resume_writing()
            await turns()
            assert (b"head" + body).startswith(transport.sent)
        assert not sending.done(), "the last of it has not left"
        it.resume_writing()
        await sending
        assert transport.sent == b"head" + body + b"small"
        transport.sent.clear()
        it.resume_writing()
        sending = asyncio.ensure_future(it._send_large([body, body]))
        await turns()
        it.end("why", UnavailableError("the reason"))
        assert 0 < len(transport.sent) < len(body)
        assert body.startswith(transport.sent)
        sent = bytes(transport.sent)
        peer.lost()
        await sending
        assert transport.sent == sent


MESSAGE = b"x" * 300_000  # several reads, and some of them straight into the body's memory


@pytest.mark.parametrize(
    ("own", "zone", "crosses"),
    [("a", "b", True), ("a", "a", False), ("a", "", False), ("", "b", False)],
)
async def test_bytes_that_cross_zones(tmp_path, own, zone, crosses):
    """Bytes count as crossing where broker and client name different zones, in both directions."""
    async with broker(tmp_path, zone=own) as b, client(b, zone=zone) as c:
        metrics = b.context.metrics
        await c.create()
        await c.write(0, MESSAGE)
        (received, sent), crossed = (
            [traffic.received, traffic.sent]
            for traffic in (metrics.traffic, metrics.traffic_across_zones)
        )
        assert received > len(MESSAGE) > sent > 0
        assert f'memq_network_bytes_total{{direction="in"}} {received}.0' in str(metrics.render())
        if crosses:  # but for the handshake
            assert received > crossed[0] > len(MESSAGE)
            assert sent >= crossed[1] > 0
        else:
            assert crossed == [0, 0]


async def test_memory_stays_within_its_bound_while_storage_stands_still(tmp_path) -> None:
    """Producers that send far more than the bound are slowed by TCP; the bound is never passed."""
    storage = GatedStorage()
    bound, message = 8 << 20, 256 << 10
    options = {"memory_bytes": "8MiB", "park_timeout": "1m"}
    async with broker(tmp_path, storage=storage, **options) as b, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(b)) for _ in range(8)]
        topic = await clients[0].create(ring_slots=64, batch_bytes="1MiB", message_bytes="1MiB")
        for number, c in enumerate(clients):  # who begins when memory is full is turned away
            c.schema_id = topic.schema_id
            await c.write(0, producer_id=f"p{number}")
        storage.gate.clear()
        value = os.urandom(message - 1024)
        writes = [
            asyncio.ensure_future(c.write(sequence, value, producer_id=f"p{number}"))
            for number, c in enumerate(clients)
            for sequence in range(1, 17)
        ]
        await until(lambda: b.context.memory.full)
        async with client(b) as other:
            await other.ask(m.Metadata(topics=["t"]))
        assert b.context.memory.used_bytes <= bound + 8 * message
        storage.gate.set()
        assert len(await asyncio.gather(*writes)) == 8 * 16
        assert b.context.memory.peak_bytes <= bound + 8 * message
        assert b.context.memory.used_bytes == 0


async def test_both_ends_probe_a_silent_connection(tmp_path) -> None:
    """So the kernel notices that the other machine is gone."""
    async with broker(tmp_path) as b, client(b) as c:
        (served,) = b.connections._open
        for each in (served, c.connection):
            sock = each._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
