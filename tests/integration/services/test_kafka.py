"""The Kafka of the tests serves, and keeps what it was told."""

from __future__ import annotations

import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.harness.services.errors import ServiceError
from tests.harness.services.jars import KAFKA
from tests.harness.services.kafka import Kafka

CREATE_TOPICS = 19
NO_ERROR, UNKNOWN_TOPIC, TOPIC_ALREADY_EXISTS = 0, 3, 36


@pytest.fixture(autouse=True)
def available(service_jars):
    """Kafka can run here; if not, all these tests are skipped."""
    service_jars.java(Kafka.name)
    service_jars.get(KAFKA)


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def call(server, key, version, body):
    """Send one request of Kafka's protocol, and return the body of the answer."""
    request = struct.pack(">hhih", key, version, 1, -1) + body
    with (
        socket.create_connection(("127.0.0.1", server.port), 30) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", answer.read(4))
        return answer.read(size)[4:]


def create_topic(server, name):
    """Ask for a topic of one partition, and return the error code."""
    topic = text(name) + struct.pack(">ihii", 1, 1, 0, 0)
    answer = call(
        server, CREATE_TOPICS, 2, struct.pack(">i", 1) + topic + struct.pack(">i?", 30_000, False)
    )
    at = 4 + 4 + len(text(name))  # after the throttle time, the count of topics and the name
    return struct.unpack_from(">h", answer, at)[0]


def metadata_error(server, name):
    """Ask where a topic is, which makes it where topics are made by asking; return the error."""
    answer = call(server, 3, 1, struct.pack(">i", 1) + text(name))
    return struct.unpack_from(">h", answer, answer.index(text(name)) - 2)[0]


def test_topics_are_made_when_they_are_asked_for(kafka_server):
    """A topic can be created once, and does not come by being used."""
    assert metadata_error(kafka_server, "asked") == UNKNOWN_TOPIC
    assert create_topic(kafka_server, "asked") == NO_ERROR
    assert create_topic(kafka_server, "asked") == TOPIC_ALREADY_EXISTS


def test_data_outlives_a_kill(tmp_path, service_jars):
    """After kill -9 and a start it has the same topics, at the same address."""
    with Kafka(tmp_path, jars=service_jars) as server:
        assert create_topic(server, "kept") == NO_ERROR
        server.kill()
        server.start()
        assert create_topic(server, "kept") == TOPIC_ALREADY_EXISTS


def test_the_first_clean_stop_leaves_an_archive(tmp_path, service_jars):
    """The archive of classes that makes starts quick is there after a clean stop, and is used."""
    with Kafka(tmp_path, jars=service_jars):
        pass
    with Kafka(tmp_path, jars=service_jars) as server:
        (archive,) = service_jars.folder.glob("kafka-*.jsa")
        maps = subprocess.run(
            ["grep", "-c", archive, f"/proc/{server.pid}/maps"], stdout=subprocess.PIPE, check=False
        )
        assert int(maps.stdout) > 0


def test_one_that_is_measured_has_no_archive(tmp_path, service_jars):
    """A fast one compiles all it can, and neither takes nor leaves an archive of other options."""
    with Kafka(tmp_path, fast=True, jars=service_jars) as server:
        command = Path(f"/proc/{server.pid}/cmdline").read_text()
    assert "TieredStopAtLevel" not in command
    assert ".jsa" not in command
    assert not list(tmp_path.glob("*.jsa"))


def test_a_log_that_cannot_be_formatted_says_why(tmp_path, service_jars):
    """A folder that cannot be made a log is an error with what Kafka says of it."""
    (tmp_path / "data").touch()
    server = Kafka(tmp_path, jars=service_jars)
    with pytest.raises(ServiceError, match="kafka's format ended with 1"):
        server.start()
