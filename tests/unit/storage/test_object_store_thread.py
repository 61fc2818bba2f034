"""Threads that wait for requests: how a wait ends, and that its request ends with it."""

import asyncio
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from memq.errors import ClosedError
from memq.storage.object_store_thread import Waits


class Interrupted(BaseException):
    """Comes into the main thread by a signal."""


class Request:
    """A request that does not end, and tells when it is given up."""

    def __init__(self):
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def run(self, begun=lambda: None):
        self.begun.set()
        begun()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def interrupt():
    """Interrupts the main thread, as soon as it waits."""
    main = threading.main_thread().ident

    def raising(*_):
        raise Interrupted

    def when_it_waits():
        while sys._current_frames()[main].f_code.co_name != "wait":
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raising)
    yield when_it_waits
    signal.signal(signal.SIGUSR1, before)


def test_a_wait_that_is_interrupted_gives_its_request_up(interrupt):
    """Its connection would else be open for as long as the store likes."""
    waits, request = Waits(), Request()
    with pytest.raises(Interrupted):
        waits.until_done(request.run(interrupt))
    assert request.cancelled.wait(60)
    assert repr(waits) == "<Waits [0 under way]>"


def test_a_wait_whose_time_is_up_gives_its_request_up():
    """By its own time, and not by that of another wait."""
    waits, request = Waits(), Request()
    with pytest.raises(TimeoutError):
        waits.until_done(request.run(), 0.01)
    assert request.cancelled.wait(60)
    assert repr(waits) == "<Waits [0 under way]>"


def test_closing_ends_the_waits_of_one_storage_alone():
    """All of them, and later ones before their request begins."""
    mine, others = Waits(), Waits()
    requests = [Request() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [
            pool.submit(waits.until_done, request.run())
            for waits, request in zip((mine, mine, others), requests, strict=True)
        ]
        assert all(request.begun.wait(60) for request in requests)
        while repr(mine) != "<Waits [2 under way]>":  # a request begins before it is counted
            time.sleep(0)
        mine.close()
        for future in waiting[:2]:
            with pytest.raises(ClosedError):
                future.result(9)
        assert requests[0].cancelled.wait(60)
        assert requests[1].cancelled.wait(60)
        late = Request()
        with pytest.raises(ClosedError):
            mine.until_done(late.run())
        assert not late.begun.is_set()
        assert not waiting[2].done()
        others.close()
        with pytest.raises(ClosedError):
            waiting[2].result(9)
    assert repr(mine) == "<Waits [closed]>"
