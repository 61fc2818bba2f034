"""How the process of a service lives and ends; the S3-compatible server stands for all."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.services.errors import ServiceError
from tests.harness.services.jars import S3PROXY
from tests.harness.services.s3proxy import S3Proxy

ROOT = Path(__file__).parents[3]

START_AND_SLEEP = """\
import sys, time
from tests.harness.services.s3proxy import S3Proxy
server = S3Proxy(sys.argv[1])
server.start()
print(server.port, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def available(service_jars):
    """The server can run here; if not, all these tests are skipped."""
    service_jars.java(S3Proxy.name)
    service_jars.get(S3PROXY)


class Broken(S3Proxy):
    """Its main class is not there."""

    def _arguments(self):
        return ["NoSuchClass"]


def test_a_service_that_ends_says_why(tmp_path, service_jars):
    """A process that ends before it serves is an error with the end of its log."""
    server = Broken(tmp_path, jars=service_jars)
    with pytest.raises(ServiceError, match=r"s3proxy ended with 1:\n.*NoSuchClass"):
        server.start()
    assert not server.running


def test_a_killed_test_leaves_no_service(tmp_path, service_jars):
    """A service ends with the process that has started it, even when that is killed with -9."""
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_SLEEP, tmp_path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        address = ("127.0.0.1", int(parent.stdout.readline()))
        socket.create_connection(address).close()  # it runs
        parent.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    with pytest.raises(ConnectionRefusedError):
        while time.monotonic() < deadline_s:
            socket.create_connection(address).close()
            time.sleep(0.02)
