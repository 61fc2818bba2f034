import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import pytest

from memq.client.admin import AdminClient, AsyncAdminClient
from memq.client.producer.delivery import Delivery
from memq.client.producer.memory import ByteBudget, MemoryWait
from memq.client.sync import (
    Call,
    Callbacks,
    EventLoopThread,
    SyncClient,
    sync,
    sync_close,
    sync_iter,
)
from memq.errors import ClosedError, InvalidRequestError
from tests.unit.client.interrupts import interrupted


@pytest.fixture
def loop():
    """A running loop."""
    made = EventLoopThread("memq-test")
    yield made
    made.close()


async def value(of):
    """A coroutine with a result."""
    await asyncio.sleep(0)
    return of


def test_a_coroutine_runs_on_the_thread_of_the_loop(loop):
    """Its result comes back, or what it raises, a TimeoutError of its own included."""

    async def run(error=None):
        if error is not None:
            raise error
        return threading.current_thread().name

    assert loop.run(run()) == "memq-test"
    for error in (KeyError("gone"), TimeoutError("own")):
        with pytest.raises(type(error)) as caught:
            loop.run(run(error))
        assert caught.value is error
    with pytest.raises(TypeError, match="coroutine"):
        loop.run(7)
    loop.call(loop.close)
    loop._thread.join(60)
    assert not loop._thread.is_alive()
    with pytest.raises(ClosedError):
        loop.call(print)


def test_errors_leave_no_cycle(loop):
    """An error and all that its traceback holds go away with its handler, not with the next GC."""
    seen = []

    def make_error():
        error = InvalidRequestError("gone")
        seen.append(weakref.ref(error))
        return error

    async def fail():
        raise make_error()

    gc.disable()
    try:
        with suppress(InvalidRequestError):
            loop.run(fail())
        loop.run(value(1))  # the loop lets go of what it ran before
        assert seen[0]() is None
    finally:
        gc.enable()


def test_interrupted_wait_cancels(loop):
    """A wait that is interrupted, by Ctrl-C for instance, cancels the coroutine."""
    begun, cancelled = threading.Event(), threading.Event()

    async def forever():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt():
        assert begun.wait(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Call(loop, forever()).result(meanwhile=interrupt)
    assert cancelled.wait(5)


def wait_for_delivery(loop):
    """A delivery that fails once somebody waits for it."""
    delivery = Delivery()
    loop.call(once, lambda: delivery._callbacks, delivery.settle, InvalidRequestError("refused"))
    assert isinstance(delivery.exception(), InvalidRequestError)


def wait_for_memory(loop):
    """A write that finds room once it waits for it."""
    budget = ByteBudget(1)
    budget.take(1)
    loop.call(once, lambda: budget._waiting, budget.give, 1)
    MemoryWait(budget, 5.0, time.monotonic).block(lambda: budget.take(1) or None)


def once(ready, function, argument):
    """On the loop: call a function when it is time."""
    if ready():
        function(argument)
    else:
        asyncio.get_running_loop().call_soon(once, ready, function, argument)


WAITS = {
    "run": lambda loop: loop.run(value(1)),
    "run with callbacks": lambda loop: Callbacks(loop).run(value(1)),
    "result of a delivery": wait_for_delivery,
    "memory for a write": wait_for_memory,
}
"""Ways in which a thread waits for the loop."""


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore:.*<coroutine object value")
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_interrupt_anywhere(wait):
    """Wherever in a wait a Ctrl-C falls, the loop goes on, for the client to be closed with it."""
    steps = 0
    while True:
        loop = EventLoopThread("memq-test")
        steps += 1
        done = not interrupted(lambda: wait(loop), steps)  # noqa: B023 - called at once
        answers = []
        asked = threading.Thread(target=lambda: answers.append(loop.run(value(2))), daemon=True)  # noqa: B023
        asked.start()
        asked.join(10)
        assert answers == [2], f"interrupted at step {steps}"
        loop.close()
        if done:
            break
    assert steps > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["a close", "a task"])
def test_calls_that_wait_as_the_loop_ends(loop, how):
    """Whatever ends the loop takes nobody with it: calls that wait end, later ones are told."""
    started = threading.Event()
    seen = []

    async def forever():
        started.set()
        await asyncio.Event().wait()

    async def end():
        raise SystemExit

    def wait():
        try:
            loop.run(forever())
        except ClosedError as exc:
            seen.append(exc)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(5)
    if how == "a close":
        loop.close()
    else:
        with pytest.raises(SystemExit):
            loop.run(end())
    waiter.join(60)
    loop._thread.join(5)
    assert len(seen) == 1
    with pytest.raises(ClosedError):
        loop.run(value(1))


def test_own_thread_refused(loop):
    """A sync call from the loop's own thread is refused instead of waiting for ever."""

    async def nested():
        return loop.run(value(1))

    async def nested_with_callbacks():
        return Callbacks(loop).run(value(1))

    for work in (nested, nested_with_callbacks):
        with pytest.raises(InvalidRequestError, match="async client"):
            loop.run(work())


def test_interpreter_exit_without_close():
    """A program that forgets to close ends at once, cleanly, and its tasks are told."""
    program = """
import asyncio, gc
from memq.client.sync import Call, EventLoopThread
loop = EventLoopThread("forgotten")
async def forever():
    try:
        await asyncio.Event().wait()
    finally:
        print("told", flush=True)
loop.call(Call(loop, forever())._start)
async def tick():
    pass
loop.run(tick())
gc.collect()  # nobody refers to the task that waits, and it is not destroyed
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "told\n"
    assert done.stderr == ""
    assert time.monotonic() - began < 10


class AsyncEcho:
    """An async client; it notes how it began and ended, and in which thread its callback ran."""

    def __init__(self, *, fail=False):
        self.fail = fail
        self.on_call = None
        self.events = []

    def __repr__(self):
        return "<AsyncEcho>"

    async def __aenter__(self):
        if self.fail:
            raise InvalidRequestError("cannot start")
        self.events.append("started")
        return self

    async def __aexit__(self, exc_type, exc, traceback):
        self.events.append(f"left with {exc!r}")

    async def echo(self, value, *, times=1):
        """The value, some times over."""
        await asyncio.sleep(0)
        return [value] * times

    async def ask(self, value):
        """What the callback makes of the value."""
        await self.on_call(value)

    async def count(self):
        """Numbers without end."""
        number = 0
        while True:
            yield number
            number += 1

    async def close(self, within=None):
        """Stop."""
        self.events.append(f"closed in {within}")


class Echo(SyncClient[AsyncEcho]):
    """Its sync twin."""

    echo = sync(AsyncEcho.echo)
    ask = sync(AsyncEcho.ask, callbacks=True)
    count = sync_iter(AsyncEcho.count)
    close = sync_close(AsyncEcho.close)

    def __init__(self, client, on_call=print):
        super().__init__(client, EventLoopThread("memq-echo"))
        client.on_call = partial(self._callbacks.call, on_call)


def test_sync_method_is_its_twins():
    """A sync method has arguments, result and docstring of the async one, and awaits nothing."""
    with Echo(AsyncEcho()) as echo:
        assert echo.echo("a", times=2) == ["a", "a"]
        with pytest.raises(TypeError, match="surprise"):
            echo.echo("a", surprise=1)

    assert Echo.echo.__doc__ == "The value, some times over."
    assert str(inspect.signature(Echo.echo)) == "(self, value, *, times=1)"
    assert not inspect.iscoroutinefunction(Echo.echo)
    assert AdminClient.offsets.__doc__ == AsyncAdminClient.offsets.__doc__


def test_sync_client_ends_once():
    """A client that is closed or left is over: it ends once, and later calls are refused."""
    client = AsyncEcho()
    with Echo(client) as echo:
        echo.close(within=3)
        echo.close()
    assert client.events == ["started", "closed in 3"]
    with pytest.raises(ClosedError):
        echo.echo("a")
    assert repr(echo) == "<Echo>"


def test_sync_client_that_does_not_start():
    """It leaves no thread."""
    with pytest.raises(InvalidRequestError, match="cannot start"):
        Echo(AsyncEcho(fail=True))
    assert "memq-echo" not in [thread.name for thread in threading.enumerate()]


def test_sync_client_whose_block_fails():
    """The async client learns of it; an error of the end replaces nothing, and is noted beside."""
    client = AsyncEcho()
    with pytest.raises(KeyError), Echo(client):
        raise KeyError("gone")
    assert client.events == ["started", "left with KeyError('gone')"]
    with pytest.raises(KeyError, match="gone") as caught, Echo(AsyncEcho()) as echo:
        echo._loop.close()
        raise KeyError("gone")
    assert caught.value.__notes__ == ["closing failed as well: memq-echo is closed"]
    with pytest.raises(ClosedError), Echo(AsyncEcho()) as echo:
        echo._loop.close()


def test_callback_runs_in_the_thread_that_calls():
    """A callback runs in the thread that waits, may call the client, and its error comes back."""
    seen = []

    def on_call(value):
        seen.append((threading.current_thread(), echo.echo(value)))
        if value == "bad":
            raise KeyError(value)

    with Echo(AsyncEcho(), on_call) as echo:
        echo.ask("a")
        assert seen == [(threading.current_thread(), ["a"])]
        with pytest.raises(KeyError, match="bad"):
            echo.ask("bad")


def test_callback_that_is_interrupted():
    """A Ctrl-C in a callback ends the wait, and what awaits the callback on the loop as well."""

    def on_call(value):
        if value == "slow":
            raise KeyboardInterrupt

    async def in_background():
        return asyncio.get_running_loop().create_task(client.ask("slow"))

    async def ended(task):
        await task

    client = AsyncEcho()
    with Echo(client, on_call) as echo:
        task = echo._loop.run(in_background())
        with pytest.raises(KeyboardInterrupt):
            echo.ask("quick")
        echo._loop.run(ended(task))
        echo.ask("quick")


@pytest.mark.parametrize("twice", [False, True])
def test_interrupted_iteration(monkeypatch, twice):
    """A Ctrl-C in an iteration is raised as it is, also while the item is still being made; what
    then ends is not cut short, and a second one, as the first is handled, keeps nothing from it.
    """
    waiting, leaving, closing, left = *(threading.Event() for _ in range(3)), []
    real, interrupts = EventLoopThread.call, ["_start", "_cancel"][: 1 + twice]
    real_end = Call.end

    async def end(self):
        closing.set()
        await real_end(self)

    monkeypatch.setattr(Call, "end", end)

    def call(self, function, *args):
        interrupt = function.__name__ in interrupts[:1]
        if not interrupt or function.__name__ == "_start":
            real(self, function, *args)
        if function.__name__ == "_cancel" and not interrupt:
            assert leaving.wait(60)
        if interrupt:
            interrupts.pop(0)
            assert waiting.wait(60)
            raise KeyboardInterrupt

    class Slow(AsyncEcho):
        async def count(self):
            try:
                waiting.set()
                await asyncio.Event().wait()
                yield 1
            finally:
                leaving.set()
                while not closing.is_set():
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                left.append(True)

    class SlowEcho(Echo):
        count = sync_iter(Slow.count)

    with SlowEcho(Slow()) as echo:
        echo._loop.call = partial(call, echo._loop)
        with pytest.raises(KeyboardInterrupt):
            next(echo.count())
    assert left == [True]


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore:.*<coroutine object AsyncEcho")
def test_client_whose_close_is_interrupted():
    """Wherever in a client's close a Ctrl-C falls, closing again ends its thread."""
    steps = 0
    interrupt = True
    while interrupt:
        steps += 1
        echo = Echo(AsyncEcho())
        interrupt = interrupted(echo.close, steps)
        echo.close()
        where = f"interrupted at step {steps}"
        assert not echo._loop._thread.is_alive(), where
    assert steps > 30
