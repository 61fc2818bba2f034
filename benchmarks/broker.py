"""A broker in a process of its own, with a storage that behaves as a benchmark needs it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from memq.broker.config import ALLOCATOR, BrokerConfig
from memq.broker.server import Broker, serve
from memq.errors import ObjectNotFoundError
from memq.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memq.storage.handler import ObjectInfo


class DiscardingStorage:
    """Forgets what it is given, at once: what is left is the cost of the broker itself."""

    remote = False
    requests: ClassVar[dict[str, int]] = {}

    def put(self, key: str, buffers: Sequence[Any], *, timeout_s: float) -> None:
        """Forget it."""

    def get(self, key: str) -> Any:
        """There is nothing."""
        raise ObjectNotFoundError(f"{key}: this storage discards")

    def get_range(self, key: str, start: int, length: int) -> Any:
        """There is nothing."""
        raise ObjectNotFoundError(f"{key}: this storage discards")

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """There is nothing."""
        return iter(())

    def delete(self, *keys: str) -> None:
        """There is nothing."""

    def close(self) -> None:
        """There is nothing."""

    def uri(self, key: str) -> str:
        """A URI that leads nowhere."""
        return f"discard:///{key}"


class SlowStorage(LocalStorage):
    """The local file system behind the latency of an object store: 100 to 400 ms a put."""

    def put(self, key: str, buffers: Sequence[Any], *, timeout_s: float) -> None:
        """Wait, then put."""
        time.sleep(random.uniform(0.1, 0.4))
        super().put(key, buffers, timeout_s=timeout_s)


class NarrowStorage(DiscardingStorage):
    """Takes in no more than a rate, over all threads.

    Args:
        rate_bytes_s: that rate.
    """

    def __init__(self, rate_bytes_s: int) -> None:
        self._rate_bytes_s = rate_bytes_s
        self._lock = threading.Lock()

    def put(self, key: str, buffers: Sequence[Any], *, timeout_s: float) -> None:
        """Take as long as the rate asks."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        with self._lock:
            time.sleep(size / self._rate_bytes_s)


@contextmanager
def broker_process(kind: str, data_dir: Path, /, **options: str) -> Iterator[tuple[str, int]]:
    """Address and pid of a broker process.

    Args:
        kind: of its storage: "discard", "slow", "narrow:" and bytes a second; else as configured.
        data_dir: of the broker.
        **options: broker options.
    """
    command = [sys.executable, "-m", "benchmarks.broker", kind, str(data_dir)]
    command += [f"{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=ALLOCATOR | os.environ
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A folder on the disk of this checkout, not in memory: fsync must mean something."""
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=here) as directory:
        yield Path(directory)


def resident_bytes(pid: int) -> int:
    """Memory that a process has in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _storage(kind: str, data_dir: Path) -> Any:
    if kind == "discard":
        return DiscardingStorage()
    if kind == "slow":
        return SlowStorage(data_dir / "objects")
    if kind.startswith("narrow:"):
        return NarrowStorage(int(kind.removeprefix("narrow:")))
    return None


def main() -> None:
    """Serve until SIGTERM; prints the address as the first line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("storage")
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    options = dict(option.split("=", 1) for option in arguments.options)
    config = BrokerConfig.create(
        {"port": 0, "admin_port": 0, "log_level": "error", "drain_timeout": "1s"}
        | options
        | {"data_dir": str(arguments.data_dir)}
    )
    logging.basicConfig(level=config.log_level.upper())
    broker = Broker(config, storage=_storage(arguments.storage, arguments.data_dir))
    sys.exit(asyncio.run(serve(broker, lambda _: print(broker.address, flush=True))))


if __name__ == "__main__":
    main()
