"""Which credentials of AWS a store is opened with, where several are at hand."""

from __future__ import annotations

import os

import pytest

from memq.core.storage.object_store_client import open_store
from memq.errors import ConfigError

KEYS = {"access_key_id": "given", "secret_access_key": "given"}
TEMPORARY = KEYS | {"session_token": "given"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    """A machine with a profile `logs`, and nothing else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    files = tmp_path / "credentials"
    files.write_text("[logs]\naws_access_key_id = of logs\naws_secret_access_key = of logs\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def keys_of(options):
    """Key and session token that requests are signed with."""
    store = open_store("s3://bucket", options).store
    if store.credential_provider is None:
        return store.config["access_key_id"], store.config.get("session_token")
    found = store.credential_provider()
    return found["access_key_id"], found["token"]


@pytest.mark.parametrize("options", [KEYS, TEMPORARY])
def test_keys_that_are_given_are_used(monkeypatch, options):
    """They win over the keys, the token and the profile of the environment."""
    expected = ("given", options.get("session_token"))
    assert keys_of(options) == expected
    monkeypatch.setenv("AWS_PROFILE", "logs")
    assert keys_of(options) == expected
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the machine")
    assert keys_of(options) == expected
    assert keys_of({f"AWS_{name.upper()}": value for name, value in options.items()}) == expected


def test_a_profile_that_is_given_is_used(monkeypatch):
    """The option `profile` counts before keys in the environment, as `--profile` of AWS does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    assert keys_of({"profile": "logs"}) == ("of logs", None)
    assert keys_of({"Profile": "logs"}) == ("of logs", None)


def test_the_profile_of_the_environment(monkeypatch):
    """`AWS_PROFILE` counts after keys in the environment, and before the role of a container."""
    monkeypatch.setenv("AWS_PROFILE", "logs")
    assert keys_of({}) == ("of logs", None)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/of-the-container")
    assert keys_of({}) == ("of logs", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    assert open_store("s3://bucket", {}).store.credential_provider is None  # obstore finds the keys


def test_a_profile_that_is_nowhere(monkeypatch):
    """It is named, and nothing else is taken in its place."""
    monkeypatch.setenv("AWS_PROFILE", "elsewhere")
    with pytest.raises(ConfigError, match="profile 'elsewhere'"):
        open_store("s3://bucket", {})


def test_a_public_bucket_needs_no_profile(monkeypatch):
    """Requests that are not signed need no credentials, even where a profile is named."""
    monkeypatch.setenv("AWS_PROFILE", "elsewhere")
    assert open_store("s3://bucket", {"skip_signature": "true"}).store.credential_provider is None


def test_tags_keep_their_case():
    """Names of options may have any case; that of a tag is part of it."""
    opened = open_store("s3://bucket", KEYS | {"tag.Team": "logs", "Storage_Class": "STANDARD"})
    assert opened.tags == {"Team": "logs"}
    assert opened.attributes == {"Storage-Class": "STANDARD"}
