"""`memq status`: one line says what is wrong, the exit code that something is, within seconds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from memq.cli.main import main
from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, NotHostedError, UnavailableError
from memq.testing import BrokerProcess
from tests.fakes.tiny_broker import TinyBroker

SINCE_MS = 1_795_000_000_000


def status(*arguments, timeout_s=60):
    """Exit code, stdout, stderr and seconds of the command."""
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "memq", "status", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - begun_s


@contextmanager
def in_thread(tiny):
    """A broker that serves on an event loop of its own."""
    loop = asyncio.new_event_loop()
    started, over = threading.Event(), None

    async def serve():
        nonlocal over
        over = asyncio.Event()
        async with tiny.serve():
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(20)
    try:
        yield tiny
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def own(tiny, name="b1", *, others=(), **fields):
    """What a broker tells of itself."""
    seen = [m.ClusterBroker(id=name, address=tiny.address)]
    seen += [m.ClusterBroker(id=each, address=address) for each, address in others]
    told = m.BrokerStatus(id=name, address=tiny.address, version="1", **fields)
    return m.DescribeClusterAnswer(cluster_id="c", governor="", brokers=seen, status=told)


def test_all_is_well(tmp_path):
    """With nothing wrong it says so, shows the broker and its services, and exits with 0."""
    with BrokerProcess(tmp_path, auto_create_topics=True) as broker:
        code, out, err, _ = status("-b", broker.address)
        assert (code, err) == (0, "")
        assert out.startswith("ok: 1 broker of cluster memq\n")
        assert broker.address in out
        code, out, _, _ = status("-b", broker.address, "-o", "json")
        found = json.loads(out)
        assert code == 0
        assert found["problems"] == []
        assert found["silent"] == {}
        (one,) = found["brokers"]
        assert one["address"] == broker.address
        assert one["free_bytes"]
        assert {each["name"]: each["since_ms"] for each in one["services"]} == {
            "storage": None,
            "queue": None,
            "disk": None,
        }


def test_a_frozen_broker_holds_it_up_for_no_longer_than_its_deadline(tmp_path):
    """With nobody who answers the exit code is 2, within the time that was given."""
    with BrokerProcess(tmp_path) as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        code, out, err, took_s = status("-b", broker.address, "--timeout", "2s")
        os.kill(broker.pid, signal.SIGCONT)
    assert (code, out) == (2, "")
    assert err.startswith("memq: error: no broker tells its state: ")
    assert broker.address in err or "no answer within" in err
    assert took_s < 20  # mostly Python's start, on a busy machine


def test_wrong_usage_exits_with_2(capsys):
    """As with any command."""
    assert main(["status", "--timeout", "soon"]) == 2
    assert "soon" in capsys.readouterr().err


def test_what_is_wrong_is_the_first_line(capsys):
    """A service that refuses is named with its brokers and the way out; then who is dead."""
    with socket.create_server(("127.0.0.1", 0)) as frozen, in_thread(TinyBroker()) as tiny:
        frozen_at = f"127.0.0.1:{frozen.getsockname()[1]}"
        refuses = m.ServiceState(name="kafka", where="k:9092", since_ms=SINCE_MS, error="no answer")
        tiny.answers[m.DescribeCluster] = own(
            tiny,
            others=[("b2", frozen_at)],
            services=[m.ServiceState(name="storage", where="s3://x/"), refuses],
            not_ready=[refuses.words(), "it is not certain to be part of its cluster"],
            late_topic="clicks",
            watermark_age_ms=61_000,
            late_ms=60_000,
        )
        begun_s = time.monotonic()
        assert main(["status", "-b", tiny.address]) == 1
        assert time.monotonic() - begun_s < 5
        lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "kafka (k:9092) refuses since 2026-11-18T11:06:40.000Z: no answer (at b1); mend kafka, or "
        "the way to it"
    )
    assert lines[1].startswith("broker b2 does not answer: ")
    assert lines[2] == "broker b1 is not ready: it is not certain to be part of its cluster"
    assert lines[3].startswith("the watermark of clicks at broker b1 is 61 s old")
    assert lines[4] == ""
    assert any(line.startswith("b2 ") and "silent" in line for line in lines)
    assert "storage: s3://x/" in lines


def test_the_governor_is_asked_as_well(capsys):
    """What no broker owns is told, and so is that nobody governs."""
    zookeeper = m.ServiceState(name="zookeeper", where="zk:2181")
    described = m.DescribeClusterAnswer(
        cluster_id="c", governor="b1", brokers=[], homeless={"clicks": [0]}
    )
    with in_thread(TinyBroker()) as tiny:
        answers = {True: own(tiny, services=[zookeeper]), False: described}
        tiny.answers[m.DescribeCluster] = lambda request: answers[request.own]
        assert main(["status", "-b", tiny.address]) == 1
        assert "write partitions of clicks have no owner" in capsys.readouterr().out
        answers[False] = NotHostedError("no broker governs the cluster now")
        assert main(["status", "-b", tiny.address, "--timeout", "2s"]) == 1
        assert "the Governor does not answer: " in capsys.readouterr().out


@pytest.mark.parametrize("error", [InvalidRequestError("no cluster"), UnavailableError("draining")])
def test_a_broker_that_tells_nothing_is_no_broker_that_answers(capsys, error):
    """An older version, and one that refuses, are exit code 2 with what it said."""
    with in_thread(TinyBroker()) as tiny:
        tiny.answers[m.DescribeCluster] = error
        assert main(["status", "-b", tiny.address]) == 2
    assert str(error) in capsys.readouterr().err
