"""How the process of a service lives and ends; the S3-compatible server stands for all."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
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


class Unlucky(S3Proxy):
    """Somebody takes its first port before it does."""

    taken = None

    def _arguments(self):
        if self.taken is None:
            self.taken = socket.create_server(("127.0.0.1", self.port))
        return super()._arguments()


class Broken(S3Proxy):
    """Its main class is not there."""

    def _arguments(self):
        return ["NoSuchClass"]


def status(server, timeout_s=10.0):
    """What it answers to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_service_that_ends_says_why(tmp_path, service_jars):
    """A process that ends before it serves is an error with the end of its log."""
    server = Broken(tmp_path, jars=service_jars)
    with pytest.raises(ServiceError, match=r"s3proxy ended with 1:\n.*NoSuchClass"):
        server.start()
    assert not server.running


def test_a_service_that_does_not_serve_in_time_is_killed(tmp_path, service_jars):
    """A start that is not done within its time is an error, and leaves no process."""
    server = S3Proxy(tmp_path, jars=service_jars)
    with pytest.raises(ServiceError, match="no s3proxy within 0 s"):
        server.start(timeout_s=0)
    assert not server.running


def test_a_port_that_is_taken_is_given_up(tmp_path, service_jars):
    """A first start whose port somebody else has taken meanwhile goes on with another."""
    server = Unlucky(tmp_path, jars=service_jars)
    with server, server.taken:
        assert server.port != server.taken.getsockname()[1]
        assert status(server) == http.client.FORBIDDEN


def test_a_running_service_is_not_started_twice(s3_server):
    """A start while it runs is refused, and does not disturb it."""
    with pytest.raises(ServiceError, match="runs already"):
        s3_server.start()
    assert status(s3_server) == http.client.FORBIDDEN


def test_a_frozen_service_goes_on_where_it_was(s3_server):
    """A frozen service takes connections and answers nothing; thawed it answers."""
    s3_server.freeze()
    try:
        with pytest.raises(TimeoutError):
            status(s3_server, timeout_s=0.5)
    finally:
        s3_server.thaw()
    assert status(s3_server) == http.client.FORBIDDEN


def test_a_service_outlives_the_thread_that_started_it(tmp_path, service_jars):
    """A service that a short thread has started runs on when that has ended."""
    server = S3Proxy(tmp_path, jars=service_jars)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        server._process.wait(0.5)
    server.stop()
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
