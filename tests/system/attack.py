"""An attacker: sends hostile frames over blocking sockets, and watches the answers."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.wire import CLIENT_MAX_BODY_BYTES, CLIENT_MAX_HEADER_BYTES, ClientConnection
from memq.core.wire.frame import FrameReader
from memq.errors import MemqError
from tests.system.hostile import Arsenal

if TYPE_CHECKING:
    from tests.system.hostile import Shot

PIPELINES = (1, 5, 30, 100, 300)  # frames sent at a time, before an answer is looked at
STRANGERS = 0.05  # connections that begin without a handshake
LETHAL = 0.4  # connections that end with a lethal frame
LINGERING = 40  # connections that are left open half-way, by each attacker
HANG_S = 15.0  # a broker that neither answers nor ends a connection for so long hangs
SEND_S = 2.0  # when a broker does not read for so long it waits for us to read: that is its right
NO_LINGER = struct.pack("ii", 1, 0)  # close with RST


@dataclass
class Outcome:
    """What one attacker did.

    Attributes:
        kinds: frames sent, by kind.
        connections: opened.
        answers: read.
        choked: connections that the broker stopped reading.
        violations: what the broker must not do.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    answers: int = 0
    choked: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Take the figures of another one in."""
        self.kinds += other.kinds
        self.connections += other.connections
        self.answers += other.answers
        self.choked += other.choked
        self.violations += other.violations


class Attacker:
    """Attacks one broker.

    Args:
        address: of the broker.
        seed: of everything it does.
        uris: of some objects of the good client.
    """

    def __init__(self, address: str, seed: str, uris: list[str]) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._rng = random.Random(seed)
        self._arsenal = Arsenal(self._rng, uris)
        self._lingering: deque[socket.socket] = deque()
        self.outcome = Outcome()

    def attack(self, frames: int) -> Outcome:
        """Send so many frames, or a few more."""
        while self.outcome.kinds.total() < frames and len(self.outcome.violations) < 10:
            self.outcome.connections += 1
            try:
                self._connection()
            except TimeoutError:
                self.outcome.violations.append("no connection, or no answer to a handshake")
            except OSError:  # the broker has closed it, as it may at any time
                continue
            except MemqError as exc:
                self.outcome.violations.append(f"a bad answer: {type(exc).__name__}: {exc}")
        for sock in self._lingering:
            sock.close()
        return self.outcome

    def _connection(self) -> None:
        rng = self._rng
        sock = socket.create_connection(self._address, timeout=HANG_S)
        keep = False
        try:
            reader = FrameReader(
                max_header_bytes=CLIENT_MAX_HEADER_BYTES, max_body_bytes=CLIENT_MAX_BODY_BYTES
            )
            if rng.random() >= STRANGERS:
                _shake_hands(sock, reader)
            shots = [self._arsenal.shot() for _ in range(rng.choice(PIPELINES))]
            if rng.random() < LETHAL:
                shots.append(self._arsenal.lethal())
            self.outcome.kinds.update(shot.kind for shot in shots)
            if self._send(sock, shots):
                keep = self._watch(sock, reader, shots)
        finally:
            if not keep:
                sock.close()

    def _send(self, sock: socket.socket, shots: list[Shot]) -> bool:
        """Send them as one; False when the broker does not read on."""
        sock.settimeout(SEND_S)
        try:
            sock.sendall(b"".join(shot.data for shot in shots))
        except TimeoutError:
            self.outcome.choked += 1
            return False
        return True

    def _watch(self, sock: socket.socket, reader: FrameReader, shots: list[Shot]) -> bool:
        """Look at the answers, or do not; returns whether the connection is to stay open."""
        match self._rng.randrange(4):
            case 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            case 1 if shots[-1].kind in ("hoard", "cut short"):
                self._lingering.append(sock)
                if len(self._lingering) > LINGERING:
                    self._lingering.popleft().close()
                return True
            case _:
                expected = sum(shot.answered for shot in shots)
                alive = all(shot.answered for shot in shots)
                if not shots[-1].closes and not alive:
                    sock.shutdown(socket.SHUT_WR)
                self._read(sock, reader, expected if alive else None, shots)
        return False

    def _read(
        self, sock: socket.socket, reader: FrameReader, expected: int | None, shots: list[Shot]
    ) -> None:
        """Read so many answers, or until the broker ends the connection when None."""
        deadline_s = time.monotonic() + HANG_S
        count = 0
        while expected is None or count < expected:
            sock.settimeout(max(0.01, deadline_s - time.monotonic()))
            try:
                data = sock.recv(1 << 16)
            except TimeoutError:
                last = [f"{shot.kind} {shot.data[:200].hex()}" for shot in shots[-2:]]
                self.outcome.violations.append(
                    f"a hang: {count} of {expected} answers after {HANG_S:g} s; last sent: {last}"
                )
                return
            if not data:
                break
            frames = len(reader.feed(data))
            count += frames
            self.outcome.answers += frames


def _shake_hands(sock: socket.socket, reader: FrameReader) -> None:
    wire = ClientConnection("hostile")
    sock.sendall(b"".join(wire.open()))
    frames = []
    while not frames:
        data = sock.recv(4_096)
        if not data:
            raise ConnectionError("the broker closed the connection")
        frames = reader.feed(data)
    wire.receive(frames[0])


def attack(address: str, seed: str, frames: int, uris: list[str], result) -> None:
    """The main function of an attacker's process: sends its outcome through the pipe `result`."""
    result.send(Attacker(address, seed, uris).attack(frames))
    result.close()
