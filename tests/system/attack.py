"""An attacker: sends hostile frames over blocking sockets, and watches the answers."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.wire.connection import (
    CLIENT_MAX_BODY_BYTES,
    CLIENT_MAX_HEADER_BYTES,
    GOODBYE,
    ClientConnection,
    decode_error,
)
from memq.core.wire.frame import FrameReader
from memq.errors import MemqError, UnavailableError
from tests.fakes.hostile_frames import Arsenal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.hostile_frames import Shot

PIPELINES = (1, 5, 30, 100, 300)  # frames sent at a time, before an answer is looked at
STRANGERS = 0.05  # connections that begin without a handshake
IMPATIENT = 0.2  # connections that are reset at once, answers unread
DEAF = 0.05  # connections that ask for much and read nothing
DEAF_PIPELINES = (20, 600, 5_000)  # requests that they send: 600 are 42 KB
LETHAL = 0.5  # connections that end with a lethal frame
LINGERING = 40  # connections that are left open half-way, by each attacker
HANG_S = 15.0  # a broker that neither answers nor ends a connection for so long hangs
NO_LINGER = struct.pack("ii", 1, 0)  # close with RST


class TurnedAwayError(Exception):
    """The broker ends the connection since it has no room for it now."""


@dataclass
class Outcome:
    """What one attacker did.

    Attributes:
        kinds: frames sent, by kind.
        connections: opened.
        answers: read.
        turned_away: connections that the broker ended before we had read all we wanted.
        violations: what the broker must not do.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    answers: int = 0
    turned_away: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Take the figures of another one in."""
        self.kinds += other.kinds
        self.connections += other.connections
        self.answers += other.answers
        self.turned_away += other.turned_away
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
        parent = os.getppid()
        while self.outcome.kinds.total() < frames and len(self.outcome.violations) < 10:
            if os.getppid() != parent:  # who started it was killed: nobody wants to know any more
                break
            self.outcome.connections += 1
            try:
                self._connection()
            except TimeoutError:
                self.outcome.violations.append("no connection, or no answer to a handshake")
            except (OSError, TurnedAwayError):
                self.outcome.turned_away += 1
            except MemqError as exc:
                self.outcome.violations.append(f"a bad answer: {type(exc).__name__}: {exc}")
        for sock in self._lingering:
            sock.close()
        return self.outcome

    def _connection(self) -> None:
        rng = self._rng
        sock = socket.create_connection(self._address, timeout=HANG_S)
        reader = FrameReader(
            max_header_bytes=CLIENT_MAX_HEADER_BYTES, max_body_bytes=CLIENT_MAX_BODY_BYTES
        )
        try:
            if rng.random() < DEAF:
                self._do_not_read(sock, reader)
                return
            shots = [self._arsenal.shot() for _ in range(rng.choice(PIPELINES))]
            last = [self._arsenal.lethal()] if rng.random() < LETHAL else []
            self.outcome.kinds.update(shot.kind for shot in shots + last)
            if rng.random() < STRANGERS:  # its first frame ends the connection, whatever it is
                self._send(sock, shots + last)
                self._read_to_end(sock, reader, shots)
                return
            _shake_hands(sock, reader)
            if rng.random() < IMPATIENT:
                self._send(sock, shots + last)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                return
            self._send(sock, shots)
            self._read_answers(sock, reader, shots)
            for shot in last:
                self._end_with(sock, reader, shot)
        finally:
            if sock not in self._lingering:
                sock.close()

    def _do_not_read(self, sock: socket.socket, reader: FrameReader) -> None:
        """Ask for much, read nothing, and keep the connection for a while."""
        _shake_hands(sock, reader)
        shots = [self._arsenal.read() for _ in range(self._rng.choice(DEAF_PIPELINES))]
        self.outcome.kinds.update(shot.kind for shot in shots)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.send(b"".join(shot.data for shot in shots))
        self._linger(sock)

    def _linger(self, sock: socket.socket) -> None:
        self._lingering.append(sock)
        if len(self._lingering) > LINGERING:
            self._lingering.popleft().close()

    def _end_with(self, sock: socket.socket, reader: FrameReader, shot: Shot) -> None:
        self._send(sock, [shot])
        if shot.closes:
            self._read_to_end(sock, reader, [shot])
        elif shot.kind in ("hoard", "cut short") and self._rng.random() < 0.5:
            self._linger(sock)
        else:
            sock.shutdown(socket.SHUT_WR)
            self._read_to_end(sock, reader, [shot])

    def _send(self, sock: socket.socket, shots: list[Shot]) -> None:
        sock.settimeout(HANG_S)
        sock.sendall(b"".join(shot.data for shot in shots))

    def _read_answers(self, sock: socket.socket, reader: FrameReader, shots: list[Shot]) -> None:
        """Read until all that must be answered is; the broker must not end the connection."""
        missing = {shot.correlation_id for shot in shots if shot.answered}
        for ids in self._frames(sock, reader, shots):
            missing -= ids
            if not missing:
                return
        if missing:
            kinds = [shot.kind for shot in shots if shot.correlation_id in missing]
            self.outcome.violations.append(f"cut off, without an answer to {kinds[:5]}")

    def _read_to_end(self, sock: socket.socket, reader: FrameReader, shots: list[Shot]) -> None:
        for _ in self._frames(sock, reader, shots):
            pass

    def _frames(
        self, sock: socket.socket, reader: FrameReader, shots: list[Shot]
    ) -> Iterator[set[int]]:
        """Ids of the answers as they come, until the broker ends the connection."""
        deadline_s = time.monotonic() + HANG_S
        yield set()
        while True:
            sock.settimeout(max(0.01, deadline_s - time.monotonic()))
            try:
                data = sock.recv(1 << 16)
            except TimeoutError:
                last = [f"{shot.kind} {shot.data[:200].hex()}" for shot in shots[-2:]]
                self.outcome.violations.append(f"a hang of {HANG_S:g} s; last sent: {last}")
                return
            if not data:
                return
            frames = reader.feed(data)
            self.outcome.answers += len(frames)
            if frames and frames[-1].correlation_id == GOODBYE:
                error = decode_error(frames[-1].header)
                if isinstance(error, UnavailableError):  # memory is full, of hoarded bodies
                    raise TurnedAwayError(str(error))
            yield {frame.correlation_id for frame in frames}


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


def attack(address: str, seed: str, frames: int, uris: list[str]) -> Outcome:
    """Attack from a process of its own."""
    return Attacker(address, seed, uris).attack(frames)
