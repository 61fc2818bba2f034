"""What the client of an object store is opened with."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from memq.core.storage import object_store_client
from memq.core.storage.object_store import STALL_S, ObjectStorage
from memq.core.storage.object_store_client import CLIENT_DEFAULTS, is_directory_bucket, open_store

KEYS = {"access_key_id": "given", "secret_access_key": "given"}


@pytest.fixture
def opened(monkeypatch):
    """What each client was opened with, on a machine that knows nothing."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull + "/none")
    found = []

    def from_url(url, **options):
        found.append(SimpleNamespace(url=url, **options))
        return object()

    monkeypatch.setattr(object_store_client, "from_url", from_url)
    return found


def test_nothing_is_said_that_need_not_be(opened):
    """Each request is made once, and may take longer than any of ours."""
    assert open_store("s3://bucket", {})[1:] == ({}, {})
    (client,) = opened
    assert (client.url, client.config) == ("s3://bucket", {})
    assert client.client_options == CLIENT_DEFAULTS
    assert client.retry_config == {"max_retries": 0}


def test_only_reads_may_not_be_silent(opened):
    """A put is silent until it is done, however large it is."""
    ObjectStorage("s3://bucket", "", {})
    assert [one.client_options.get("read_timeout") for one in opened] == [
        None,
        f"{STALL_S * 1000:.0f}ms",
    ]


def test_each_option_goes_where_it_belongs(opened):
    """In whatever case; names of tags are as they are written."""
    options = {
        "REGION": "eu",
        "Connect_Timeout": "9s",
        "Storage_Class": "IA",
        "tag.Team A": "x",
        "tag.b": "",
        "Proxy_URL": "http://proxy",
    }
    store = open_store("s3://bucket", options | KEYS)
    (client,) = opened
    assert client.config == {"region": "eu"} | KEYS
    assert client.client_options == CLIENT_DEFAULTS | {
        "connect_timeout": "9s",
        "proxy_url": "http://proxy",
    }
    assert store.attributes == {"Storage-Class": "IA"}
    assert store.tags == {"Team A": "x", "b": ""}


@pytest.mark.parametrize(
    ("scheme", "options", "variable", "allowed"),
    [
        ("s3", {"endpoint": "http://s3"}, "", "true"),
        ("s3", {"AWS_Endpoint_URL": "http://s3"}, "", "true"),
        ("s3", {"endpoint": "https://s3"}, "", None),
        ("s3", {}, "AWS_ENDPOINT_URL=http://s3", "true"),
        ("s3", {}, "AWS_ENDPOINT_URL_S3=http://s3", "true"),
        ("s3", {}, "AWS_ENDPOINT=http://s3", "true"),
        ("s3", {}, "AWS_ENDPOINT_URL=https://s3", None),
        ("s3", {"endpoint": "http://s3", "allow_http": "false"}, "", "false"),
        ("gs", {"endpoint": "http://gs"}, "", None),
    ],
)
def test_plain_http_is_allowed_to_who_asks_for_it(*, opened, scheme, options, variable, allowed):
    """An endpoint with http:// says so, and what is said outright counts."""
    with pytest.MonkeyPatch.context() as machine:
        if variable:
            machine.setenv(*variable.split("="))
        open_store(f"{scheme}://b", options)
    assert opened[0].client_options.get("allow_http") == allowed


@pytest.mark.parametrize(
    ("container", "options", "express"),
    [
        ("s3://logs--use1-az4--x-s3", {}, "true"),
        ("s3://logs--use1-az4--x-s3", {"s3_express": "false"}, "false"),
        ("s3://logs", {}, None),
        ("gs://logs--x-s3", {}, None),
    ],
)
def test_a_directory_bucket_is_known_by_its_name(opened, container, options, express):
    """It lists its keys in no order."""
    open_store(container, options)
    assert opened[0].config.get("s3_express") == express
    assert is_directory_bucket(container) is container.endswith("az4--x-s3")


@pytest.mark.parametrize(
    ("container", "option", "variable", "trusted"),
    [
        ("s3://b", None, None, None),
        ("s3://b", "one", None, "one"),
        ("s3://b", None, "two", "two"),
        ("s3://b", "one", "two", "one"),
        ("gs://b", "one", "two", "one"),
        ("gs://b", None, "two", None),
    ],
)
def test_a_private_authority_is_trusted_where_it_is_named(
    *, opened, monkeypatch, tmp_path, container, option, variable, trusted
):
    """An option comes before the variable, which is that of one cloud."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    if variable:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / variable))
    open_store(container, {"ca_certificate": str(tmp_path / option)} if option else {})
    assert opened[0].client_options.get("root_certificate") == trusted
    assert "ca_certificate" not in opened[0].config
