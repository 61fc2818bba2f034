"""A broker in a process of its own."""

import os
import urllib.error
import urllib.request

import pytest

from memq.errors import MemqError, RequestTimeoutError
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
