"""TLS between two protocols, however the bytes between them are cut."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.errors import MemqError, TlsError, UnavailableError
from memq.runtime.tls import TlsFiles, client_context, server_context
from memq.runtime.tls_transport import TlsLayer
from tests.harness.certificates import Certificates


class Wire(asyncio.Transport):
    """A transport that keeps what is written until it is carried over."""

    def __init__(self) -> None:
        super().__init__()
        self.socket: socket.socket | None = None
        self.sent = bytearray()
        self.reading = True
        self.closing = False

    def write(self, data: Any) -> None:
        assert not self.closing
        self.sent += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


class Reader(asyncio.BufferedProtocol):
    """Takes what comes, in buffers of some size, and may pause after each.

    Args:
        size: of its buffers.
        pauses: whether it pauses each time.
    """

    def __init__(self, size: int, *, pauses: bool) -> None:
        self._buffer = memoryview(bytearray(size))
        self._pauses = pauses
        self.received = bytearray()
        self.transport: Any = None
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        if self._pauses:
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """Contexts of a client and a broker that trust each other."""
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    cert, key = certificates.write(certificates.issue())
    return (
        client_context(TlsFiles(ca=certificates.ca)),
        server_context(TlsFiles(cert=cert, key=key), "none"),
    )


class Pair:
    """A client and a broker, and the wires between them."""

    def __init__(self, contexts, size: int = 1 << 16, *, pauses: bool = False) -> None:
        self.failures: list[MemqError] = []
        self.ends: list[MemqError | None] = []  # of handshakes
        self.readers = [Reader(size, pauses=pauses) for _ in range(2)]
        self.wires = [Wire(), Wire()]
        self.layers = [
            TlsLayer(
                context,
                reader,
                ended=self._ended,
                server_name=name,
            )
            for context, reader, name in zip(
                contexts, self.readers, ("localhost", None), strict=True
            )
        ]
        for layer, wire in zip(self.layers, self.wires, strict=True):
            layer.connection_made(wire)

    def _ended(self, _: TlsLayer, error: MemqError | None) -> None:
        self.ends.append(error)
        self.failures += [error] if error else []

    async def carry(self, cut: int = 1 << 20) -> None:
        """Carry bytes over in pieces of at most that size, until all are there."""
        while True:
            moved = False
            for source, target in ((0, 1), (1, 0)):
                wire = self.wires[source]
                while wire.sent and self.wires[target].reading:
                    view = self.layers[target].get_buffer(-1)
                    piece = bytes(wire.sent[: min(cut, len(view))])
                    del wire.sent[: len(piece)]
                    view[: len(piece)] = piece
                    self.layers[target].buffer_updated(len(piece))
                    moved = True
            for reader, layer in zip(self.readers, self.layers, strict=True):
                if reader.transport is not None and layer._paused:
                    layer.resume_reading()
                    moved = True
            await asyncio.sleep(0)
            if not moved:
                return


@given(
    writes=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 70_000)), max_size=12),
    cut=st.sampled_from([1_000, 16_389, 1 << 17]),
    size=st.sampled_from([100, 4_096, 1 << 17]),
    pauses=st.booleans(),
)
def test_what_is_written_is_received(contexts, writes, cut, size, pauses):
    """Both ways, in order, whatever the sizes of writes, pieces and buffers, with pauses or not."""

    async def run() -> None:
        pair = Pair(contexts, size, pauses=pauses)
        await pair.carry(cut)
        sent = [bytearray(), bytearray()]
        for number, (side, count) in enumerate(writes):
            data = bytes([number]) * count
            pair.layers[side].write(data)
            sent[side] += data
            if number % 3 == 0:
                await pair.carry(cut)
        await pair.carry(cut)
        assert [pair.readers[1].received, pair.readers[0].received] == sent
        assert not pair.failures

    asyncio.run(run())


async def test_a_close_tells_the_other_side(contexts) -> None:
    """What was written before it still comes; after it both sides are closed."""
    pair = Pair(contexts)
    await pair.carry()
    pair.layers[0].write(b"last")
    pair.layers[0].close()
    await pair.carry()
    assert pair.readers[1].received == b"last"
    assert all(wire.closing for wire in pair.wires)
    assert not pair.failures


async def test_damaged_bytes_end_an_open_connection(contexts) -> None:
    """The protocol is told once, by a typed error, and what came before it was delivered."""
    pair = Pair(contexts)
    await pair.carry()
    pair.layers[0].write(b"first")
    pair.layers[0].write(b"second")
    pair.wires[0].sent[-1] ^= 1
    await pair.carry()
    assert pair.readers[1].received == b"first"
    (lost,) = pair.readers[1].lost
    assert isinstance(lost, TlsError)
    assert pair.wires[1].closing


@pytest.fixture
def sockets():
    """What one sends, the other has without waiting."""
    sender, receiver = socket.socketpair()
    receiver.setblocking(False)
    with sender, receiver:
        yield sender, receiver


async def test_a_protocol_reads_on_beyond_what_it_was_given(contexts, sockets) -> None:
    """What has come and what the socket holds, in what pieces it likes, while it is paused."""
    pair = Pair(contexts)
    await pair.carry()
    layer, wire = pair.layers[1], pair.wires[0]
    sender, pair.wires[1].socket = sockets
    data = bytes(range(256)) * 300
    pair.layers[0].write(data)
    begun = bytes(wire.sent[:1_000])  # of a record of 16 KiB: there is nothing to give yet
    layer.get_buffer(-1)[: len(begun)] = begun
    layer.buffer_updated(len(begun))
    layer.pause_reading()
    buffer = memoryview(bytearray(len(data) + 1))
    assert not layer.read_into(buffer)
    sender.sendall(wire.sent[1_000:])
    assert layer.read_into(buffer[:70]) == 70
    assert layer.read_into(buffer[70:]) == len(data) - 70
    assert buffer[:-1] == data
    assert not layer.read_into(buffer)
    assert not pair.readers[1].received


@pytest.mark.parametrize("damaged", [False, True])
async def test_an_end_met_by_reading_on_is_told_when_reading_resumes(
    contexts, sockets, damaged
) -> None:
    """Once, and after what came before it."""
    pair = Pair(contexts)
    await pair.carry()
    layer, wire = pair.layers[1], pair.wires[0]
    sender, pair.wires[1].socket = sockets
    layer.pause_reading()
    pair.layers[0].write(b"first")
    pair.layers[0].close()
    wire.sent[-1] ^= damaged
    sender.sendall(wire.sent)
    sender.close()
    buffer = memoryview(bytearray(100))
    assert [layer.read_into(buffer) for _ in range(3)] == [5, 0, 0]
    assert not pair.wires[1].closing
    layer.resume_reading()
    await asyncio.sleep(0)
    assert pair.wires[1].closing
    assert [type(each) for each in pair.readers[1].lost] == [TlsError] * damaged


async def test_bytes_without_data_do_not_keep_a_reader(contexts, monkeypatch) -> None:
    """However many come: the event loop gets its turn."""
    pair = Pair(contexts)
    await pair.carry()
    monkeypatch.setattr(pair.layers[1], "_receive", lambda: True)
    assert not pair.layers[1].read_into(memoryview(bytearray(100)))


async def test_a_connection_that_ends_in_the_handshake_is_a_failure(contexts) -> None:
    """It is told as the end of the handshake: the protocol never heard of a connection."""
    pair = Pair(contexts)
    pair.layers[0].connection_lost(None)
    (failure,) = pair.failures
    assert "closed the connection in the TLS handshake" in str(failure)
    assert isinstance(failure, UnavailableError)  # as one that cannot be reached: it may be back
    assert pair.readers[0].transport is None
    assert not pair.readers[0].lost


async def test_a_handshake_has_a_limit(contexts, monkeypatch) -> None:
    """A side that says nothing does not hold a connection for ever."""
    monkeypatch.setattr("memq.runtime.tls_transport.HANDSHAKE_S", 0.01)
    pair = Pair(contexts)
    async with asyncio.timeout(60):
        while len(pair.failures) < 2:
            await asyncio.sleep(0.001)
    assert all("within 0.01 s" in str(error) for error in pair.failures)
    assert all(wire.closing for wire in pair.wires)


async def test_an_abort_before_it_begins_ends_it_once(contexts) -> None:
    """The socket is closed when it comes, and the end is told once."""
    ends: list[MemqError | None] = []
    layer = TlsLayer(
        contexts[0],
        Reader(100, pauses=False),
        ended=lambda _, error: ends.append(error),
        server_name="localhost",
    )
    layer.abort()
    wire = Wire()
    layer.connection_made(wire)
    layer.connection_lost(None)
    assert wire.closing
    assert not wire.sent
    assert ends == [None]


async def test_tls_that_cannot_send_now_ends_the_connection(contexts, monkeypatch) -> None:
    """As when half a message of TLS's own has come: no error leaves `write`, which timers call."""
    pair = Pair(contexts)
    await pair.carry()

    class Stuck:
        def write(self, _: object) -> int:
            raise ssl.SSLWantReadError

    monkeypatch.setattr(pair.layers[1], "_ssl", Stuck())
    pair.layers[1].write(b"x")
    assert pair.wires[1].closing


def test_threads_share_no_buffer(contexts) -> None:
    """Sockets are read without the interpreter's lock: two event loops may read at once."""

    def buffer() -> memoryview:
        async def made() -> memoryview:
            return Pair(contexts).layers[0].get_buffer(-1)

        return asyncio.run(made())

    with ThreadPoolExecutor(1) as other:
        assert other.submit(buffer).result().obj is not buffer().obj
