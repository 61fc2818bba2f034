"""A service that runs in a Java process of its own, and can be killed, frozen and started again.

It listens on free ports of the loopback, which a later start takes again, and keeps all it has in
one folder, its log included. It is serving when `start` returns: the process itself listens on the
port, which another that happens to have it would not prove, and it answers a call.

Nothing is left running when this process ends, even by SIGKILL: the kernel then kills the services.
It does so when the *thread* ends that started them; so all are started by one thread, which lasts
as long as this process.
"""

import re
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from tests.harness.ports import free_ports
from tests.harness.services.errors import ServiceError
from tests.harness.services.jars import Jars

START_TIMEOUT_S = 120.0  # a start takes seconds; on a busy machine ten times as long
STOP_TIMEOUT_S = 30.0  # after SIGTERM; what does not end by then is killed
LOOK_INTERVAL_S = 0.05  # between looks whether it serves
PORT_TRIES = 3  # of the first start: somebody may take a free port before the service does
SHOWN_CHARACTERS = 4000  # of the end of a log
PORT_TAKEN = re.compile(r"Address already in use|BindException|Failed to bind")
LISTENS = "0A"  # the state in /proc/net/tcp

_starter = ThreadPoolExecutor(1, thread_name_prefix="services")


class JavaService(ABC):
    """A service in a Java process.

    As a context manager it serves inside, and leaves no process behind.

    Args:
        folder: with its data, settings and log; made when it is not there.
        jars: of the services.

    Attributes:
        folder: as given.
        log_path: what it has printed, over all starts.
    """

    name: ClassVar[str]
    port_count: ClassVar[int] = 1

    def __init__(self, folder: str | Path, *, jars: Jars | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.log_path = self.folder / "log"
        self.jars = jars or Jars()
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "stopped"
        return f"<{type(self).__name__} {self._ports} in {self.folder} [{state}]>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @abstractmethod
    def _prepare(self) -> None:
        """Write its settings, and whatever else a start needs."""

    @abstractmethod
    def _arguments(self) -> list[str]:
        """What Java is started with."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it answers a call; raising OSError means that it does not."""

    @property
    def port(self) -> int:
        """The port that clients connect to; there is one after the first start."""
        return self._ports[0]

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process, which may have ended."""
        return self._started.pid

    @property
    def running(self) -> bool:
        """Whether the process runs, or is frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has printed so far, over all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it, and wait until it serves. After the first time it has the same data and ports.

        Raises:
            ServiceError: it runs already, has ended instead, or does not serve in time.
            ServiceUnavailableError: this machine cannot run it.
        """
        if self.running:
            raise ServiceError(f"{self!r} runs already")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._ports:
            self._start(timeout_s)
            return
        for left in reversed(range(PORT_TRIES)):
            self._ports = free_ports(self.port_count)
            seen = len(self.log)
            try:
                self._start(timeout_s)
            except ServiceError:
                if not left or not PORT_TAKEN.search(self.log[seen:]):
                    self._ports = []
                    raise
            else:
                return

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it with SIGTERM, and with SIGKILL if it does not end in time. May be called again."""
        if self.running:
            self.thaw()  # a frozen process does not see SIGTERM
            self._started.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._started.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would. May be called again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop its clock: it does nothing, and its connections stay open, until `thaw`."""
        self._started.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._started.send_signal(signal.SIGCONT)

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServiceError(f"{self!r} was not started")
        return self._process

    def _start(self, timeout_s: float) -> None:
        self._prepare()
        with self.log_path.open("ab") as log:
            self._process = self._spawn([*self.jars.java(self.name), *self._arguments()], log)
        try:
            self._wait(timeout_s)
        except BaseException:
            self.kill()
            raise

    def _spawn(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return _starter.submit(
            subprocess.Popen,
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt at the terminal is for the tests alone
        ).result()

    def _wait(self, timeout_s: float) -> None:
        """Wait until it serves."""
        deadline_s = time.monotonic() + timeout_s
        while not self._serves():
            code = self._started.poll()
            if code is not None:
                raise ServiceError(f"{self.name} ended with {code}:\n{self._log_end}")
            if time.monotonic() > deadline_s:
                raise ServiceError(f"no {self.name} within {timeout_s:g} s:\n{self._log_end}")
            time.sleep(LOOK_INTERVAL_S)

    def _serves(self) -> bool:
        try:
            return all(listens(self.pid, port) for port in self._ports) and self._answers()
        except OSError:  # it does not answer, or has ended
            return False

    @property
    def _log_end(self) -> str:
        return self.log[-SHOWN_CHARACTERS:]


def listens(pid: int, port: int) -> bool:
    """Whether this very process listens on a port."""
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    sockets = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port
    }
    return any(_target(path) in sockets for path in Path(f"/proc/{pid}/fd").iterdir())


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it was closed meanwhile
        return ""
