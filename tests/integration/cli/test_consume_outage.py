"""`memq consume` while brokers do not answer, and when nothing comes."""

from __future__ import annotations

import pytest

from memq import AdminClient, Consumer, Producer
from memq.cli.consume import Waiting
from memq.cli.main import main
from memq.testing.broker import BrokerProcess


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A broker of the test's own, with topic t."""
    with BrokerProcess(tmp_path) as process:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", process.address)
        with AdminClient() as admin:
            admin.create_topic("t", batch_age="20ms", audited=False)
        yield process


def send(value):
    """One Batch of one LogMessage."""
    with Producer(topic="t") as producer:
        producer.write(value).result()


def test_outage_is_waited_for(running, capfd):
    """That nothing answers is said once, and so is that it does; nothing is missed or repeated."""
    waiting = Waiting("300ms")
    with Consumer(topic="t", request_timeout=waiting.request_timeout) as consumer:
        send(b"before")
        while (batch := waiting.poll(consumer)) is None:
            pass
        assert [message.value for message in batch] == [b"before"]
        for _ in range(2):
            running.kill()
            while waiting.down is None:
                assert waiting.poll(consumer) is None
            for _ in range(2):  # further errors
                assert waiting.poll(consumer) is None
            running.restart()
            while waiting.down is not None:
                assert waiting.poll(consumer) is None
        send(b"after")
        while (batch := waiting.poll(consumer)) is None:
            pass
        assert [message.value for message in batch] == [b"after"]

    said = capfd.readouterr().err.splitlines()
    assert ["waiting, as there is no answer" in line for line in said] == [True, False] * 2
    assert ["there are answers again" in line for line in said] == [False, True] * 2


def test_timeout_where_nothing_comes(running, capfd):
    """A quiet topic ends --timeout in order; what was to be read in full does not."""
    send(b"line")

    assert main(["consume", "t", "--from-beginning", "--timeout", "300ms"]) == 0
    assert capfd.readouterr() == ("line\n", "")
    assert main(["consume", "t", "--group", "g", "--exit-at-end", "--timeout", "300ms"]) == 0
    held = Consumer(topic="t", group="g")
    with held:
        while not held.assignment:
            held.poll(0.1)
        send(b"more")
        code = main(["consume", "t", "--group", "g", "--exit-at-end", "--timeout", "300ms"])
    assert code == 1
    assert "not all is read" in capfd.readouterr().err
