"""A real Kafka that wants TLS and a password, reached with the options that the guide shows."""

import asyncio
import json
import logging
import re
import time
import tomllib
import traceback
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import admin

from memq import Producer, read_range
from memq.core.named_values import parse_queue_options
from memq.core.queue import Publication
from memq.errors import QueueError, QueueFailedError
from memq.queue import open_kafka
from memq.queue.kafka import confluent
from memq.testing.broker import BrokerProcess
from tests.harness.services.certificates import make_certificate
from tests.harness.services.kafka import Kafka

GUIDE = Path(__file__).parents[3] / "docs" / "queue.md"
REQUEST_S = 5.0  # in place of 10 s: who is locked out is so after less than one
LATE_S = 5.0  # what a busy machine may add
WRONG = "not-the-password"
RESOURCES = {
    "topics with the prefix `memq.`": admin.ResourceType.TOPIC,
    "transactional ids with the prefix `memq.`": admin.ResourceType.TRANSACTIONAL_ID,
    "cluster": admin.ResourceType.BROKER,
}
PAGES = ("/", "/health", "/ready", "/metrics", "/status", "/topics/t")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The certificate of Kafka, and the file with its authority, which is itself."""
    return make_certificate(tmp_path_factory.mktemp("tls"), "kafka")


@pytest.fixture(scope="module")
def secure_kafka(certificate, service_jars, tmp_path_factory):
    """A Kafka that takes only who shows a password over TLS."""
    with Kafka(
        tmp_path_factory.mktemp("kafka"),
        keystore=certificate.keystore,
        keystore_password=certificate.password,
        jars=service_jars,
    ) as server:
        yield server
        server.kill()  # to end it in time would take 6 s


@pytest.fixture
def _impatient(monkeypatch):
    """Requests to Kafka have less time."""
    monkeypatch.setattr(confluent, "REQUEST_S", REQUEST_S)


@pytest.fixture
def options(secure_kafka, certificate):
    """The options that the guide shows first, with the user, files and replicas that there are."""
    example = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    here = {
        "sasl.username": secure_kafka.user,
        "sasl.password": secure_kafka.password,
        "ssl.ca.location": str(certificate.pem),
        "topic.replication.factor": 1,
        "topic.min.insync.replicas": 1,
    }
    shown = tomllib.loads(example)["queue_options"]
    assert shown.keys() > here.keys()
    return shown | here


def test_a_broker_that_is_configured_as_in_the_guide(secure_kafka, options, tmp_path):
    """It acks what it can give back, and shows the password in no line of its log and no page."""
    config = tmp_path / "broker.toml"
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in options.items()]
    config.write_text("\n".join(["[queue_options]", *lines]))
    with BrokerProcess(
        tmp_path / "data",
        config=str(config),
        queue=f"kafka://{secure_kafka.address}",
        cluster_id="guide",
        auto_create_topics=True,
        log_level="debug",
    ) as broker:
        with Producer(broker.address, topic="t", acks="all") as producer:
            producer.write(b"value").result(60)
        assert read_range(broker.address, topic="t").column("value").to_pylist() == [b"value"]
        pages = [fetch(broker.admin + page) for page in PAGES]
        assert broker.terminate() == 0
        assert "is ready on" in broker.log
        assert secure_kafka.password not in "".join([broker.log, *pages])


def fetch(url):
    """The text of a page."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own broker
        return answer.read().decode()


async def refused(address, options):
    """The error of an open that must fail, in the time of one request."""
    began_s = time.monotonic()
    with pytest.raises(QueueError) as error:
        await open_kafka(
            f"kafka://{address}", parse_queue_options(options), cluster_id="c", broker_id="b"
        )
    assert time.monotonic() - began_s < REQUEST_S + LATE_S
    return error.value


@pytest.mark.usefixtures("_impatient")
async def test_who_is_locked_out_is_told_why_in_time(
    secure_kafka, kafka_server, options, tmp_path, caplog
):
    """The error ends with what Kafka's client has seen; neither it nor a log has a password."""
    caplog.set_level(logging.DEBUG)
    others = str(make_certificate(tmp_path, "others").pem)
    here, tls = secure_kafka.address, {"ssl.ca.location": options["ssl.ca.location"]}
    named_otherwise = f"localhost:{secure_kafka.port}"  # the certificate has the IP address
    cases = [
        (here, options | {"sasl.password": WRONG}, "invalid credentials"),
        (here, options | {"sasl.username": "nobody"}, "invalid credentials"),
        (here, options | {"sasl.mechanism": "PLAIN"}, "mechanisms: SCRAM-SHA-512"),
        (here, options | {"ssl.ca.location": others}, "certificate verify failed"),
        (named_otherwise, options, "certificate verify failed"),
        (here, {}, "another security.protocol"),
        (here, options | {"security.protocol": "SASL_PLAINTEXT"}, "another security.protocol"),
        (here, tls | {"security.protocol": "SSL"}, "another security.protocol"),
        (kafka_server.address, options, "another security.protocol"),
    ]
    errors = await asyncio.gather(*(refused(address, given) for address, given, _ in cases))
    for error, (address, given, cause) in zip(errors, cases, strict=True):
        assert type(error) is QueueError, given
        assert f"{address}/bootstrap: " in str(error)
        assert cause in str(error), given
    shown = caplog.text + "".join("".join(traceback.format_exception(each)) for each in errors)
    assert "invalid credentials" in caplog.text
    assert WRONG not in shown
    assert secure_kafka.password not in shown


def rights(user, cluster):
    """What the guide says that a user needs, for a cluster of another name."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", GUIDE.read_text(), re.MULTILINE)
    return [
        right(user, RESOURCES[resource], cluster, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation))
        for resource, operations in rows
        if resource in RESOURCES
        for operation in operations.split(", ")
    ]


def right(user, resource, cluster, operation):
    """A right on what begins with a cluster's name, or on all of Kafka."""
    name, pattern = f"{cluster}.", admin.ResourcePatternType.PREFIXED
    if resource is admin.ResourceType.BROKER:
        name, pattern = "kafka-cluster", admin.ResourcePatternType.LITERAL
    allowed = admin.AclPermissionType.ALLOW
    what = admin.AclOperation[operation.upper()]
    return admin.AclBinding(resource, name, pattern, f"User:{user}", "*", what, allowed)


def add_user(kafka, name, password):
    """Tell Kafka of a user."""
    credential = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
    user = admin.UserScramCredentialUpsertion(name, credential, password.encode())
    kafka.alter_user_scram_credentials([user])[name].result(30)


async def grant(kafka, some):
    """Give rights, and wait until they are seen."""
    for granted in kafka.create_acls(some).values():
        granted.result(30)
    every = admin.AclBindingFilter(
        admin.ResourceType.ANY, None, admin.ResourcePatternType.ANY, None, None,
        admin.AclOperation.ANY, admin.AclPermissionType.ANY,
    )  # fmt: skip
    async with asyncio.timeout(30):
        while not {*some} <= {*kafka.describe_acls(every).result(30)}:
            await asyncio.sleep(0.05)


async def test_the_rights_of_the_guide_are_enough(secure_kafka, process, cluster, options):
    """Who has them can do all that a queue does; who has none is told so, and not left waiting."""
    own = {name: value for name, value in options.items() if not name.startswith("topic.")}
    kafka = admin.AdminClient(own | {"bootstrap.servers": secure_kafka.address})
    add_user(kafka, "other", "other-password")
    options |= {"sasl.username": "other", "sasl.password": "other-password"}
    options = {"port": secure_kafka.port} | dict(parse_queue_options(options))
    with pytest.raises(QueueFailedError, match=r"Authorization failed.*; ask Kafka's admin"):
        await process(**options)
    needed = rights("other", cluster)
    assert {each.restype for each in needed} == {*RESOURCES.values()}
    await grant(kafka, needed)
    queue = await process(**options)
    await queue.create_topic("t", 1)
    await queue.fence("t", 0)
    (offset,) = await queue.publish("t", 0, [Publication(0, b"x", 1)])
    await queue.commit("g", "t", {0: offset + 1})
    assert await queue.fetch("t", 0, offset, max_entries=1, max_bytes=1)
    await queue.truncate("t", 0, offset + 1)
    await queue.delete_topic("t")
    assert await queue.topics() == []
