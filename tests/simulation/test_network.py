import asyncio

import pytest

from tests.fakes.loop import sealed
from tests.simulation.world import World


class Echo(asyncio.Protocol):
    """Keeps what it is told, and reads when it may."""

    def __init__(self):
        self.data = b""
        self.events = []

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        self.data += data

    def eof_received(self):
        self.events.append("eof")
        return False

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append(type(exc).__name__ if exc else "lost")


class Pair:
    """A connection between two machines."""

    def __init__(self):
        self.world = World(1).__enter__()
        self.a, self.b = self.world.machine("a").start(), self.world.machine("b").start()
        self.accepted = []

        def accept():
            self.accepted.append(Echo())
            return self.accepted[-1]

        self.b.loop.run(self.b.loop.create_server(accept, "b", 1))
        _, self.here = self.a.loop.run(self.a.loop.create_connection(Echo, "b", 1))
        self.wait()
        [self.there] = self.accepted

    def wait(self, seconds=1.0):
        """Let time pass."""
        self.world.timeline.sleep(seconds)


@pytest.fixture
def pairs():
    """Makes connections, and takes their worlds down."""
    made = []

    def make():
        made.append(Pair())
        return made[-1]

    with sealed():
        yield make
    for pair in made:
        pair.world.__exit__()


def test_a_reader_that_does_not_read_makes_the_writer_wait(pairs):
    """Kernels and transport fill up; the protocol is told to pause, then to go on."""
    pair = pairs()
    pair.there.transport.pause_reading()
    sent = 0
    while "pause" not in pair.here.events:
        pair.here.transport.write(b"x" * 100_000)
        sent += 100_000
        pair.wait(0.1)
    assert pair.there.data == b""
    assert pair.here.transport.get_write_buffer_size() > 0
    pair.there.transport.resume_reading()
    pair.wait(10)
    assert len(pair.there.data) == sent
    assert pair.here.events == ["made", "pause", "resume"]


def test_a_reset_ends_both_ends(pairs):
    """After a reset both protocols are told so, and what was on its way may be missing."""
    pair = pairs()
    pair.here.transport.write(b"x" * 5_000)
    pair.world.network.reset("a", "b")
    pair.wait()
    assert pair.here.events == ["made", "ConnectionResetError"]
    assert pair.there.events == ["made", "ConnectionResetError"]
    pair.here.transport.write(b"nobody")
    assert pair.world.errors == []


def test_a_machine_that_vanishes_says_nothing(pairs):
    """Nobody hears of it until the kernel gives up, or the machine is back and knows nothing."""
    pair = pairs()
    pair.world.network.vanish(pair.b.loop)
    pair.b.loop.crash()
    pair.wait(60)
    assert pair.here.events == ["made"]
    pair.world.machine("b").start()
    pair.wait(20)
    assert pair.here.events == ["made", "ConnectionResetError"]
