"""A data directory that was moved or copied with `mv` and `cp -a`: all of it works as before."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from memq import AdminClient, Consumer, Producer
from memq.cli.main import main
from memq.client.topic import SyncTopicClient
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess

MESSAGES = 6
RECORDS = 5


def values(first=0, last=MESSAGES):
    """The records of some Messages, each a Batch of its own."""
    return [b"%d of %d" % (record, n) for n in range(first, last) for record in range(RECORDS)]


def write(address, first=0, last=MESSAGES):
    """Publish some Messages, each acked before the next one; a job that may run twice."""
    with Producer(address, topic="t", producer_id="job") as producer:
        for number in range(last):
            for record in range(RECORDS):
                delivery = producer.write(b"%d of %d" % (record, number), timestamp=number)
            producer.flush(timeout=30)
            assert delivery.result(30).duplicate == (number < first)


def read(address, expected, **options):
    """All records that a consumer is handed out; there must be so many."""
    found = []
    with Consumer(address, topic="t", start="earliest", **options) as consumer:
        while len(found) < expected:
            batch = consumer.poll(timeout=10)
            assert batch is not None, f"{len(found)} records came"
            found += [message.value for message in batch]
        assert consumer.poll(timeout=0.2) is None
        if "group" in options:
            consumer.commit()
    return found


def notifications(address):
    """What is published of the topic."""
    with SyncTopicClient(address, "t") as topic:
        return [batch.notification for batch in topic.batches(topic.ranges_between(None, None))]


def path_of(notification):
    """The file of a Batch."""
    return Path(unquote(urlsplit(notification.uri).path))


def fetch(broker, path):
    """A page of the admin HTTP."""
    with urllib.request.urlopen(f"{broker.admin}{path}") as answer:  # noqa: S310 - HTTP
        return answer.read().decode()


def status(broker):
    """What the admin HTTP says."""
    return json.loads(fetch(broker, "/status"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The data directory of a stopped broker; a group has read half of its topic."""
    folder = tmp_path_factory.mktemp("written") / "data"
    with BrokerProcess(folder) as broker:
        with AdminClient(broker.address) as admin:
            admin.create_topic("t", read_partitions=2, batch_age="5ms")
        write(broker.address, last=MESSAGES // 2)
        half = values(last=MESSAGES // 2)
        found = read(broker.address, len(half), group="g", session_timeout="1s")
        assert Counter(found) == Counter(half)
        write(broker.address, first=MESSAGES // 2)
        assert broker.terminate() == 0
    return folder.rename(folder.with_name("kept"))


@pytest.fixture
def data(written):
    """The same at the path where it was written, for a test of its own."""
    folder = written.with_name("data")
    shutil.copytree(written, folder)
    yield folder
    for each in written.parent.iterdir():
        if each != written:
            shutil.rmtree(each)


def moved(data):
    """The data directory is somewhere else, and nothing is left of it where it was."""
    return data.rename(data.with_name('elsewhere, and "named" otherwise'))


def copied(data):
    """There is a copy, and the objects of the original are all there and all of them damaged."""
    copy = data.with_name("copy")
    subprocess.run(["cp", "-a", data, copy], check=True)
    for each in (data / "objects").rglob("*.arrows"):
        each.write_bytes(b"another's")
    return copy


@pytest.mark.parametrize("how", [moved, copied])
def test_it_is_read_from_where_it_is(data, how, capsys):
    """Consumers, groups, audit, verification and duplicates meet no difference."""
    place = how(data)
    with BrokerProcess(place) as broker:
        everything = Counter(values())
        assert Counter(read(broker.address, len(values()))) == everything
        assert Counter(read(broker.address, len(values()), read_through="broker")) == everything
        rest = values(first=MESSAGES // 2)
        assert Counter(read(broker.address, len(rest), group="g", session_timeout="1s")) == Counter(
            rest
        )
        assert all(
            path_of(each).is_relative_to(place / "objects")
            for each in notifications(broker.address)
        )
        write(broker.address, first=MESSAGES, last=MESSAGES + 2)  # what was there is a duplicate
        assert main(["batch", "verify", "t", "-b", broker.address, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["batches"] == MESSAGES + 2
        assert main(["audit", "t", "--deep", "-b", broker.address]) == 0
        found = json.loads(fetch(broker, "/status"))["objects"]
        assert (found["root"], found["missing"]) == (f"{(place / 'objects').as_uri()}/", 0)
        assert "ERROR" not in broker.log


def test_a_copy_does_not_share_the_objects_of_a_running_broker(data):
    """Started on the same objects by a link, it is refused with the way out."""
    copy = data.with_name("copy")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("objects"))
    root = (data / "objects").as_uri()
    (copy / "objects").symlink_to(data / "objects")
    with BrokerProcess(data) as broker:
        with pytest.raises(MemqError, match="on a copy of this data directory, uses"):
            BrokerProcess(copy).close()
        with BrokerProcess(data.with_name("stranger"), storage=root):  # it may
            assert Counter(read(broker.address, len(values()))) == Counter(values())
        assert broker.terminate() == 0
    with BrokerProcess(copy) as broker:
        assert Counter(read(broker.address, len(values()))) == Counter(values())
