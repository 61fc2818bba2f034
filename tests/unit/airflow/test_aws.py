"""What an Airflow connection of type `aws` says becomes options of the storage."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from airflow.sdk import Connection

from airflow_provider_memq import aws
from airflow_provider_memq.aws import storage_options_of
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.settings import settings_of
from memq.core.named_values import NO_VALUES
from memq.errors import ConfigError, StorageError
from tests.advice import follows

SECRET = "hush/hush"  # noqa: S105 - it protects nothing
ROLE = "arn:aws:iam::123456789012:role/readers"
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>of the role</AccessKeyId><SecretAccessKey>short</SecretAccessKey>
<SessionToken>for an hour</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""
REFUSED = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What this machine knows of clouds is not for these tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def connect(monkeypatch):
    """Makes the connection `lake` of type `aws`; gives its options."""

    def made(login="me", password=SECRET, **extra):
        connection = {"conn_type": "aws", "login": login, "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
        return storage_options_of(settings("memq://a:1?aws_conn_id=lake"))

    return made


def settings(uri):
    return settings_of(Connection(conn_id="c", uri=uri))


@pytest.fixture
def sts():
    """A server that gives credentials of a role, or what its `answer` says."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, text = self.server.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.answer = 200, ASSUMED
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def assuming(server):
    """The extra of a connection whose role that server gives."""
    endpoint = {"endpoint_url": f"http://127.0.0.1:{server.server_port}"}
    return {"role_arn": ROLE, "region_name": "eu-west-1", "service_config": {"sts": endpoint}}


def test_keys_and_place(connect):
    """Login and password are the keys; region, endpoint and certificates stand in the extra."""
    assert dict(connect()) == {"access_key_id": "me", "secret_access_key": SECRET}
    full = connect(region_name="eu-west-1", endpoint_url="http://s3:9000", verify="/ca.pem")
    assert dict(full) == {
        "access_key_id": "me",
        "secret_access_key": SECRET,
        "region": "eu-west-1",
        "endpoint": "http://s3:9000",
        "ca_certificate": "/ca.pem",
    }
    assert ("allow_invalid_certificates", "true") in connect(verify=False)
    own = connect(endpoint_url="http://any", service_config={"s3": {"endpoint_url": "http://s3"}})
    assert ("endpoint", "http://s3") in own
    assert SECRET not in repr(own)


def test_a_role_is_assumed(connect, sts, monkeypatch):
    """Its credentials come with their token, and logs show no secret; a refusal may pass."""
    masked = set()
    monkeypatch.setattr(aws, "mask_secret", masked.add)
    assert dict(connect(**assuming(sts))) == {
        "access_key_id": "of the role",
        "secret_access_key": "short",
        "session_token": "for an hour",
        "region": "eu-west-1",
    }
    assert masked == {"short", "for an hour"}

    sts.answer = 403, REFUSED
    with pytest.raises(StorageError, match=r"connection 'lake' gives no cred.*AccessDenied") as no:
        connect(**assuming(sts))
    assert no.value.retriable
    assert SECRET not in str(no.value)


def test_the_provider_is_missing(connect, monkeypatch):
    """The error names the package, and a connection to the brokers alone does not need it."""
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.s3", None)

    with pytest.raises(ConfigError, match=r"pip install \"airflow-provider-memq\[amazon\]\""):
        connect()
    assert storage_options_of(settings("memq://a:1")) == NO_VALUES


@follows("fill in its login and password")
def test_a_connection_without_credentials(connect, monkeypatch):
    """It gives those of the machine; where there are none, the error says what to fill in."""
    with pytest.raises(ConfigError, match=r"'lake' has no credentials.*fill in its login"):
        connect(login=None, password=None)
    assert connect(login="me", password=SECRET)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert ("access_key_id", "of the machine") in connect(login=None, password=None)


def test_the_hook_has_the_options(connect, monkeypatch):
    """What reads objects is given them, and what asks the brokers alone is not."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", "memq://127.0.0.1:1?aws_conn_id=lake")
    hook = MemqHook()
    given = connect()

    async def options_of(cluster):
        return cluster.storage_options

    assert hook.storage_options == given
    assert hook.ask(options_of, reads_objects=True) == given
    assert hook.ask(options_of) == NO_VALUES
