"""Completion: what the shell is told, over its own protocol and in bash itself."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from memq import AdminClient
from memq.cli.main import main
from memq.testing.broker import BrokerProcess

MEMQ = Path(sys.executable).with_name("memq")
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with topics and groups to choose from."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), token="secret") as process:
        with AdminClient(process.address, token="secret") as admin:
            for topic in ("clicks", "clicks-raw", "rides"):
                admin.create_topic(topic)
            admin.reset_offsets("reports", "clicks", "earliest")
            admin.reset_offsets("billing", "rides", "earliest")
        yield process


@pytest.fixture
def known(broker, monkeypatch):
    """The variables say where the broker is."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
    monkeypatch.setenv("MEMQ_TOKEN", "secret")


@pytest.fixture
def complete(monkeypatch, capfd):
    """The choices for the last of the words that bash is told; nothing else may be printed."""

    def complete(*words):
        monkeypatch.setenv("_MEMQ_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("memq", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit) as ended:
            main([])
        shown = capfd.readouterr()
        assert (ended.value.code, shown.err) == (0, "")
        return [line.removeprefix("plain,") for line in shown.out.splitlines() if line]

    return complete


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["topic", "describe", "cl"], ["clicks", "clicks-raw"]),
        (["consume", "_"], ["_memq_audit"]),
        (["consume", "clicks", "--group", ""], ["billing", "reports"]),
        (["group", "describe", "b"], ["billing"]),
        (["group", "reset-offsets", "reports", "r"], ["rides"]),
        (["group", "list", "ri"], ["rides"]),
        (["audit", "clicks", "--consumer", "rep"], ["reports"]),
        (["topic", "create", ""], []),
    ],
)
def test_names_come_from_the_broker(complete, known, words, choices):
    """Where a topic or a group is wanted, those that exist are offered; MemQ's own if begun."""
    assert complete(*words) == choices


def test_a_profile_says_which_broker(complete, broker, tmp_path, monkeypatch):
    """The profile holds for completion as well, silently where others can read it."""
    path = tmp_path / "memq.toml"
    path.write_text(f'[profiles.x]\nbootstrap = "{broker.address}"\ntoken = "secret"\n')
    path.chmod(0o644)
    monkeypatch.setenv("MEMQ_CONFIG", str(path))
    monkeypatch.delenv("MEMQ_BOOTSTRAP", raising=False)

    assert complete("topic", "describe", "--profile", "x", "ri") == ["rides"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MEMQ_BOOTSTRAP", "127.0.0.1:{silent}"),
        ("MEMQ_BOOTSTRAP", "nowhere.invalid:1"),
        ("MEMQ_BOOTSTRAP", "nonsense"),
        ("MEMQ_TOKEN", "wrong"),
    ],
)
def test_trouble_is_silent(complete, known, monkeypatch, variable, value):
    """Without a broker that answers there is nothing to choose from, and no noise."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(variable, value.format(silent=server.getsockname()[1]))
        assert complete("topic", "describe", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell):
    """The script for each shell is that which its shell understands, where it is there to ask."""
    script = subprocess.run(
        [MEMQ, "completion", shell], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )

    assert script.stderr == ""
    assert "_MEMQ_COMPLETE" in script.stdout
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=script.stdout, text=True, timeout=TIMEOUT_S, check=True)
