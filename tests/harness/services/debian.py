"""Packages of Debian that tests need: got once, by one process at a time, where that is allowed."""

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.harness.services.errors import ServiceUnavailableError
from tests.harness.services.jars import FOLDER

RUN_S = 300.0


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep other processes from doing the same."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(*packages: str) -> None:
    """Install packages; call it `one_at_a_time`.

    Raises:
        ServiceUnavailableError: this is not allowed here, or failed.
    """
    if os.geteuid():
        raise ServiceUnavailableError(packages[0], f"install {' and '.join(packages)}")
    run(packages[0], ["apt-get", "-qq", "update"])
    run(packages[0], ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages])


def run(name: str, command: Sequence[str], folder: str = ".") -> None:
    """Run a command to its end.

    Raises:
        ServiceUnavailableError: it failed; the message names the service.
    """
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=RUN_S
        )
    except (OSError, subprocess.SubprocessError) as exc:
        said = getattr(exc, "stderr", None) or str(exc)
        raise ServiceUnavailableError(name, str(said).strip()) from exc
