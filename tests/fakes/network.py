"""A network in memory: TCP between the processes of a simulation, as asyncio shows it.

Bytes of one direction come in their order and whole, after random delays; what a network loses
only comes later, as TCP sends it again. So all that can happen to a connection is: it is slow, it
comes in other pieces than it was sent in, it is *reset* (behind any byte, in the middle of a frame
too), it is *cut* and nothing comes through for a while, or the other end *vanishes* without a word,
as a machine does whose power fails. Kernels hold some bytes of each direction. When the reader does
not read, they fill up, and then the transport of the writer, which tells its protocol to pause.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.fakes.loop import ProcessLoop, Timeline

RECEIVE_BYTES = 256 << 10  # most that one read gives to a protocol, as asyncio does
KERNEL_BYTES = (16 << 10, 4 << 20)  # what two kernels hold of one direction, least and most
SILENCE_US = 30_000_000  # sent bytes that nobody confirms break a connection that asks for it,
DEFAULT_SILENCE_US = 900_000_000  # and any other one much later


class Network:
    """Machines by address, who listens where, and how long bytes take.

    Args:
        timeline: the time.
        rng: for delays and pieces.

    Attributes:
        delay_us: least and most that a packet takes; most of them take little.
        choppy: how often bytes come in other pieces than they were sent.
        counts: how often what happened.
    """

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.delay_us = (50, 5_000)
        self.choppy = 0.05
        self._up: set[str] = set()
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._next_port = 40_000
        self._ends: dict[SimTransport, None] = {}
        self._cuts: dict[frozenset[str], int] = {}  # pairs of machines, until when

    # -- machines ---------------------------------------------------------------------------

    def packet_us(self) -> int:
        """How long one packet takes."""
        least, most = self.delay_us
        return int(least * (most / least) ** (self.rng.random() ** 2))

    def reachable_us(self, one: str, other: str) -> int:
        """When packets between two machines come through again; now, if nothing is cut."""
        return self._cuts.get(frozenset((one, other)), 0)

    def cut(self, one: str, other: str, duration_us: int) -> None:
        """Let nothing come through between two machines for a time."""
        until_us = self.timeline.now_us + duration_us
        pair = frozenset((one, other))
        self._cuts[pair] = max(until_us, self._cuts.get(pair, 0))
        for end in list(self._ends):
            if frozenset((end.machine, end.remote)) == pair:
                end.silent_until(until_us)

    def reset(self, one: str, other: str) -> int:
        """Reset the connections between two machines, behind whatever has come so far."""
        found = [
            end for end in self._ends if (end.machine, end.remote) == (one, other) and end.open
        ]
        for end in found:
            end.reset()
            if end.peer is not None:
                end.peer.reset()
        return len(found)

    def kill(self, loop: ProcessLoop) -> None:
        """A process is gone; the kernel of its machine closes what it had open."""
        for end in [end for end in self._ends if end.loop is loop]:
            end.killed()
        self._forget(loop)

    def vanish(self, loop: ProcessLoop) -> None:
        """A machine is gone; nobody says anything to the other ends until it is back."""
        for end in [end for end in self._ends if end.loop is loop]:
            end.vanished()
        self._forget(loop)

    def _forget(self, loop: ProcessLoop) -> None:
        for address in [each for each, server in self._listeners.items() if server.loop is loop]:
            del self._listeners[address]

    def returned(self, machine: str) -> None:
        """A machine is up again, and answers with a reset to connections that it never had."""
        for end in list(self._ends):
            if end.remote == machine and end.alone:
                self.timeline.after(int(self.rng.uniform(1e5, 1.5e7)), end.reset)

    # -- connections ------------------------------------------------------------------------

    def listen(self, server: SimServer, host: str, port: int) -> int:
        if port == 0:
            port = self._port()
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is taken")
        self._listeners[host, port] = server
        return port

    def unlisten(self, server: SimServer) -> None:
        for address in [each for each, found in self._listeners.items() if found is server]:
            del self._listeners[address]

    def dial(
        self, loop: ProcessLoop, machine: str, host: str, port: int, outcome: asyncio.Future[Any]
    ) -> None:
        """Begin to connect; the outcome is an end of the connection, or an OSError."""
        sent_us = max(self.timeline.now_us, self._heard_us(machine, host)) + self.packet_us()
        self.timeline.at(sent_us, self._arrived, loop, machine, host, port, outcome)

    def _heard_us(self, machine: str, host: str) -> int:
        until_us = self.reachable_us(machine, host)
        if until_us <= self.timeline.now_us:
            return 0
        return until_us + int(self.rng.uniform(0, 1e6))  # until the next try of the kernel

    def _arrived(
        self, loop: ProcessLoop, machine: str, host: str, port: int, outcome: asyncio.Future[Any]
    ) -> None:
        if not loop.alive or outcome.done():
            return
        back_us = max(self.timeline.now_us, self.reachable_us(machine, host)) + self.packet_us()
        server = self._listeners.get((host, port))
        if server is None:
            if host in self._up:  # the machine is up, but nobody listens
                refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")
                self.timeline.at(back_us, _settle, loop, outcome, refused)
            else:
                self.timeline.after(1_000_000, self._arrived, loop, machine, host, port, outcome)
            return
        if not server.serving:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")
            self.timeline.at(back_us, _settle, loop, outcome, refused)
            return
        here, there = (machine, self._port()), (host, port)
        client = SimTransport(self, loop, machine, host, address=here, peer_address=there)
        theirs = SimTransport(self, server.loop, host, machine, address=there, peer_address=here)
        client.peer, theirs.peer = theirs, client
        self._ends[client] = self._ends[theirs] = None
        server.loop.call_soon(server.accept, theirs)
        self.timeline.at(back_us, _settle, loop, outcome, client)

    def up(self, machine: str) -> None:
        """A machine has an operating system that answers from now on."""
        self._up.add(machine)

    def down(self, machine: str) -> None:
        """It has none."""
        self._up.discard(machine)

    def mend(self) -> None:
        """Nothing is cut any more; what was held up comes when it would have come."""
        self._cuts.clear()

    def gone(self, end: SimTransport) -> None:
        self._ends.pop(end, None)

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port


def _settle(loop: ProcessLoop, outcome: asyncio.Future[Any], value: Any) -> None:
    def settle() -> None:
        if outcome.done():
            if isinstance(value, SimTransport):
                value.abort()
        elif isinstance(value, OSError):
            outcome.set_exception(value)
        else:
            outcome.set_result(value)

    if loop.alive:
        loop.call_soon(settle)


class SimServer(asyncio.AbstractServer):
    """A listening socket."""

    def __init__(
        self, network: Network, loop: ProcessLoop, factory: Callable[[], Any], host: str, port: int
    ) -> None:
        self._network = network
        self.loop = loop
        self._factory = factory
        self.serving = False
        self.sockets = (SimSocket((host, network.listen(self, host, port)), None),)

    def accept(self, end: SimTransport) -> None:
        if self.sockets:
            end.attach(self._factory())
        else:
            end.abort()

    def get_loop(self):
        return self.loop

    def is_serving(self):
        return self.serving

    async def start_serving(self):
        self.serving = True

    def close(self):
        self.serving = False
        self.sockets = ()
        self._network.unlisten(self)

    async def wait_closed(self):
        """Closed at once."""


class SimSocket:
    """What asyncio shows of a socket; it has no descriptor."""

    def __init__(self, address: tuple[str, int], peer: tuple[str, int] | None) -> None:
        self._address = address
        self._peer = peer
        self.options: dict[tuple[int, int], int] = {}

    def fileno(self) -> int:
        return -1

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.options[level, name] = value

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def getpeername(self) -> tuple[str, int] | None:
        return self._peer


class SimTransport(asyncio.Transport):
    """One end of a connection.

    Attributes:
        loop: of the process that has it.
        machine: where it is.
        remote: where the other end is.
        address: host and port of this end.
        peer: the other end; None once it is gone for good.
        alone: the other end has vanished, and nobody has said so.
    """

    def __init__(
        self,
        network: Network,
        loop: ProcessLoop,
        machine: str,
        remote: str,
        *,
        address: tuple[str, int],
        peer_address: tuple[str, int],
    ) -> None:
        sock = SimSocket(address, peer_address)
        super().__init__({"socket": sock, "peername": peer_address, "sockname": address})
        self._socket = sock
        self._network = network
        self.loop, self.machine, self.remote, self.address = loop, machine, remote, address
        self.peer: SimTransport | None = None
        self.alone = False
        self.open = True  # the kernel still has it
        self._protocol: Any = None
        # outgoing
        least, most = KERNEL_BYTES
        self._window = int(least * (most / least) ** network.rng.random())
        self._unread = 0  # bytes in the kernels, sent and not read by the other end
        self._unsent: deque[memoryview] = deque()  # in the transport
        self._unsent_bytes = 0
        self._high, self._low = 64 << 10, 16 << 10
        self._protocol_paused = False
        self._last_arrival_us = 0
        self._fin_wanted = False
        # incoming
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._fin_came = False
        self._error: OSError | None = None  # the reset or the silence that the next call meets
        self._paused = False
        self._read_due = False
        self._closing = False
        self._lost = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "paused" if self._paused else "open"
        return f"<SimTransport {self.address} to {self.remote} [{state}]>"

    def attach(self, protocol: Any) -> None:
        """Give the connection to a protocol."""
        self._protocol = protocol
        self.loop.call_soon(protocol.connection_made, self)
        self._read_soon()

    # -- what asyncio offers ----------------------------------------------------------------

    def get_protocol(self):
        return self._protocol

    def set_protocol(self, protocol):
        self._protocol = protocol

    def is_closing(self):
        return self._closing

    def is_reading(self):
        return not self._paused and not self._closing

    def pause_reading(self):
        self._paused = True

    def resume_reading(self):
        if self._paused and not self._closing:
            self._paused = False
            self._read_soon()

    def set_write_buffer_limits(self, high=None, low=None):
        high = (64 << 10 if low is None else 4 * low) if high is None else high
        self._high, self._low = high, high // 4 if low is None else low
        self._pause_if_full()

    def get_write_buffer_limits(self):
        return self._low, self._high

    def get_write_buffer_size(self):
        return self._unsent_bytes

    def can_write_eof(self):
        return True

    def write(self, data):
        if self._fin_wanted and not self._closing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not len(data):
            return
        if self._error is not None:
            self._fail(self._error)
            return
        self._unsent.append(memoryview(bytes(data)))
        self._unsent_bytes += len(data)
        self._send()
        self._pause_if_full()

    def writelines(self, list_of_data):
        self.write(b"".join(list_of_data))

    def write_eof(self):
        self._fin_wanted = True
        self._send()

    def close(self):
        if self._closing:
            return
        self._closing = True
        if not self._unsent:
            self._lose(None)

    def abort(self):
        if not self._lost:
            self._closing = True
            self._drop_unsent()
            self._lose(None)

    # -- writing ----------------------------------------------------------------------------

    def _send(self) -> None:
        """Give the kernel what it takes."""
        while self._unsent and self._unread < self._window:
            piece = self._unsent.popleft()
            room = self._window - self._unread
            if len(piece) > room:
                self._unsent.appendleft(piece[room:])
                piece = piece[:room]
            self._unsent_bytes -= len(piece)
            self._unread += len(piece)
            self._transmit(piece)
        if not self._unsent and self._fin_wanted and not self._closing:
            self._packet(self._peer_fin)

    def _transmit(self, piece: memoryview) -> None:
        rng = self._network.rng
        while len(piece) > 1 and rng.random() < self._network.choppy:
            at = rng.randrange(1, len(piece))
            self._packet(self._peer_bytes, piece[:at])
            piece = piece[at:]
        self._packet(self._peer_bytes, piece)

    def _packet(self, what: Callable[..., None], *args: Any) -> None:
        """Something for the other end, which comes behind what was sent before."""
        network = self._network
        now_us = network.timeline.now_us
        begin_us = max(now_us, network.reachable_us(self.machine, self.remote))
        self._last_arrival_us = max(self._last_arrival_us, begin_us + network.packet_us())
        network.timeline.at(self._last_arrival_us, what, *args)

    def _peer_bytes(self, piece: memoryview) -> None:
        if self.peer is not None and not self.alone:
            self.peer.came(piece)

    def _peer_fin(self) -> None:
        if self.peer is not None and not self.alone:
            self.peer.fin_came()

    def _peer_reset(self) -> None:
        if self.peer is not None and not self.alone:
            self.peer.reset()

    def was_read(self, count: int) -> None:
        """The other end has read so much of what this one sent."""
        self._unread -= count
        if self._unsent and self.open:
            self._network.timeline.after(self._network.packet_us(), self._writable)

    def _writable(self) -> None:
        if self._unsent and self.loop.alive:
            self.loop.call_soon(self._write_ready)

    def _write_ready(self) -> None:
        if self._lost:
            return
        if self._error is not None:
            self._fail(self._error)
            return
        self._send()
        if self._protocol_paused and self._unsent_bytes <= self._low:
            self._protocol_paused = False
            self._protocol.resume_writing()
        if not self._unsent and self._closing:
            self._lose(None)

    def _pause_if_full(self) -> None:
        if self._unsent_bytes > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    # -- reading ----------------------------------------------------------------------------

    def came(self, piece: memoryview) -> None:
        """Bytes have come from the other end."""
        if not self.open:
            self._packet(self._peer_reset)  # nobody is there to read them
            return
        self._inbox.append(piece)
        self._inbox_bytes += len(piece)
        self._read_soon()

    def fin_came(self) -> None:
        """The other end sends no more."""
        self._fin_came = True
        self._read_soon()

    def reset(self) -> None:
        """The connection is over: what has come may be read, and then nothing."""
        self._break(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _break(self, error: OSError) -> None:
        if not self.open:
            return
        self.open = False
        self._network.gone(self)
        self._error = error
        self._read_soon()
        if self._unsent and self.loop.alive:
            self.loop.call_soon(self._write_ready)

    def _read_soon(self) -> None:
        waiting = self._inbox or self._fin_came or self._error is not None
        idle = self._read_due or self._paused or self._closing or self._protocol is None
        if waiting and not idle and self.loop.alive:
            self._read_due = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_due = False
        if self._closing or self._paused:
            return
        if self._inbox:
            self._receive()
            self._read_soon()
        elif self._error is not None:
            self._fail(self._error)
        elif self._fin_came:
            self._fin_came = False
            if not self._protocol.eof_received():
                self.close()

    def _receive(self) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = memoryview(self._protocol.get_buffer(-1)).cast("B")
            count = 0
            while self._inbox and count < min(len(buffer), RECEIVE_BYTES):
                count += self._take(buffer, count)
            self._read_bytes(count)
            self._protocol.buffer_updated(count)
        else:
            data = b"".join(self._inbox)
            self._inbox.clear()
            self._read_bytes(len(data))
            self._protocol.data_received(data)

    def _take(self, buffer: memoryview, at: int) -> int:
        piece = self._inbox.popleft()
        count = min(len(piece), len(buffer) - at)
        buffer[at : at + count] = piece[:count]
        if count < len(piece):
            self._inbox.appendleft(piece[count:])
        return count

    def _read_bytes(self, count: int) -> None:
        self._inbox_bytes -= count
        if self.peer is not None:
            self.peer.was_read(count)

    # -- the end ----------------------------------------------------------------------------

    def _fail(self, error: OSError) -> None:
        if not self._lost:
            self._closing = True
            self._drop_unsent()
            self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        if self._lost:
            return
        self._lost = True
        self.loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        self._kernel_close()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _kernel_close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._network.gone(self)
        self._packet(self._peer_reset if self._inbox else self._peer_fin)

    def killed(self) -> None:
        """The process died; the kernel says so, behind what it had taken."""
        self._drop_unsent()
        self._kernel_close()

    def vanished(self) -> None:
        """The machine died; nobody says anything."""
        self.open = False
        self._network.gone(self)
        if self.peer is not None:
            self.peer.left_alone()

    def left_alone(self) -> None:
        """Nothing comes from the other end any more, nor an answer."""
        self.alone = True
        self.silent_until(1 << 62)

    def silent_until(self, until_us: int) -> None:
        """Nothing comes through for a time; the kernel gives up if that is too long."""
        option = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        limit_us = SILENCE_US if option in self._socket.options else DEFAULT_SILENCE_US
        gives_up_us = self._network.timeline.now_us + limit_us
        if until_us > gives_up_us:
            silence = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self._network.timeline.at(gives_up_us, self._break, silence)
