"""What an Airflow connection of type `aws` says becomes options of the storage."""

import json
import sys

import pytest
from airflow.sdk import Connection

from airflow_provider_memq import aws
from airflow_provider_memq.aws import storage_options_of
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.settings import settings_of
from memq.core.named_values import NO_VALUES
from memq.errors import ConfigError, StorageError

SECRET = "hush/hush"  # noqa: S105 - it protects nothing
ROLE = {"role_arn": "arn:aws:iam::123456789012:role/readers", "region_name": "eu-west-1"}
pytestmark = pytest.mark.usefixtures("aws")


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


def test_a_role_is_assumed(connect, monkeypatch):
    """Its credentials come with their token, and logs show no secret; an outage may pass."""
    masked = set()
    monkeypatch.setattr(aws, "mask_secret", masked.add)
    options = dict(connect(**ROLE))
    assert options["region"] == "eu-west-1"
    assert options["access_key_id"].startswith("ASIA")  # as those of roles do
    assert masked == {options["secret_access_key"], options["session_token"]}

    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    with pytest.raises(StorageError, match=r"connection 'lake' gives no cred.*Could not") as no:
        connect(**ROLE)
    assert no.value.retriable
    assert SECRET not in str(no.value)


def test_the_provider_is_missing(connect, monkeypatch):
    """The error names the package, and a connection to the brokers alone does not need it."""
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.s3", None)

    with pytest.raises(ConfigError, match=r"pip install \"airflow-provider-memq\[amazon\]\""):
        connect()
    assert storage_options_of(settings("memq://a:1")) == NO_VALUES


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
