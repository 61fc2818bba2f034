"""The demo's broker: `memq dev` in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.harness.services.signed_s3 import ROLE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.services.signed_s3 import SignedS3

BUCKET = "memq-demo"


def leave_out_settings() -> None:
    """Forget what the user has set for brokers of their own, such as a token: these have none."""
    for name in [name for name in os.environ if name.startswith("MEMQ_")]:
        del os.environ[name]


class DemoBroker:
    """A broker on free ports of the loopback.

    Args:
        data_dir: where it keeps everything.
        s3: where its Batches go; it then speaks TLS, asks for passwords, and hands out credentials
            for this server. None for files, and for everybody.

    Attributes:
        address: where clients reach it; the same after a restart.
        console: URL of its console, which a restart moves.
        folder: where it keeps what is its own.
    """

    def __init__(self, data_dir: Path, s3: SignedS3 | None = None) -> None:
        self._data_dir = data_dir
        self.folder = data_dir / "memq"
        self._objects = self.folder / "objects"
        self._options: dict[str, str] = {}
        if s3 is not None:
            s3.make_bucket(BUCKET)
            self._objects = s3.folder / BUCKET
            self._options = {
                "MEMQ_STORAGE": f"s3://{BUCKET}",
                "MEMQ_STORAGE_OPTIONS": ",".join(f"{name}={it}" for name, it in s3.owner.items()),
                "MEMQ_CREDENTIALS_ROLE": ROLE,
                "MEMQ_CREDENTIALS_ENDPOINT": s3.endpoint,
            }
        self._log = (data_dir / "broker.log").open("ab")
        self.address = self.console = ""
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        port = self.address.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "memq", "dev", "--data-dir", str(self._data_dir / "memq")]
        command += ["--port", port, "--admin-port", "0", "--output", "json"]
        command += ["--secure"] if self._options else []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, env={**os.environ, **self._options}
        )
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the broker did not start; see {self._log.name}")
        place = json.loads(line)
        self.address, self.console = place["address"], f"{place['admin']}/console/"

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as an operator would: SIGTERM, and wait until it has drained."""
        os.kill(self._process.pid, signal.SIGTERM)
        self._process.wait(60)
        self._log.close()

    def objects(self, topic: str) -> list[Path]:
        """The stored Batches of a topic."""
        stored = self._objects.rglob("*.arrows")
        return sorted(path for path in stored if f"/topics/{topic}/" in str(path))
