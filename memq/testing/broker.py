"""A real broker in a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from memq.errors import MemqError, RequestTimeoutError

if TYPE_CHECKING:
    from typing import Self

START_TIMEOUT_S = 30.0  # a start takes less than 1 s; a busy machine and a long recovery, more
STOP_TIMEOUT_S = 60.0  # twice the broker's default drain_timeout


class BrokerProcess:
    """A broker run by `python -m memq broker`; it serves once this returns.

    It listens on free ports of 127.0.0.1. Its data in `data_dir` outlives it. As a context manager
    it leaves no process behind.

    Args:
        data_dir: of the broker.
        start_timeout_s: longest wait until it serves.
        **options: broker options as `memq broker` takes them, such as `memory_bytes="64MiB"`.

    Attributes:
        data_dir: of the broker.
        address: `host:port` that clients connect to; kept by `restart`.
        admin: URL of the admin HTTP.
        pid: of the process.

    Raises:
        MemqError: it ended before it served; the message has its log.
        RequestTimeoutError: it does not serve in time.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        **options: str | int | bool,
    ) -> None:
        self.data_dir = Path(data_dir)
        self._options = {"port": 0, "admin_port": 0, **options, "data_dir": str(data_dir)}
        self._start_timeout_s = start_timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the object lives
        try:
            self._start()
        except BaseException:
            self._log.close()
            raise

    def __repr__(self) -> str:
        code = self._process.poll()
        state = "running" if code is None else f"ended with {code}"
        return f"<BrokerProcess {self.address} [pid {self.pid}, {state}]>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        """What it has logged so far, over all restarts."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._process.kill()
        self._process.wait()

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End it with SIGTERM and wait until it has drained.

        Returns:
            Its exit code: 0 when it drained whole.

        Raises:
            RequestTimeoutError: it did not end in time; it runs on.
        """
        self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise RequestTimeoutError(
                f"broker {self.pid} did not end within {timeout_s:g} s:\n{self.log}"
            ) from exc

    def restart(self) -> None:
        """Start it again with the same data and ports; one that still runs is killed first.

        Raises:
            MemqError: as at construction.
        """
        self.kill()
        self._options["port"] = int(self.address.rpartition(":")[2])
        self._options["admin_port"] = int(self.admin.rpartition(":")[2])
        self._start()

    def close(self) -> None:
        """Kill it if it still runs, and drop its log. May be called again."""
        self.kill()
        self._log.close()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "memq", "broker", "-o", "json", *_flags(self._options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            place = json.loads(self._ready_line())
        except BaseException:
            self.kill()
            raise
        finally:
            assert self._process.stdout is not None  # noqa: S101 - asked for above
            self._process.stdout.close()  # it prints nothing more
        self.address: str = place["address"]
        self.admin: str = place["admin"]
        self.pid: int = place["pid"]

    def _ready_line(self) -> bytes:
        """Return the line that says where it serves."""
        assert self._process.stdout is not None  # noqa: S101 - asked for by _start
        watchdog = threading.Timer(self._start_timeout_s, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        late = not watchdog.is_alive()
        watchdog.cancel()
        if late:
            raise RequestTimeoutError(f"no broker within {self._start_timeout_s:g} s:\n{self.log}")
        if not line:
            raise MemqError(f"broker ended with {self._process.wait()}:\n{self.log}")
        return line


def _flags(options: dict[str, str | int | bool]) -> list[str]:
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag}={value}")
    return flags
