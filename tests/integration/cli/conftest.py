"""What the tests of commands share: a broker, and ways to talk to it."""

import re

import pytest

from memq.cli.main import main
from memq.testing.broker import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """One broker for all commands; each test has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def memq(broker, monkeypatch, capfdbinary):
    """Runs a command that must end with `code`; returns what it printed."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)

    def run(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        captured = capfdbinary.readouterr()
        if code == 0:
            return captured.out
        return captured.err.decode()

    return run


@pytest.fixture
def topic(memq, request):
    """A topic of the test's own, whose Batches and producers close soon."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    memq("topic", "create", name, "--batch-age", "20ms", "--no-audited")  # a report takes 0.5 s
    return name


@pytest.fixture
def lines(tmp_path):
    """A file with a thousand lines, some of them no text."""
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d \xff\x00\n" % number for number in range(1_000)))
    return path
