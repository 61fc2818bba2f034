"""Profiles on the command line: where the brokers are, and what they are told."""

from __future__ import annotations

import json

import pytest

from memq import AdminClient
from memq.cli.main import main
from memq.testing.broker import BrokerProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker that asks for a token, with a topic that only it has."""
    with BrokerProcess(tmp_path_factory.mktemp("guarded"), token="secret") as process:
        with AdminClient(process.address, token="secret") as admin:
            admin.create_topic("kept")
        yield process


@pytest.fixture
def file(tmp_path, monkeypatch, broker, guarded):
    """A configuration file with a profile for each of two brokers."""
    path = tmp_path / "memq.toml"
    path.write_text(
        f"""
        [profiles.default]
        bootstrap = "{broker.address}"

        [profiles.guarded]
        bootstrap = "{guarded.address}"
        token = "secret"
        """
    )
    path.chmod(0o600)
    monkeypatch.setenv("MEMQ_CONFIG", str(path))
    for name in ("MEMQ_BOOTSTRAP", "MEMQ_TOKEN", "MEMQ_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return path


def topics(capsys, *arguments):
    """The names of the topics that a command line finds."""
    assert main(["topic", "list", "-o", "json", *arguments]) == 0
    return [row["topic"] for row in json.loads(capsys.readouterr().out)]


def test_the_profile_says_which_brokers(file, capsys, monkeypatch):
    """A profile is chosen by flag or variable; without one it is `default`."""
    assert "kept" in topics(capsys, "--profile", "guarded")
    assert "kept" not in topics(capsys)
    monkeypatch.setenv("MEMQ_PROFILE", "guarded")
    assert "kept" in topics(capsys)


def test_flag_and_variable_win_over_the_profile(file, capsys, monkeypatch, broker, guarded):
    """A flag wins over a variable, and a variable over the profile, with a warning."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
    assert main(["topic", "list", "--profile", "guarded"]) == 0
    captured = capsys.readouterr()
    assert "kept" not in captured.out
    assert captured.err == (
        f"memq: warning: MEMQ_BOOTSTRAP={broker.address} wins over the profile's bootstrap; unset "
        f"it, or give -b {guarded.address}\n"
    )
    assert "kept" in topics(capsys, "--profile", "guarded", "-b", guarded.address)


def test_the_token_goes_to_its_own_brokers_only(file, capsys, tmp_path, guarded):
    """Brokers that a flag names are not told the token of a profile that names others."""
    file.write_text('[profiles.other]\nbootstrap = "elsewhere:1"\ntoken = "secret"\n')

    assert main(["topic", "list", "--profile", "other", "-b", guarded.address]) == 1

    assert "token" in capsys.readouterr().err
    assert "kept" in topics(capsys, "-b", guarded.address, "--token", "secret")
