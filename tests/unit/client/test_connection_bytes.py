"""A connection over a transport that a test holds: what is written when, and who is told of it."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.connection import (
    JOIN_BYTES,
    MAX_UNSENT,
    SLICE_BYTES,
    BrokerConnection,
    parse_address,
)
from memq.core.wire.connection import SERVER_MAX_HEADER_BYTES, ServerConnection
from memq.core.wire.frame import FrameReader
from memq.core.wire.messages import DeleteTopic, Done
from memq.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    ProtocolError,
    RequestTimeoutError,
    StorageError,
    UnavailableError,
)
from tests.fakes.tiny_broker import write_request
from tests.integration.broker.support import broker as broker_of

TOPIC = DeleteTopic(topic="t")


class Transport(asyncio.Transport):
    """Takes what is written; says stop after each write while it is `slow`."""

    def __init__(self):
        super().__init__()
        self.protocol = None
        self.socket = SimpleNamespace(setsockopt=lambda *_: None)
        self.written = []
        self.slow = False
        self.closing = False
        self.aborted = False

    def get_extra_info(self, name, default=None):
        return self.socket if name == "socket" else default

    def is_closing(self):
        return self.closing

    def write(self, data):
        assert not self.closing
        self.written.append(bytes(data))
        if self.slow:
            self.protocol.pause_writing()

    def abort(self):
        self.closing = self.aborted = True


class Link:
    """A connection that is open, and a broker at its other end."""

    def __init__(self):
        self.wire = ServerConnection(cluster_id="x", broker_id="b", admit=lambda _: ("User:a", 0))
        self.reader = FrameReader(max_header_bytes=SERVER_MAX_HEADER_BYTES, max_body_bytes=64 << 20)
        self.connection = BrokerConnection("a:1")
        self.transport = Transport()
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        (event,) = self.arrived()
        self.give(event.buffers_to_send)
        assert self.connection._handshake.result().cluster_id == "x"

    def arrived(self):
        """What came since the last time."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return [self.wire.receive(frame) for frame in self.reader.feed(data)]

    def give(self, buffers):
        """Have the connection receive something."""
        data = b"".join(bytes(buffer) for buffer in buffers)
        while data:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            self.connection.buffer_updated(count)

    def send(self, header=TOPIC, body=b""):
        """Send a request; the list of its answers, and its id."""
        answers = []
        correlation_id = self.connection.send(
            header, body, None, lambda answer, _: answers.append(answer)
        )
        return answers, correlation_id

    def post(self, body):
        """Send a Message without acks; the list of what is told of it."""
        told = []
        self.connection.post(write_request(0), body, None, told.append)
        return told


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


SIZES = st.sampled_from([0, 1, JOIN_BYTES, JOIN_BYTES + 1, SLICE_BYTES, SLICE_BYTES + 1, 700_000])


@given(
    steps=st.lists(st.one_of(SIZES, st.just("pause"), st.just("resume")), max_size=12),
    end=st.sampled_from(["", "drop", "close", "breaks", "damage"]),
)
def test_every_byte_goes_in_order_and_everybody_is_told_once(steps, end):
    """However the transport stops and goes on, and however the connection ends."""

    async def run():
        link = Link()
        told, bodies = [], []
        for number, step in enumerate(steps):
            if step == "pause":
                link.connection.pause_writing()
            elif step == "resume":
                link.connection.resume_writing()
            else:
                bodies.append(bytes([number]) * step)
                told.append(
                    link.post(bodies[-1])
                    if number % 2
                    else link.send(write_request(), bodies[-1])[0]
                )
        if end == "":
            link.connection.resume_writing()
        elif end == "drop":
            link.connection.drop("it is silent")
        elif end == "breaks":  # the transport knows it before the connection does
            link.transport.closing = True
            told.append(link.send(write_request(), b"late")[0])
            link.connection.connection_lost(OSError("reset"))
        elif end == "close":
            closing = asyncio.ensure_future(link.connection.close())
            await turns()
            assert not closing.done()
        else:
            link.give([b"MEMQ of another kind, or so it seems, and long enough for a head"])
        arrived = link.arrived()
        await turns()
        link.connection.resume_writing()
        link.connection.connection_lost(None)
        await turns()
        assert link.transport.written == []
        assert [bytes(event.body) for event in arrived] == bodies[: len(arrived)]
        assert all(len(each) == 1 for each in told)
        if end == "":
            assert len(arrived) == len(bodies)
        for number, outcome in enumerate(each[0] for each in told):
            if outcome is not None:
                expected = ClosedError if end == "close" else UnavailableError
                assert type(outcome) is expected
            else:
                assert number < len(arrived) or end == ""
        assert link.transport.aborted
        assert link.connection.closed
        assert (link.connection.unsent_bytes, len(link.connection._pending)) == (0, 0)
        if end == "close":
            await closing

    asyncio.run(run())


async def test_a_broker_that_does_not_read_is_given_no_more():
    """Beyond a bound nothing is taken, until it reads again."""
    link = Link()
    link.connection.pause_writing()
    told = [link.post(b"x") for _ in range(MAX_UNSENT)]
    for send in (link.send, lambda: link.post(b"x")):
        with pytest.raises(UnavailableError, match="does not read"):
            send()
    assert link.connection._pending == {}
    link.connection.resume_writing()
    link.send()
    await turns()
    assert told == [[None]] * MAX_UNSENT
    assert len(link.arrived()) == MAX_UNSENT + 1


@pytest.mark.parametrize("kind", ["timeout", "cancelled", "answered", "failed"])
async def test_a_request_leaves_nothing_pending(kind):
    """However it ends, its callback is gone, and what comes later does no harm."""
    link = Link()
    request = asyncio.ensure_future(
        link.connection.request(TOPIC, timeout_s=0.01 if kind == "timeout" else 60)
    )
    await turns()
    (event,) = link.arrived()
    if kind == "timeout":
        with pytest.raises(RequestTimeoutError):
            await request
    elif kind == "cancelled":
        link.give(link.wire.answer(event.correlation_id, Done()))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    elif kind == "answered":
        link.give(link.wire.answer(event.correlation_id, Done()))
        assert await request == (Done(), b"")
    else:
        link.give(link.wire.fail(event.correlation_id, StorageError("slow")))
        with pytest.raises(StorageError):
            await request
    assert link.connection._pending == {}
    if kind == "timeout":
        link.give(link.wire.answer(event.correlation_id, Done()))
    assert link.connection._wire.in_flight == 0
    assert not link.connection.closed


async def test_a_goodbye_is_the_reason_of_the_end():
    """Who waits can send again; the cause says what the broker had to say."""
    link = Link()
    (told, _) = link.send()
    link.give(link.wire.goodbye(CorruptDataError("bits")))
    await turns()
    assert [(type(each), type(each.__cause__)) for each in told] == [
        (UnavailableError, CorruptDataError)
    ]
    assert str(told[0].__cause__) == "broker a:1: bits"


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("too late", UnavailableError),
        ("cancelled", asyncio.CancelledError),
        ("no broker", ProtocolError),
    ],
)
async def test_an_attempt_to_open_that_fails_leaves_no_socket(how, kind):
    """The peer sees the end of the connection."""
    asked, lost = asyncio.Event(), asyncio.Event()

    class Peer(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            asked.set()
            if how == "no broker":
                self.transport.write(b"SSH-2.0-OpenSSH_9.6" + bytes(100))

        def connection_lost(self, exc):
            lost.set()

    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1")
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    timeout_s = 0.05 if how == "too late" else 60
    opening = asyncio.ensure_future(BrokerConnection.open(address, connect_timeout_s=timeout_s))
    await asked.wait()
    if how == "cancelled":
        opening.cancel()
    with pytest.raises(kind):
        await opening
    async with asyncio.timeout(20):
        await lost.wait()
    server.close()


# -- addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "expected"),
    [("broker-1:6367", ("broker-1", 6367)), (" [::1]:80 ", ("::1", 80))],
)
def test_addresses_are_host_and_port(address, expected):
    """Names, numbers and bracketed IPv6 are addresses."""
    assert parse_address(address) == expected


@pytest.mark.parametrize("port", ["", ":", ":x", ":0", ":65536", ":\u00b2"])
def test_a_port_that_is_none_is_refused(port):
    """The error shows what was given and what an address looks like."""
    with pytest.raises(ConfigError, match="broker-1:6367"):
        parse_address(f"broker{port}")


@pytest.mark.parametrize("host", ["", "a" * 64, "a..b", "ä" * 70, ".", "a\0b"])
async def test_a_host_that_can_be_no_name_is_refused(tmp_path, host):
    """Resolvers raise for it what is no error of a connection; so do servers that are to listen."""
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(f"{host}:6367")
    if host:
        with pytest.raises(UnavailableError, match="cannot listen on"):
            async with broker_of(tmp_path, host=host, insecure="true"):
                pass
