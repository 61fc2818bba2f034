"""Virtual time, and an event loop for each process that lives in it.

A `Timeline` holds what will happen, in the order of its time, in whole microseconds. Time passes
only there: from one event to the next, at once. A `ProcessLoop` is the event loop of one simulated
process. It keeps what asyncio promises (what is called soon is called in that order), but between
its *turns* any other process may run. Which one is a matter of delays, drawn from a seed: shuffling
the callbacks of one loop would explore schedules that cannot happen.

What a process gives to threads runs here as well, whole, at some moment of its own (`Threads`).
Nothing may leave the simulation: a real thread, socket, process or sleep raises where it is asked
for (`sealed`). Waiting for something that can never come is a `DeadlockError` that says who waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import sys
import threading
import time
from asyncio import events, futures
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

MAX_IDLE_EVENTS = 200_000  # without the time going on: something spins
TRACE_LINES = 4_096  # hashed at a time


class EscapeError(RuntimeError):
    """Something wanted to leave the simulation: a real thread, socket, process or sleep."""


class DeadlockError(RuntimeError):
    """Nothing will ever happen any more, or happens without end while no time passes."""


class Trace:
    """What was called, as one hash."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._lines: list[str] = []
        self.count = 0

    def add(self, line: str) -> None:
        self.count += 1
        self._lines.append(line)
        if len(self._lines) >= TRACE_LINES:
            self._flush()

    def digest(self) -> str:
        """The hash of all lines so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("\n".join(self._lines).encode())
        self._lines.clear()


class Timeline:
    """Everything that will happen.

    Args:
        rng: for the delays of turns and threads.
        trace: told of every callback.

    Attributes:
        now_us: microseconds since the simulation began.
    """

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.now_us = 0
        self.rng = rng
        self.trace = trace
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self.loops: list[ProcessLoop] = []

    def at(self, when_us: int, what: Callable[..., object], *args: Any) -> None:
        """Let something happen at a time."""
        self._number += 1
        heapq.heappush(self._events, (max(when_us, self.now_us), self._number, what, args))

    def after(self, delay_us: int, what: Callable[..., object], *args: Any) -> None:
        """Let something happen after a time."""
        self._number += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._number, what, args))

    def run(self, until: Callable[[], bool], *, deadline_us: int | None = None) -> bool:
        """Let time pass until a condition holds; False when the deadline came first.

        Raises:
            DeadlockError: there is no deadline, and nothing that could make it true.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(_first_iteration, _finalize)
        try:
            return self._run(until, deadline_us)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def _run(self, until: Callable[[], bool], deadline_us: int | None) -> bool:
        events_, pop = self._events, heapq.heappop
        idle = 0
        while not until():
            if not events_ and deadline_us is not None:
                self.now_us = max(self.now_us, deadline_us)
                return False
            if not events_:
                raise DeadlockError(f"nothing will happen any more; {self._who_waits()}")
            when_us = events_[0][0]
            if deadline_us is not None and when_us > deadline_us:
                self.now_us = max(self.now_us, deadline_us)  # what has happened may itself let pass
                return False
            if when_us > self.now_us:
                self.now_us, idle = when_us, 0
            idle += 1
            if idle > MAX_IDLE_EVENTS:
                raise DeadlockError(f"no time passes any more; {self._who_waits()}")
            _, _, what, args = pop(events_)
            what(*args)
        return True

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run(lambda: False, deadline_us=self.now_us + int(seconds * 1e6))

    def _who_waits(self) -> str:
        waiting = [f"{loop.name}: {name}" for loop in self.loops for name in loop.waiting()]
        return f"these wait: {'; '.join(waiting) or 'nobody'}"


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one process.

    Its clock is monotonic: it begins anywhere, and may be a little too fast or slow.

    Args:
        timeline: the time that it lives in.
        name: of the process, for the trace.
        uptime_us: what its clock says at first.
        rate: how fast its clock goes.
        on_error: told of what was raised where nobody caught it.

    Attributes:
        alive: False once it crashed; it then never runs again, not even to clean up.
        thawed_us: when it last went on after it had been frozen; far away while it is.
        slowness: how many times longer its threads take than usual.
    """

    def __init__(
        self,
        timeline: Timeline,
        name: str,
        *,
        uptime_us: int = 0,
        rate: float = 1.0,
        on_error: Callable[[str, BaseException | None], None] | None = None,
    ) -> None:
        super().__init__()
        self.timeline = timeline
        self.name = name
        self.alive = True
        self.thawed_us = -1
        self.slowness = 1.0
        self._began_us = timeline.now_us
        self._uptime_us = uptime_us
        self._rate = rate
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_due = False
        self._frozen = False
        self._threads: list[Threads] = []
        self._on_error = on_error
        self.set_task_factory(_make_task)
        self.set_exception_handler(_report)
        timeline.loops.append(self)

    def __del__(self) -> None:
        """There is nothing to close."""

    # -- time -------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds by the monotonic clock of this process."""
        passed_us = self.timeline.now_us - self._began_us
        return (self._uptime_us + passed_us * self._rate) / 1e6

    def call_at(self, when, callback, *args, context=None):
        """As asyncio does."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        # One microsecond more, so that the clock has really passed `when` then.
        local_us = max(when, self.time()) * 1e6 - self._uptime_us
        self.timeline.at(self._began_us + int(local_us / self._rate) + 1, self._fire, handle)
        return handle

    def _fire(self, handle: asyncio.Handle) -> None:
        if not handle._cancelled:
            self._ready.append(handle)
            self._wake()

    # -- turns ------------------------------------------------------------------------------

    def _call_soon(self, callback, args, context):
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._turn_due:
            self._wake()
        return handle

    def _write_to_self(self) -> None:
        """Nothing sleeps in a selector."""

    def _wake(self) -> None:
        if not self._turn_due and self.alive and not self._frozen:
            self._turn_due = True
            self.timeline.after(1 + int(self.timeline.rng.random() * 30), self._turn)

    def _turn(self) -> None:
        """Call what was to be called soon when the turn began, as asyncio does."""
        self._turn_due = False
        if not self.alive or self._frozen:
            return
        ready, trace, now_us, name = (
            self._ready,
            self.timeline.trace,
            self.timeline.now_us,
            self.name,
        )
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    trace.add(f"{now_us} {name} {_name_of(handle._callback)}")
                    handle._run()
                    if not self.alive:
                        return
        finally:
            events._set_running_loop(None)
        if ready:
            self._wake()

    def run(self, main: Any, *, timeout_s: float | None = None) -> Any:
        """Run a coroutine on this loop, and everything else meanwhile, and give its result.

        Raises:
            TimeoutError: it takes longer.
        """
        task = self.create_task(main)
        deadline_us = None if timeout_s is None else self.timeline.now_us + int(timeout_s * 1e6)
        if not self.timeline.run(task.done, deadline_us=deadline_us):
            raise TimeoutError(f"{self.name}: not done within {timeout_s} s of simulated time")
        return task.result()

    # -- what happens to the process --------------------------------------------------------

    def crash(self) -> None:
        """Never run anything of this process again."""
        self.alive = False
        for threads in self._threads:
            threads.crash()

    def freeze(self) -> None:
        """Run nothing until `thaw`; timers that come due meanwhile are late."""
        self._frozen = True
        self.thawed_us = 1 << 62
        for threads in self._threads:
            threads.frozen = True

    def thaw(self) -> None:
        """Go on."""
        if not self._frozen:
            return
        self._frozen = False
        self.thawed_us = self.timeline.now_us
        for threads in self._threads:
            threads.thaw()
        if self._ready:
            self._wake()

    def bury(self) -> None:
        """Take down what is left of the process, where nobody minds any more what it does."""
        self.crash()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            with contextlib.suppress(Exception):
                task.get_coro().close()
        self._ready.clear()

    def waiting(self) -> list[str]:
        """What the tasks of this process wait for, for a diagnosis."""
        if not self.alive:
            return []
        return sorted(map(_where, asyncio.all_tasks(self)))

    # -- threads ----------------------------------------------------------------------------

    def carry_out(self, job: Callable[[], None]) -> None:
        """Do what a thread is to do now."""
        job()

    def threads(self, count: int, name: str) -> Threads:
        """An executor of this process."""
        made = Threads(self, count, name)
        self._threads.append(made)
        return made

    def run_in_executor(self, executor, func, *args):
        """As asyncio does; without an executor, on threads of the process."""
        if executor is None:
            if self._default_executor is None:
                self._default_executor = self.threads(8, "default")
            executor = self._default_executor
        return futures.wrap_future(executor.submit(func, *args), loop=self)


def _first_iteration(generator: Any) -> None:
    """As asyncio has it: a generator belongs to the loop that iterates over it first."""
    asyncio.get_running_loop()._asyncgen_firstiter_hook(generator)


def _finalize(generator: Any) -> None:
    """As asyncio has it, when it is let go on its own loop, which reference counts see to."""
    loop = events._get_running_loop()
    if loop is not None:
        loop._asyncgen_finalizer_hook(generator)


def _make_task(loop: ProcessLoop, coro: Any, context: Any = None) -> asyncio.Task[Any]:
    # The name would count up over all loops of the interpreter.
    return asyncio.Task(coro, loop=loop, name="task", context=context)


def _report(loop: ProcessLoop, context: dict[str, Any]) -> None:
    if loop.alive and loop._on_error is not None:
        loop._on_error(context.get("message", "unexpected error"), context.get("exception"))


def _name_of(callback: Any) -> str:
    """The qualified name of a callback; of a task's step, that of its coroutine."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return getattr(coroutine, "__qualname__", type(coroutine).__name__)
    name = getattr(callback, "__qualname__", None)
    while name is None:  # a partial
        callback = getattr(callback, "func", type(callback))
        name = getattr(callback, "__qualname__", None)
    return name


def _where(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    line = f" line {stack[-1].f_lineno}" if stack else ""
    return f"{_name_of(task.get_coro())}{line}"


# -- threads --------------------------------------------------------------------------------


class ProcessDiedError(BaseException):
    """The process of a thread that waits has died: what the thread did ends here."""


class _Job(Future):
    """What a thread is to do."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work
        self.outcome: tuple[bool, Any] | None = None  # once it is carried out
        self.takes_us = 0  # longer than any job


class Threads(Executor):
    """Threads of a process, each job of which runs at one moment of simulated time.

    A job begins a little after it was given, and takes its time; its effect is whole at one moment
    in between. With one thread the jobs run in their order.

    Args:
        loop: of the process.
        count: how many jobs are under way at a time.
        name: of the threads.
    """

    def __init__(self, loop: ProcessLoop, count: int, name: str) -> None:
        self._loop = loop
        self._free = count
        self.name = name
        self.frozen = False
        self._waiting: deque[_Job] = deque()
        self._late: deque[tuple[Callable[..., object], _Job]] = deque()
        self._shut = False

    def submit(self, fn, /, *args, **kwargs):
        """Do something on a thread."""
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        job = _Job(lambda: fn(*args, **kwargs))
        self._waiting.append(job)
        self._next()
        return job

    def shutdown(self, wait=True, *, cancel_futures=False):
        """Take nothing more; with `wait`, when all is done."""
        self._shut = True
        if cancel_futures:
            for job in self._waiting:
                job.cancel()
        if wait:
            while self._waiting:
                self._carry_out(self._waiting.popleft())

    def crash(self) -> None:
        self._waiting.clear()
        self._late.clear()

    def thaw(self) -> None:
        self.frozen = False
        late, self._late = self._late, deque()
        for step, job in late:
            step(job)

    def _next(self) -> None:
        while self._free and self._waiting:
            job = self._waiting.popleft()
            self._free -= 1
            self._loop.timeline.after(self._delay_us(), self._begin, job)

    def _begin(self, job: _Job) -> None:
        if not self._loop.alive:
            return
        if self.frozen:
            self._late.append((self._begin, job))
            return
        timeline = self._loop.timeline
        timeline.trace.add(f"{timeline.now_us} {self._loop.name} {self.name}")
        _working.append((self._loop, job))
        try:
            self._loop.carry_out(partial(_run, job))
        except ProcessDiedError:
            return
        finally:
            _working.pop()
        if self._loop.alive:
            timeline.after(self._delay_us() + job.takes_us, self._end, job)

    def _end(self, job: _Job) -> None:
        if not self._loop.alive:
            return
        if self.frozen:
            self._late.append((self._end, job))
            return
        _settle(job)
        self._free += 1
        self._next()

    def _carry_out(self, job: _Job) -> None:
        _run(job)
        _settle(job)

    def _delay_us(self) -> int:
        """From 50 us to 1 ms, mostly little."""
        return int(50 * 20 ** self._loop.timeline.rng.random() * self._loop.slowness)


def _run(job: _Job) -> None:
    if job.outcome is not None or job.done() or not job.set_running_or_notify_cancel():
        return
    try:
        job.outcome = True, job.work()
    except Exception as exc:  # noqa: BLE001 - a thread hands over whatever is raised
        job.outcome = False, exc


def _settle(job: _Job) -> None:
    if job.outcome is None or job.done():
        return
    (succeeded, value), job.outcome = job.outcome, None
    if succeeded:
        job.set_result(value)
    else:
        job.set_exception(value)


_working: list[tuple[ProcessLoop, _Job]] = []  # who works now; those before the last one wait


def takes(seconds: float) -> None:
    """Let the job that is being carried out end so much later; other threads go on meanwhile."""
    if _working:
        _working[-1][1].takes_us += int(seconds * 1e6)


def worker() -> ProcessLoop:
    """The process whose thread works now."""
    return _working[-1][0]


def _result(future: Future, timeout: float | None = None) -> Any:
    """In place of `Future.result`: while a thread waits, the simulation goes on."""
    if _working and threading.get_ident() == _inside and not future.done():
        loop, timeline = _working[-1][0], _working[-1][0].timeline
        deadline_us = None if timeout is None else timeline.now_us + int(timeout * 1e6)
        timeline.run(lambda: future.done() or not loop.alive, deadline_us=deadline_us)
        if not loop.alive:
            raise ProcessDiedError
        timeout = 0
    return _real_result(future, timeout)


_real_sleep, _real_start_thread = time.sleep, threading._start_new_thread
_real_result = Future.result

# -- the walls ------------------------------------------------------------------------------

_FORBIDDEN = frozenset(
    {
        "socket.__new__",
        "subprocess.Popen",
        "os.fork",
        "os.posix_spawn",
        "os.system",
    }
)
_walls = 0
_inside = 0
"""The thread that the walls are around: the process may have others, such as those of py4j."""


def _guard(event: str, args: tuple[Any, ...]) -> None:
    if _walls and event in _FORBIDDEN and threading.get_ident() == _inside:
        raise EscapeError(f"{event}{args} inside the simulation: nothing real may be used there")


@contextlib.contextmanager
def sealed() -> Iterator[None]:
    """Inside, real threads, sockets, processes and sleeps raise where they are asked for."""
    global _walls, _inside  # noqa: PLW0603 - audit hooks cannot be removed, so this one is switched
    _inside = threading.get_ident()
    if not _hooked:
        sys.addaudithook(_guard)
        _hooked.append(True)
    _walls += 1
    # These two are not audited before Python 3.12 and 3.13.
    time.sleep, threading._start_new_thread = _sleep, _start_thread
    Future.result = _result
    try:
        yield
    finally:
        _walls = max(0, _walls - 1)
        if not _walls:
            open_walls()


def open_walls() -> None:
    """Let the real things be used again, whoever still believes to be inside."""
    global _walls  # noqa: PLW0603 - as above
    _walls = 0
    time.sleep, threading._start_new_thread = _real_sleep, _real_start_thread
    Future.result = _real_result


def _sleep(seconds: float) -> None:
    if threading.get_ident() != _inside:
        _real_sleep(seconds)
    elif seconds:  # nothing only lets other threads run
        raise EscapeError(f"time.sleep({seconds}) inside the simulation: wait on the event loop")


def _start_thread(work: Callable[..., object], *others: Any) -> Any:
    if threading.get_ident() != _inside:
        return _real_start_thread(work, *others)
    raise EscapeError(f"a real thread for {work} inside the simulation: use the runtime's threads")


_hooked: list[bool] = []
