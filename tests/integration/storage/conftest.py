"""An object store for the tests of this folder, directly or through a proxy with faults."""

import os
import secrets

import pytest

from memq.storage.object_store import ObjectStorage
from tests.harness.services.http_faults import HttpFaultProxy

pytest.register_assert_rewrite("tests.contracts.storage")


@pytest.fixture(autouse=True)
def _environment(monkeypatch, s3_server):
    """What this machine knows of clouds is not for these tests."""
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.delenv("AWS_ALLOW_HTTP")


@pytest.fixture
def bucket(s3_server):
    """Name of an empty bucket."""
    name = f"test-{secrets.token_hex(6)}"
    s3_server.make_bucket(name)
    return name


@pytest.fixture
def faults(s3_server):
    """A proxy before the server, which makes it fail."""
    with HttpFaultProxy("127.0.0.1", s3_server.port, seed=7) as proxy:
        yield proxy


@pytest.fixture
def storage(bucket):
    """The bucket as a storage."""
    return ObjectStorage(f"s3://{bucket}", "some/root")


@pytest.fixture
def faulty(bucket, faults):
    """The same bucket, through the proxy."""
    options = {"endpoint": f"http://{faults.address}"}
    return ObjectStorage(f"s3://{bucket}", "some/root", options)
