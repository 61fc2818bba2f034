"""Profiles on the command line: where the brokers are, and what they are told."""

import json
from pathlib import Path

import pytest

from memq import AdminClient
from memq.cli.main import main
from memq.testing.broker import BrokerProcess
from tests.harness.certificates import Certificates


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    """A broker that asks for a token, and has a topic; a profile names it."""
    with BrokerProcess(tmp_path / "guarded", token="secret") as process:
        with AdminClient(process.address, token="secret") as admin:
            admin.create_topic("kept")
        path = tmp_path / "memq.toml"
        path.write_text(f'[profiles.x]\nbootstrap = "{process.address}"\ntoken = "secret"\n')
        path.chmod(0o600)
        monkeypatch.setenv("MEMQ_CONFIG", str(path))
        yield process


def topics(capsys, *arguments, code=0):
    """The names of the topics that a command line finds, and what is on stderr."""
    assert main(["topic", "list", "-o", "json", *arguments]) == code
    out, err = capsys.readouterr()
    names = [row["topic"] for row in json.loads(out or "[]")]
    return [name for name in names if name != "_memq_audit"], err


def test_the_profile_says_which_brokers(guarded, broker, capsys, monkeypatch):
    """It is chosen by flag or variable. A flag wins over it, and so does a variable, with a
    warning; brokers that a flag names are not told the token of a profile that names others.
    """
    assert topics(capsys, "--profile", "x") == (["kept"], "")
    monkeypatch.setenv("MEMQ_PROFILE", "x")
    assert topics(capsys) == (["kept"], "")
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
    found, said = topics(capsys, "--profile", "x")
    assert "kept" not in found
    assert said == (
        f"memq: warning: MEMQ_BOOTSTRAP={broker.address} wins over the profile's bootstrap; unset "
        f"it, or give -b {guarded.address}\n"
    )
    assert topics(capsys, "-b", guarded.address) == (["kept"], "")
    monkeypatch.delenv("MEMQ_BOOTSTRAP")
    with BrokerProcess(guarded._options["data_dir"] + "-other", token="secret") as other:
        assert "token" in topics(capsys, "-b", other.address, code=1)[1]


def test_tls_by_a_profile(tmp_path, monkeypatch, capsys):
    """A profile's table names the CA, relative to the file; a variable or flag does so as well."""
    certificates = Certificates(tmp_path)
    with BrokerProcess(tmp_path / "data", **certificates.broker_options()) as process:
        path = tmp_path / "memq.toml"
        security = f'[profiles.x.security]\nca = "{Path(certificates.ca).name}"\n'
        path.write_text(f'[profiles.x]\nbootstrap = "{process.address}"\n{security}')
        monkeypatch.setenv("MEMQ_CONFIG", str(path))
        monkeypatch.setenv("MEMQ_PROFILE", "x")
        assert topics(capsys) == ([], "")
        other = process.address.replace("127.0.0.1", "localhost")
        assert "give `ca`" in topics(capsys, "-b", other, code=1)[1]
        monkeypatch.delenv("MEMQ_PROFILE")
        named = ("-b", process.address, "--security", f"ca={certificates.ca}")
        assert topics(capsys, *named) == ([], "")
        monkeypatch.setenv("MEMQ_SECURITY", f"ca={certificates.ca}")
        assert topics(capsys, "-b", process.address) == ([], "")
        assert main(["status", "-b", process.address]) == 0
