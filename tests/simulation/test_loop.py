import asyncio
import os
import random
import socket
import threading
import time

import pytest

from tests.fakes.loop import EscapeError, ProcessLoop, Timeline, Trace, sealed


@pytest.fixture
def make():
    """Makes a timeline with loops in it, and takes these down."""
    made = []

    def make(seed=1, names=("a",), **options):
        timeline = Timeline(random.Random(seed), Trace())
        loops = [ProcessLoop(timeline, name, **options) for name in names]
        made.extend(loops)
        return timeline, loops

    yield make
    for loop in made:
        loop.bury()


def test_a_timer_is_never_early(make):
    """When a timer fires its time has passed, also by a clock that is too fast or too slow."""
    for rate in (0.999, 1.0, 1.001):
        _, [loop] = make(uptime_us=123_456_789, rate=rate)
        early = []

        async def main(loop=loop, early=early):
            for _ in range(200):
                due_s = loop.time() + random.Random(7).random()
                fired = loop.create_future()
                loop.call_at(due_s, fired.set_result, None)
                await fired
                early.append(loop.time() < due_s)

        loop.run(main())
        assert not any(early)


def test_a_crash_runs_nothing_more(make):
    """After a crash no task, timer, thread or `finally` of the process runs."""
    _, [loop, other] = make(names=("a", "b"))
    ran = []

    async def main():
        try:
            loop.call_later(2, ran.append, "timer")
            loop.call_later(1, loop.run_in_executor, None, ran.append, "thread")
            await asyncio.sleep(1)
            loop.crash()
            await asyncio.sleep(1)
            ran.append("went on")
        finally:
            ran.append("cleaned up")

    task = loop.create_task(main())
    other.run(asyncio.sleep(10))
    assert ran == []
    assert not task.done()


def test_a_frozen_process_is_late(make):
    """What comes due while a process is frozen happens when it goes on, in order."""
    _, [loop, other] = make(names=("a", "b"))
    fired = []
    for delay_s in (3, 1, 2):
        loop.call_later(delay_s, lambda delay_s=delay_s: fired.append((delay_s, loop.time())))
    work = loop.run_in_executor(None, loop.time)
    loop.freeze()
    other.run(asyncio.sleep(10))
    assert fired == []
    assert not work.done()
    loop.thaw()
    other.run(asyncio.sleep(1))
    assert [delay_s for delay_s, _ in fired] == [1, 2, 3]
    assert all(at_s >= 10 for _, at_s in fired)
    assert work.result() >= 10


@pytest.mark.parametrize(
    "escape",
    [
        lambda: time.sleep(0.001),
        lambda: threading.Thread(target=print).start(),
        lambda: socket.socket(),  # noqa: PLW0108 - the class is looked up inside
        lambda: os.fork(),  # noqa: PLW0108
    ],
)
def test_nothing_leaves_the_simulation(escape):
    """Real sleeps, threads, sockets and processes raise where they are asked for."""
    with sealed(), pytest.raises(EscapeError):
        escape()
