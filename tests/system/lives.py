"""The lives of one broker: real processes, one after the other, on one data directory and port.

They are forked from a server process that has imported everything, so a life costs milliseconds and
not the second that Python and Arrow take to load. Each is a process of its own all the same, ended
by a real SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memq.errors import MemqError
from memq.queue.embedded.queue import EmbeddedQueue
from memq.storage.local import LocalStorage
from tests.fakes.crashing import CrashPoint, run
from tests.harness.fork_server import fork_server
from tests.harness.ports import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

    from memq.core.queue import NotificationQueue
    from memq.storage.handler import StorageHandler


START_TIMEOUT_S = 45.0
"""Longer than a broker waits for Kafka before it gives up, so that it can say that it could not
start, and is started again."""
STARTS = 5  # of a broker that is supervised
COULD_NOT_START = 3  # its exit code
TERM_TIMEOUT_S = 20.0  # a drain takes as long as storing what was accepted
GOES_ON_S = 2.0  # a broker that was stopped


class Seams(NamedTuple):
    """What makes a broker's storage and notification queue from a folder; must pickle."""

    storage: Callable[[Path], StorageHandler] = LocalStorage
    queue: Callable[[Path], NotificationQueue | Awaitable[NotificationQueue]] = EmbeddedQueue
    supervised: bool = False  # a broker that could not start is started again
    may_not_drain: bool = False  # what it needs for that may be away


@dataclass(frozen=True)
class Life:
    """How a broker is to end.

    Attributes:
        crash_at: where it kills itself; None for nowhere.
        ends_after_s: when it is ended from outside if it still lives, from its start on.
        by: "kill" at once; "term" by SIGTERM, after a drain; "term+kill" by SIGKILL while it
            drains; "stop" by SIGSTOP, and SIGKILL when it has gone on for some time.
        stopped_s: for how long it is stopped before it goes on.
        down_s: until the next life begins.
    """

    crash_at: CrashPoint | None
    ends_after_s: float
    by: str = "kill"
    stopped_s: float = 0.0
    down_s: float = 0.0

    def __str__(self) -> str:
        point = f"{self.crash_at} or " if self.crash_at is not None else ""
        return f"{point}{self.by} after {self.ends_after_s:.3f} s"


class Lives:
    """Runs brokers one after the other.

    Args:
        directory: for data and log.
        options: of the broker, as human values.
        seams: its storage and queue.

    Attributes:
        address: `host:port`, the same in every life.
    """

    def __init__(self, directory: Path, options: dict[str, object], seams: Seams) -> None:
        [port] = free_ports(1)
        self.address = f"{HOST}:{port}"
        self._log = directory / "broker.log"
        self._log.touch()
        self._options = {"port": port, "admin_port": 0, "data_dir": str(directory / "data")}
        self._options |= options
        self._seams = seams
        self._issue: Callable[[], object] | None = None
        self._killed = False
        self._ending = False  # by SIGTERM: then it may not listen to others any more
        self._process: ForkServerProcess | None = None
        self._ready: Connection | None = None  # the broker must be able to write to it

    def advertise(self, address: str) -> None:
        """Let brokers tell clients this address in place of their own."""
        self._options["advertised"] = address

    def guard(self, options: dict[str, str], issue: Callable[[], object] | None) -> None:
        """Let brokers ask who their clients are.

        Args:
            options: with which they do.
            issue: replaces the files of their certificate: before each life, and at `renew`.
        """
        self._options |= options
        self._issue = issue

    def renew(self) -> None:
        """Replace its certificate, and tell it, if it serves."""
        process = self._process
        if self._issue is None or process is None or self._ending:
            return
        assert self._ready is not None
        if self._ready.poll() and process.is_alive():  # before, SIGHUP would end it
            self._issue()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGHUP)

    @property
    def log(self) -> str:
        """What all lives have logged."""
        return self._log.read_text(errors="replace")

    async def live(self, life: Life) -> str:
        """Run a broker until it ends as it should; returns how it did, as `step:moment` or `by`.

        Raises:
            BrokerEndedError: it ended otherwise.
        """
        self._start(life.crash_at)
        process = self._process
        assert process is not None
        if await _readable(process.sentinel, life.ends_after_s):
            process.join()
            if self._could_not_start():
                return "could not start"
            if self._killed:
                return "governor"
            if process.exitcode != -signal.SIGKILL or life.crash_at is None:
                raise BrokerEndedError(process.exitcode)
            return f"{life.crash_at.step}:{life.crash_at.moment}"
        if life.by == "stop":
            await self._stop(life.stopped_s)
        elif life.by != "kill":
            await self.terminate(kill_after_s=0.005 if life.by == "term+kill" else None)
        self.kill()
        return life.by

    async def start(self) -> str:
        """Run a broker that lives on; returns the URL of its admin HTTP.

        Raises:
            BrokerEndedError: it ended, or does not serve in time.
        """
        for _ in range(STARTS):
            self._start(None)
            ready = self._ready
            assert ready is not None
            if await _readable(ready.fileno(), START_TIMEOUT_S):
                try:
                    return str(ready.recv())
                except EOFError:
                    pass
            assert self._process is not None
            self._process.join(1)  # it may be about to end
            if not self._could_not_start():
                break
        self.kill()
        assert self._process is not None
        raise BrokerEndedError(self._process.exitcode)

    def _could_not_start(self) -> bool:
        assert self._process is not None
        return self._seams.supervised and self._process.exitcode == COULD_NOT_START

    async def _stop(self, stopped_s: float) -> None:
        """Stop its clock for some time, and let it go on for a while."""
        process = self._process
        assert process is not None
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile, as the Governor
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(stopped_s)
            os.kill(process.pid, signal.SIGCONT)
        if await _readable(process.sentinel, GOES_ON_S):
            process.join()
            if not (self._killed or self._could_not_start()):
                raise BrokerEndedError(process.exitcode)

    async def terminate(self, kill_after_s: float | None = None) -> None:
        """End it by SIGTERM, and wait; by SIGKILL if it takes longer than `kill_after_s`.

        Raises:
            BrokerEndedError: it did not drain whole and in time.
        """
        process = self._process
        assert process is not None
        assert process.pid is not None
        self._ending = True
        os.kill(process.pid, signal.SIGTERM)
        ended = await _readable(process.sentinel, kill_after_s or TERM_TIMEOUT_S)
        self.kill()
        # SIGTERM itself ends a process that has not begun to listen to it.
        good = [0, -signal.SIGTERM, *([1] if self._seams.may_not_drain else [])]
        if self._killed or self._could_not_start():
            return
        if kill_after_s is None and (not ended or process.exitcode not in good):
            raise BrokerEndedError(process.exitcode)

    def kill(self) -> None:
        """End it with SIGKILL, if it lives."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def kill_now(self) -> None:
        """End it with SIGKILL while `live` waits for its end: it governs its cluster."""
        if self._process is not None and self._process.is_alive():
            self._killed = True
            self._process.kill()

    def _start(self, crash_at: CrashPoint | None) -> None:
        self._ready, its_end = _context.Pipe(duplex=False)
        self._killed = self._ending = False
        if self._issue is not None:
            self._issue()
        arguments = (self._options, crash_at, its_end, self._log, self._seams)
        self._process = _context.Process(target=_broker, args=arguments, daemon=True)
        self._process.start()
        its_end.close()


class BrokerEndedError(Exception):
    """A broker ended, and not as it was told to."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"a broker ended with {exit_code}, which nothing asked it to")


def _broker(
    options: dict[str, object],
    crash_at: CrashPoint | None,
    ready: Connection,
    log: Path,
    seams: Seams,
) -> None:
    """What runs in the process of a broker."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)

    def on_ready(broker) -> None:
        ready.send(f"http://{HOST}:{broker.admin_port}")
        ready.close()

    try:
        code = run(options, crash_at, on_ready, storage=seams.storage, queue=seams.queue)
    except MemqError as exc:
        if not seams.supervised:
            raise
        os.write(2, f"could not start: {exc}\n".encode())
        code = COULD_NOT_START
    sys.exit(code)


# Each child imports the main module, which is pytest or `chaos`; let it find all it needs.
IMPORTS = [
    "tests.fakes.crashing",
    "tests.fakes.planted",
    "pytest" if "pytest" in sys.modules else "tests.system.runs",
]
_context = fork_server(IMPORTS)


def renew() -> None:
    """Fork the lives that follow from a server of their own, whatever others have started."""
    fork_server(IMPORTS)


async def _readable(fd: int, timeout_s: float) -> bool:
    """Wait until a descriptor can be read; False when it could not in time."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
