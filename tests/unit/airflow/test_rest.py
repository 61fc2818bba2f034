"""Waits on Airflow's REST API end by what happens."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.harness.airflow.rest import Rest, RestError, WaitError, until


@pytest.fixture
def api():
    """A server that gives one state of a run after the other, and the last one forever."""
    states = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state = states.pop(0) if len(states) > 1 else states[0]
            body = {"state": state, "task_instances": [], "total_entries": 0}
            payload = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_):
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", states
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_wait_ends_when_what_it_waits_for_comes(api):
    """A run is given as soon as it is in one of the states."""
    url, states = api
    states += ["queued", "running", "success"]

    assert Rest(url).wait_for_run("d", "r")["state"] == "success"


@pytest.mark.parametrize("kind", ["run", "task"])
def test_a_wait_ends_when_what_it_waits_for_can_come_no_more(api, kind):
    """A run or task that has ended in another way is not waited for any longer."""
    url, states = api
    states += ["running", "failed"]
    rest = Rest(url)

    with pytest.raises(WaitError, match="it ended as 'failed'"):
        if kind == "run":
            rest.wait_for_run("d", "r", states=["success"])
        else:
            rest.wait_for_task("d", "r", "t", states=["deferred"])


def test_a_wait_ends_with_the_death_of_what_would_bring_it(api):
    """When a process of Airflow has died, nothing is asked any more."""
    url, states = api
    states += ["running"]
    calls = []

    def check():
        calls.append(1)
        if len(calls) > 3:
            raise WaitError("scheduler ended")

    with pytest.raises(WaitError, match="scheduler ended"):
        Rest(url, check=check).wait_for_run("d", "r")


def test_a_call_ends_by_itself():
    """A server that takes a call and never answers ends it, not the wait: that looks again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rest = Rest(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.05)
        begin = time.monotonic()
        with pytest.raises(RestError):
            rest.get("/dags")
        assert time.monotonic() - begin < 30
        seen = iter([False, True])

        def look():
            return next(seen) or rest.get("/dags")

        assert until(look, "an answer", interval_s=0.0) is True


def test_the_backstop_says_what_was_last_seen():
    """A wait that nothing ends is given up, and its error shows how far it came."""
    with pytest.raises(WaitError, match=r"not within 0.01 s: the end; last seen: 0"):
        until(lambda: 0, "the end", timeout_s=0.01, interval_s=0.0)
