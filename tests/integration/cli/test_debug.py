"""`memq debug bundle`: what it has, what it lacks and says so, and no secret in it."""

import json
import tarfile
import threading

import pytest

from memq.cli import debug
from memq.cli.main import main
from memq.testing.broker import BrokerProcess

TOKEN = "tok-5d1f0c"  # noqa: S105 - of this broker alone
KEY = "key-77aa01"
SAID = "pass-1234xyz"
PLACE = "allow_http=true,endpoint=http://127.0.0.1:1,region=eu"  # where nobody listens
VARIABLE = "env-secret-998"


def sections(path):
    """Text of each section of a bundle."""
    with tarfile.open(path) as made:
        return {
            each.name.removeprefix("memq-debug/"): made.extractfile(each).read().decode()
            for each in made
        }


@pytest.fixture
def secured(tmp_path):
    """A broker with a token, and a secret of its storage."""
    with BrokerProcess(
        tmp_path / "data",
        token=f"alice {TOKEN}",
        storage="s3://bucket/memq",
        storage_options=f"{PLACE},access_key_id=id,secret_access_key={KEY}",
    ) as process:
        yield process


def test_a_bundle_has_everything_and_no_secret(secured, tmp_path, monkeypatch, capfd):
    """Status, options, metrics, topics, lag and the log are in it; no secret of any of them is."""
    log = tmp_path / "broker.log"
    log.write_text(
        f"INFO before\nWARNING token={TOKEN} password: {SAID}\n"
        f'ERROR "secret_access_key": "{KEY}" at https://ann:{SAID}@store\n'
        f"Authorization: Bearer {SAID}\nINFO {VARIABLE} after\n"
    )
    monkeypatch.setenv("MEMQ_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", VARIABLE)
    monkeypatch.setenv("MEMQ_BOOTSTRAP", secured.address)
    assert main(["topic", "create", "clicks"]) == 0
    path = tmp_path / "b.tar.gz"
    arguments = ["debug", "bundle", "--output", path, "--admin", secured.admin, "--log", log]
    assert main(list(map(str, arguments))) == 0
    found = sections(path)
    whole = "\n".join(found.values())
    for secret in (TOKEN, KEY, SAID, VARIABLE):
        assert secret not in whole
        assert secret.encode() not in path.read_bytes()
    assert json.loads(found["status.json"])["brokers"][0]["id"] == "broker-1"
    assert "clicks" in found["topics.json"]
    status = json.loads(found["admin-1-status.txt"].partition("\n")[2])
    shown = dict(each.split("=") for each in status["options"]["storage_options"].split(","))
    assert shown["region"] == "eu"
    assert shown["secret_access_key"] == "***"  # noqa: S105
    assert status["options"]["token"] == "***"  # noqa: S105
    assert any("memq_ready 1.0" in text for text in found.values())
    assert "INFO before" in found["log-1.txt"]
    assert {"versions.json", "groups.json", "lag.json"} <= found.keys()
    assert "not in the bundle" not in whole
    capfd.readouterr()


def test_what_cannot_be_had_says_why(tmp_path, capfd):
    """Without a broker and with a log that is not there, the rest is in it, and the reasons."""
    path = tmp_path / "b.tar.gz"
    monkey = ["-b", "127.0.0.1:1", "--admin", "http://127.0.0.1:1", "--log", tmp_path / "nothing"]
    debug_call = ["debug", "bundle", "--output", path, *monkey]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debug, "CALL_S", 0.2)
        assert main(list(map(str, debug_call))) == 0
    found = sections(path)
    assert "python" in json.loads(found.pop("versions.json"))
    assert len(found) == 7
    for text in found.values():
        assert text.startswith("not in the bundle: ")
    assert "sections say why not" in capfd.readouterr().err


def test_a_bundle_is_bounded(tmp_path, monkeypatch, capfd):
    """A huge log is cut at its beginning, and a question without an answer is given up."""
    monkeypatch.setattr(debug, "MAX_BUNDLE_BYTES", 10_000)
    monkeypatch.setattr(debug, "MAX_SECTION_BYTES", 8_000)
    monkeypatch.setattr(debug, "BUNDLE_S", 0.5)
    never = threading.Event()
    monkeypatch.setattr(
        debug,
        "_sections",
        lambda *_, **__: iter(
            [
                ("log", lambda: "x" * 20_000 + "end"),
                ("more", lambda: "y" * 20_000),
                ("never", never.wait),
                ("late", lambda: "z"),
            ]
        ),
    )
    path = tmp_path / "b.tar.gz"
    assert main(["debug", "bundle", "--output", str(path), "-b", "127.0.0.1:1"]) == 0
    found = sections(path)
    assert found["log"].startswith("(the beginning is left out)")
    assert found["log"].endswith("end")
    assert sum(map(len, found.values())) < 10_300
    never.set()
    capfd.readouterr()
