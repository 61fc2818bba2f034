"""Hostile frames against a live broker; and brokers that misbehave, which must be noticed."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from contextlib import contextmanager

import pytest

from memq.core.wire.frame import FrameReader
from memq.core.wire.server_connection import ServerConnection
from tests.fakes.hostile_frames import CLOSING, LETHAL, Arsenal
from tests.system import attack, fuzz
from tests.system.attack import Attacker

FRAMES = 20_000


async def test_broker_withstands_hostile_frames_and_serves_others(tmp_path) -> None:
    """Whatever is sent to it, the broker lives, answers, keeps to its memory, and serves others."""
    report = await fuzz.run(FRAMES, "fixed", tmp_path)
    assert report.violations == []
    assert report.outcome.kinds.total() >= FRAMES
    assert report.outcome.answers > FRAMES / 5
    assert report.acked > 0
    assert report.objects > 0


async def test_memory_above_the_cap_is_reported(tmp_path, monkeypatch) -> None:
    """The cap is compared with what the process really had."""
    monkeypatch.setattr(fuzz, "BASE_BYTES", 0)
    report = await fuzz.run(200, "fixed", tmp_path)
    assert ["memory rose to" in text for text in report.violations] == [True]


async def test_broker_that_dies_is_reported(tmp_path, monkeypatch) -> None:
    """A broker that ended in any way but the one that it was told is a finding."""

    async def kill(process, frames, seed, report):
        process.kill()

    monkeypatch.setattr(fuzz, "_attack_while_good", kill)
    report = await fuzz.run(200, "fixed", tmp_path)
    assert any("ended with" in text for text in report.violations)


def _answer_nothing(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def _answer_garbage(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        connection.sendall(bytes(40))


def _close(connection: socket.socket) -> None:
    reader = FrameReader(max_header_bytes=1 << 16, max_body_bytes=0)
    wire = ServerConnection(cluster_id="c", broker_id="b", authorize=lambda _: True)
    frames = []
    while not frames:
        frames = reader.feed(connection.recv(100))
    connection.sendall(b"".join(wire.receive(frames[0]).buffers_to_send))
    connection.recv(1)
    connection.shutdown(socket.SHUT_WR)
    _answer_nothing(connection)


@contextmanager
def _server(serve):
    """A server of one connection after the other, which does as it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        serve(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield "{}:{}".format(*listener.getsockname())
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("serve", "finding"),
    [(_answer_nothing, "no answer"), (_answer_garbage, "a bad answer"), (_close, "cut off")],
)
def test_attacker_reports_a_server_that_misbehaves(serve, finding, monkeypatch) -> None:
    """Silence, garbage and a connection that ends for no reason are all told."""
    monkeypatch.setattr(attack, "HANG_S", 0.2)
    monkeypatch.setattr(attack, "STRANGERS", 0.0)
    monkeypatch.setattr(attack, "IMPATIENT", 0.0)
    with _server(serve) as address:
        outcome = Attacker(address, "fixed", []).attack(50, lambda _: None)
    assert finding in outcome.violations[0]


def test_every_kind_of_lethal_frame_is_made() -> None:
    """The arsenal holds all that it says, and knows its own kinds."""
    arsenal = Arsenal(random.Random(1), [])
    kinds = {arsenal.lethal().kind for _ in range(2_000)}
    assert kinds == set(LETHAL)
    assert set(CLOSING) <= kinds


def test_frames_that_fail_alone_have_ids_of_their_own() -> None:
    """So that each answer can be told from the others."""
    arsenal = Arsenal(random.Random(2), [])
    ids = [arsenal.shot().correlation_id for _ in range(1_000)]
    assert len(set(ids)) == len(ids)
    assert min(ids) > 1, "1 is the handshake's"


@pytest.mark.parametrize("seed", range(3))
def test_same_seed_makes_the_same_frames(seed) -> None:
    """What an attacker sends can be sent again."""
    first, second = (Arsenal(random.Random(seed), []) for _ in range(2))
    assert [first.shot() for _ in range(300)] == [second.shot() for _ in range(300)]


def test_good_client_call_that_takes_too_long_is_reported(monkeypatch) -> None:
    """Each call is measured against the deadline."""
    monkeypatch.setattr(fuzz, "DEADLINE_S", 0.0)
    report = fuzz.Report()
    with fuzz._timed(report):
        asyncio.run(asyncio.sleep(0.001))
    assert "took" in report.violations[0]
