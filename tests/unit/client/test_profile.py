"""Profiles: what a client is not told comes from variables, or else from a file."""

import logging
from pathlib import Path

import pytest

from memq import profile
from memq.client.profile import Profile, connection_of, read_profile
from memq.core.named_values import NO_VALUES
from memq.errors import ConfigError

ROOT = Path(__file__).parents[3]
FILE = """
[profiles.default]
bootstrap = "a:1,b:2"
token = "of the default"

[profiles.prod]
bootstrap = "c:3"
token_file = "secret"
read_through = "broker"

[profiles.alone]
token = "for any broker"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The configuration folder, with a file that nobody else can read."""
    for name in ("CONFIG", "PROFILE", "BOOTSTRAP", "TOKEN", "ZONE", "STORAGE_OPTIONS", "SECURITY"):
        monkeypatch.delenv(f"MEMQ_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write(tmp_path / "memq.toml", FILE)
    write(tmp_path / "secret", "of prod\n")
    return tmp_path


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_profile_by_name(folder, monkeypatch):
    """A profile gives its brokers and its token, which a file beside it may hold."""
    assert profile("prod") == {"bootstrap": "c:3", "token": "of prod"}
    assert read_profile("prod") == Profile("c:3", "of prod", None, "broker")
    assert profile() == profile("default") == {"bootstrap": "a:1,b:2", "token": "of the default"}
    monkeypatch.setenv("MEMQ_PROFILE", "prod")
    assert profile()["bootstrap"] == "c:3"
    assert profile("default")["bootstrap"] == "a:1,b:2"


def test_what_a_client_is_given_wins(folder, monkeypatch):
    """An argument wins over a variable, a variable over the profile, before the default."""
    assert connection_of(None) == {"bootstrap": "a:1,b:2", "token": "of the default"}
    assert connection_of(None, "mine") == {"bootstrap": "a:1,b:2", "token": "mine"}
    monkeypatch.setenv("MEMQ_TOKEN", "of the variable")
    assert connection_of(None) == {"bootstrap": "a:1,b:2", "token": "of the variable"}
    monkeypatch.setenv("MEMQ_BOOTSTRAP", "d:4")
    assert connection_of(None) == {"bootstrap": "d:4", "token": "of the variable"}
    assert connection_of("e:5") == {"bootstrap": "e:5", "token": "of the variable"}
    assert connection_of("e:5", "mine") == {"bootstrap": "e:5", "token": "mine"}


def test_a_token_stays_with_its_brokers(folder, monkeypatch):
    """The token of a profile is not sent to brokers that were named in place of its own."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", "d:4")

    assert connection_of(None) == {"bootstrap": "d:4", "token": ""}
    assert read_profile("prod").own("token", "d:4") == ""
    assert read_profile("prod").own("token", "c:3") == "of prod"
    assert read_profile("alone").own("token", "d:4") == "for any broker"


def test_the_zone(folder, monkeypatch):
    """A zone not given is that of the variable, else of the profile that names brokers."""
    write(folder / "memq.toml", FILE.replace('token = "of', "zone = 'file'\ntoken = \"of", 1))
    assert (profile()["zone"], connection_of(None)["zone"]) == ("file", "file")
    assert "zone" not in connection_of("e:5")
    monkeypatch.setenv("MEMQ_ZONE", "variable")
    assert (connection_of(None)["zone"], connection_of("e:5")["zone"]) == ("variable",) * 2
    assert connection_of(None, zone="mine")["zone"] == "mine"


def test_options_of_the_storage(folder, monkeypatch):
    """Options not given are those of the variable, else of the profile that names brokers."""
    write(folder / "memq.toml", f"{FILE}\n[profiles.default.storage_options]\nregion = 'file'\n")
    of_file, mine = ({("region", name)} for name in ("file", "mine"))
    assert profile()["storage_options"] == of_file
    assert connection_of(None)["storage_options"] == of_file
    assert connection_of(None, storage_options={"region": "mine"})["storage_options"] == mine
    assert connection_of("e:5", storage_options="region=mine")["storage_options"] == mine
    assert "storage_options" not in connection_of("e:5")
    assert read_profile().own("storage_options", "a:1,b:2") == of_file
    assert read_profile().own("storage_options", "e:5") == NO_VALUES
    monkeypatch.setenv("MEMQ_STORAGE_OPTIONS", "region=variable")
    of_variable = {("region", "variable")}
    assert connection_of(None)["storage_options"] == of_variable
    assert connection_of("e:5")["storage_options"] == of_variable
    monkeypatch.setenv("MEMQ_STORAGE_OPTIONS", "hush")
    assert connection_of("e:5", storage_options="region=mine")["storage_options"] == mine
    with pytest.raises(ConfigError, match=r"^MEMQ_STORAGE_OPTIONS: .*at its beg") as refused:
        connection_of("e:5")
    assert "hush" not in str(refused.value)


def test_security(folder, monkeypatch):
    """It is found as options of the storage are; a profile's files lie beside the profile."""
    text = "[profiles.default.security]\nca = 'ca.pem'\ncert = '/cert.pem'\nkey = '/key.pem'\n"
    write(folder / "memq.toml", f"{FILE}\n{text}")
    ca = str(folder / "ca.pem")
    of_file = {("ca", ca), ("cert", "/cert.pem"), ("key", "/key.pem")}
    assert connection_of(None)["security"] == of_file
    assert "security" not in connection_of("e:5")
    assert connection_of("e:5", security="ca=mine")["security"] == {("ca", "mine")}
    monkeypatch.setenv("MEMQ_SECURITY", "ca=variable")
    assert connection_of("e:5")["security"] == {("ca", "variable")}
    monkeypatch.setenv("MEMQ_SECURITY", "ca=variable,cart=x")
    with pytest.raises(ConfigError, match="MEMQ_SECURITY: security: unknown option 'cart'; kn"):
        connection_of("e:5")


def test_without_a_file(tmp_path, monkeypatch):
    """Nobody needs a file; a profile that was asked for must be there."""
    monkeypatch.delenv("MEMQ_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    assert profile() == {"bootstrap": "127.0.0.1:6367", "token": ""}
    with pytest.raises(ConfigError, match=r"no profile 'prod' in .*memq\.toml; add \[profiles\.pr"):
        profile("prod")


def test_a_file_that_was_named_must_be_there(tmp_path, monkeypatch):
    """`MEMQ_CONFIG` names the file, wherever it is; a mistake in it does not go unnoticed."""
    monkeypatch.setenv(
        "MEMQ_CONFIG", str(write(tmp_path / "mine", '[profiles.x]\nbootstrap="x:1"'))
    )
    assert profile("x")["bootstrap"] == "x:1"

    monkeypatch.setenv("MEMQ_CONFIG", str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"cannot read .*/other: No such file"):
        profile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[profiles.x\n", "memq.toml is not TOML: .*line 1"),
        ('bootstrap = "a:1"', "unknown 'bootstrap'; a profile begins with a line like"),
        ("[profiles]\ndefault = 3", "'profiles' must be tables"),
        ('[profiles.default]\nbroker = "a:1"', "profile 'default': unknown option 'broker'; known"),
        ('[profiles.default]\nbootstrap = "a:1,b"', "profile 'default': 'b' is not an address"),
        ("[profiles.default]\nbootstrap = 6367", "bootstrap = 6367: expected a text"),
        ('[profiles.default]\ntoken="a"\ntoken_file="b"', "leave out one"),
        ('[profiles.default]\ntoken_file="none"', "cannot read .*/none: No such file"),
        ('[profiles.default]\ntoken_file="empty"', "empty is empty; it should hold a token"),
        ("\udcff", "is not text"),
    ],
)
def test_what_is_wrong_is_named(folder, text, message):
    """A mistake in the file is one line with the file, the place and the way out."""
    write(folder / "empty", "\n")
    (folder / "memq.toml").write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(ConfigError, match=message) as raised:
        profile()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "loose", "holds"),
    [
        ("default", "memq.toml", "a token"),
        ("prod", "secret", "a token"),
        ("harmless", "memq.toml", ""),
        ("aws", "memq.toml", "credentials of a storage"),
    ],
)
def test_secrets_that_others_can_read(folder, caplog, name, loose, holds):
    """There is a warning when others can read the file that holds one, and only then."""
    keys = {"harmless": "region", "aws": "AWS_SECRET_ACCESS_KEY"}
    tables = [f"\n[profiles.{each}.storage_options]\n{key} = 'x'" for each, key in keys.items()]
    write(folder / "memq.toml", FILE + "".join(tables))
    (folder / loose).chmod(0o640)

    with caplog.at_level(logging.WARNING):
        read_profile(name)

    said = f"{folder / loose} holds {holds} and others can read it; chmod 600 it"
    assert [record.getMessage() for record in caplog.records] == ([said] if holds else [])


def test_the_file_in_the_reference(folder):
    """The file that the reference shows can be copied."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    write(folder / "memq.toml", page.split("```toml\n")[1].split("```")[0])
    write(folder / "memq.token", "mine")

    assert profile() == {"bootstrap": "broker-1:6367,broker-2:6367", "token": "mine"}
    assert profile("local") == {"bootstrap": "127.0.0.1:6367", "token": ""}
