"""Commands in processes of their own, and what they left."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

TIMEOUT_S = 60
ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""How a command is ended from outside, with its exit code."""


def broker_folder(broker):
    """The data directory of a broker."""
    return Path(broker._options["data_dir"])


def start(*arguments, **options):
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "memq", *map(str, arguments)],
        **({"stdin": PIPE, "stdout": PIPE, "stderr": PIPE} | options),
    )


def end(process, data=None):
    """Exit code, output and errors of a process that ends, when it was given all its input."""
    out, err = process.communicate(data, timeout=TIMEOUT_S)
    return process.returncode, out, err.decode()


def committed(memq, group):
    """The stored offsets of a group."""
    return [
        row["current_offset"] for row in json.loads(memq("group", "describe", group, "-o", "json"))
    ]


@contextmanager
def in_thread(tiny):
    """The broker serves from a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tiny-broker")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(tiny.start(), loop).result(10)
        yield tiny
        asyncio.run_coroutine_threadsafe(tiny.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
