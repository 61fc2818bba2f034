"""Completion: what the shell is told, over its own protocol and in bash itself."""

from __future__ import annotations

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
def ask(monkeypatch, capfd):
    """What a shell is told about the last of the words; nothing else may be printed."""

    def ask(shell, *words):
        joint = "\n" if shell == "bash" else " "
        monkeypatch.setenv("_MEMQ_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", joint.join(("memq", *words)))
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words)))
        with pytest.raises(SystemExit) as ended:
            main([])
        shown = capfd.readouterr()
        assert (ended.value.code, shown.err) == (0, "")
        return [line for line in shown.out.splitlines() if line]

    return ask


@pytest.fixture
def complete(ask):
    """The choices that bash is told."""
    return lambda *words: [line.removeprefix("plain,") for line in ask("bash", *words)]


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["topic", "describe", ""], ["clicks", "clicks-raw", "rides"]),
        (["topic", "describe", "cl"], ["clicks", "clicks-raw"]),
        (["consume", "_"], ["_memq_audit"]),
        (["consume", "clicks", "--group", ""], ["billing", "reports"]),
        (["group", "describe", "b"], ["billing"]),
        (["group", "reset-offsets", "reports", "r"], ["rides"]),
        (["group", "list", "ri"], ["rides"]),
        (["audit", "clicks", "--consumer", "rep"], ["reports"]),
        (["topic", "create", ""], []),
        (["topic", "describe", "nothing-like-it"], []),
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


@pytest.mark.parametrize("trouble", ["refused", "silent", "no token", "no host", "bad", "profile"])
def test_trouble_is_silent(complete, trouble, broker, monkeypatch):
    """Without a broker that answers there is nothing to choose from, and no noise."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        if trouble in ("refused", "silent"):
            monkeypatch.setenv("MEMQ_BOOTSTRAP", f"127.0.0.1:{server.getsockname()[1]}")
        if trouble == "refused":
            server.close()
        if trouble == "no host":
            monkeypatch.setenv("MEMQ_BOOTSTRAP", "nowhere.invalid:1")
        if trouble == "bad":
            monkeypatch.setenv("MEMQ_BOOTSTRAP", "nonsense")
        if trouble == "profile":
            monkeypatch.setenv("MEMQ_PROFILE", "nowhere")
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
