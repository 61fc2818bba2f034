"""A broker in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import urllib.error
import urllib.request
from functools import partial

import pytest

from memq import AdminClient, Producer
from memq.errors import LimitReachedError, MemqError, RequestTimeoutError
from memq.testing.broker import BrokerProcess


def fetch(url):
    """The body of an HTTP answer."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own broker
        return answer.read()


def running(pid):
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_life(tmp_path):
    """It serves when it is there, says where, and drains on SIGTERM."""
    with BrokerProcess(tmp_path / "data") as broker:
        assert fetch(f"{broker.admin}/ready") == b"ready\n"
        assert f"is ready on {broker.address}" in broker.log
        assert repr(broker) == f"<BrokerProcess {broker.address} [pid {broker.pid}, running]>"

        assert broker.terminate() == 0

        assert "stopped" in broker.log
        assert "ended with 0" in repr(broker)


def test_restart_keeps_its_place(tmp_path):
    """After a crash it comes back under the same addresses, with its log kept."""
    with BrokerProcess(tmp_path) as broker:
        before = (broker.address, broker.admin)
        first = broker.pid
        broker.kill()
        assert not running(first)

        broker.restart()

        assert (broker.address, broker.admin) == before
        assert broker.pid != first
        assert broker.log.count("is ready on") == 2


def test_a_low_limit_of_open_files_is_raised_before_any_is_needed(tmp_path):
    """What a broker could make it can open again, whatever its shell allows a process at first."""
    partitions, few = 64, 200  # each partition that has data takes four files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with BrokerProcess(tmp_path) as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic("t", read_partitions=partitions, batch_age="1ms")
        with Producer(broker.address, topic="t") as producer:
            for _ in range(partitions):
                producer.write(b"").result(30)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
            broker.restart()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with AdminClient(broker.address) as admin:
            assert sum(each.end for each in admin.offsets("t")) == partitions


def test_nothing_is_left_behind(tmp_path):
    """The process is gone when the context ends, whatever happened in it."""

    def fail():
        with BrokerProcess(tmp_path) as broker:
            pids.append(broker.pid)
            raise KeyError

    pids = []
    with pytest.raises(KeyError):
        fail()

    assert not running(pids[0])


def test_broker_that_ends(tmp_path):
    """A broker that does not start tells why."""
    with (
        BrokerProcess(tmp_path, broker_id="first"),
        pytest.raises(MemqError, match=r"broker ended with 1:\nmemq: error: .* is in use"),
    ):
        BrokerProcess(tmp_path)


def test_broker_that_does_not_come(tmp_path):
    """The wait for it has an end."""
    with pytest.raises(RequestTimeoutError, match=r"no broker within 0\.01 s"):
        BrokerProcess(tmp_path, start_timeout_s=0.01)


def test_options(tmp_path):
    """Options are those of `memq broker`, flags among them."""
    options = {"broker_id": "b7", "auto_create_topics": True, "log_level": "error"}

    with BrokerProcess(tmp_path, **options) as broker:
        assert b'"broker_id": "b7"' in fetch(f"{broker.admin}/status")
        assert broker.log == ""


def test_topic_page(tmp_path):
    """The admin HTTP shows what a topic holds, and says so when there is none."""
    with BrokerProcess(tmp_path, auto_create_topics=True) as broker:
        with Producer(broker.address, topic="clicks", acks="all") as producer:
            producer.write(b"value").result(timeout=30)

        assert b"/topics/NAME" in fetch(broker.admin + "/")
        assert b"_created" not in fetch(f"{broker.admin}/metrics")
        page = json.loads(fetch(f"{broker.admin}/topics/clicks"))

        assert page["topic"] == "clicks"
        assert sum(each["end"] - each["start"] for each in page["read_partitions"]) == 1
        assert page["stored_through_ms"] > 0
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            fetch(f"{broker.admin}/topics/nothing")
        with refused.value as answer:
            assert json.loads(answer.read())["error"] == "unknown_topic"


def test_files_of_a_topic_are_counted_before_it_is_made(tmp_path, monkeypatch):
    """Within the limit of open files a topic is refused that would take those of others."""
    limits = (700, 700)  # 100 for connections, 200 for all else, 4 for each of 100 read partitions
    limited = partial(
        subprocess.Popen, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    )
    monkeypatch.setattr(subprocess, "Popen", limited)
    with BrokerProcess(tmp_path, auto_create_topics=True, max_connections=100) as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic("wide", read_partitions=90)
            with pytest.raises(LimitReachedError, match="enough for 100: choose fewer"):
                admin.create_topic("wider", read_partitions=20)
        for _ in range(2):
            with Producer(broker.address, topic="others") as producer:
                producer.write(b"x").result(30)
            broker.restart()
