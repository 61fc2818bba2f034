"""Readers on a machine that knows nothing of the store: they are given its options."""

import json
import os

import pytest

from memq import AdminClient, Producer, read_range, scan
from memq.cli.main import main
from memq.testing.broker import BrokerProcess
from tests.harness.services.s3proxy import REGION

TOPIC = "clicks"
RECORDS = 3
WRONG = "not-the-secret-of-anybody"


@pytest.fixture
def options(s3_server, faults):
    """Of the store, by way of a proxy that counts."""
    return {
        "endpoint": f"http://{faults.address}",
        "region": REGION,
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
    }


@pytest.fixture
def broker(bucket, tmp_path, monkeypatch):
    """A broker that stores in the bucket; nothing of that is in the environment afterwards."""
    with BrokerProcess(tmp_path / "broker", storage=f"s3://{bucket}/root") as process:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with AdminClient(process.address) as admin:
            admin.create_topic(TOPIC, batch_age="20ms", read_partitions=1, audited=True)
        with Producer(process.address, topic=TOPIC) as producer:
            for number in range(RECORDS):
                producer.write(b"%d" % number).result(30)
        yield process


@pytest.fixture
def memq(broker, monkeypatch, capsys):
    """Runs a command; gives its exit code and all that it has written."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def text_of(options):
    """Options as one text."""
    return ",".join(f"{name}={value}" for name, value in options.items())


def uri_of(memq):
    """The URI of the first object."""
    return json.loads(memq("batch", "list", TOPIC, "-o", "json")[1])[0]["uri"]


def test_a_range_is_read_with_options(broker, options):
    """A table of options, or its text, is all that a reader needs to know of the store."""
    wanted = [b"%d" % number for number in range(RECORDS)]
    for given in (options, text_of(options)):
        table = read_range(broker.address, topic=TOPIC, storage_options=given)
        assert table["value"].to_pylist() == wanted
    with scan(broker.address, topic=TOPIC, storage_options=options) as rows:
        assert rows.read_all()["value"].to_pylist() == wanted


def test_a_command_shows_no_secret(memq, options):
    """A wrong secret, or one that is no option, is not in what a command says."""
    uri = uri_of(memq)
    wrong = text_of(options | {"secret_access_key": WRONG})
    for given in (wrong, WRONG, f"access_key_id=x,{WRONG}"):
        for command in (("batch", "verify", TOPIC), ("batch", "cat", uri)):
            code, text = memq(*command, "--storage-options", given)
            assert code in (1, 2)
            assert text
            assert WRONG not in text
