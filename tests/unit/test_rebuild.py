"""Recovery of a data directory, on files made by hand: what is published, and crashes in it."""

from __future__ import annotations

import random
import shutil
from typing import NamedTuple

import pytest

from memq.broker.recover import recover
from memq.broker.recover_scan import notification_of, open_partition, read_object
from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder
from memq.core.format.message import encode_message, encode_records
from memq.core.format.reader import BatchReader
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.governor.catalog import Catalog
from memq.core.notification.folders import TopicFile, TopicFolders
from memq.core.notification.notification import decode_notification, encode_notification
from memq.core.notification.queue import Publication
from memq.core.notification.read_partition import Partition, payload_of
from memq.core.runtime import Runtime
from memq.core.storage.handler import ObjectInfo
from memq.core.storage.keys import BatchKey, key_of_uri, object_key
from memq.core.storage.local import LocalStorage
from memq.core.topic import TopicConfig
from memq.errors import ConfigError
from tests.simulation.disk import ForgetfulDisk, PowerCut

PAGES = {"page_bytes": 1 << 16, "index_page_items": 64}
INCARNATION = "0123456789abcdef"
SCHEMA = serialize_schema(DEFAULT_SCHEMA)


class Message(NamedTuple):
    """One Message, by its name."""

    producer: str
    sequence: int
    epoch: int = 0
    write_partition: int = 0


class Data:
    """A data directory with a topic `t` of two read partitions, filled by hand."""

    def __init__(self, path):
        self.path = path
        self.storage = LocalStorage(path / "objects")
        (path / "queue/topics").mkdir(parents=True)
        (path / "queue/moving").mkdir()
        catalog = Catalog(path / "topics")
        self.topic = catalog.new(
            TopicConfig.create("t", read_partitions=2, write_partitions=2),
            now_ms=1,
            incarnation=INCARNATION,
            request_id="",
        )
        catalog.save(self.topic)
        self.folders = TopicFolders(path / "queue")
        self.folders.make(self.topic.queue_topic, TopicFile(partitions=2, **PAGES))
        self.folders.show(self.topic.queue_topic)
        self.batches = 0

    def store(self, *messages, publish_to=None, at_ms=None):
        """Store a Batch of these Messages and publish it, or not."""
        self.batches += 1
        sealed_ms = 1_700_000_000_000 + (at_ms or self.batches)
        key = BatchKey(
            "memq",
            "t",
            INCARNATION,
            messages[0].write_partition,
            sealed_ms,
            f"b{self.batches}",
            running_ms=1_000 * self.batches,
        )
        builder = BatchBuilder(
            SCHEMA, batch_id=key.batch_id, topic="t", write_partition=key.write_partition
        )
        for message in messages:
            values = [repr(message).encode()]
            body = encode_message(encode_records(None, values, None, [message.sequence]))
            builder.add(
                body.to_pybytes(),
                producer_id=message.producer,
                epoch=message.epoch,
                sequence=message.sequence,
                records=1,
                min_timestamp_us=message.sequence,
                max_timestamp_us=message.sequence,
                crc32c=crc32c(body.to_pybytes()),
            )
        name = object_key(key)
        sealed = builder.seal()
        self.storage.put(name, sealed.buffers, timeout_s=9)
        if publish_to is not None:
            stored = read_object(self.storage, ObjectInfo(name, sealed.size_bytes, 0), {})
            notification = notification_of(stored, self.storage.uri(name), "the-broker")
            times = (sealed_ms, key.running_ms)
            self.append(publish_to, encode_notification(notification), *times)
        return name

    def append(self, number, payload, sealed_ms, running_ms=0):
        """Publish a payload."""
        partition = Partition(
            "t",
            number,
            self.folders.partition(self.topic.queue_topic, number),
            clock_s=lambda: 0.0,
            **PAGES,
        )
        partition.append([Publication(number, payload, sealed_ms, running_ms)])
        partition.close()

    def recover(self, *, execute=True):
        """Run the recovery; what became of topic t."""
        [outcome] = recover(
            self.path, topic="t", execute=execute, runtime=Runtime(), progress=lambda *_: None
        )
        return outcome

    def published(self):
        """The Messages behind all notifications, in the order of read partitions and offsets."""
        topic = Catalog(self.path / "topics").get("t")
        found = []
        for number in range(2):
            with open_partition(self.folders, topic.queue_topic, number) as array:
                for offset in range(array.start, array.end):
                    notification = decode_notification(payload_of(array.get(offset)))
                    assert notification.incarnation == topic.incarnation
                    reader = BatchReader(self.storage.get(key_of_uri(notification.uri)))
                    found += [
                        row["value"].as_py().decode()
                        for row in reader.read_all().to_batches()
                        for row in [{"value": value} for value in row["value"]]
                    ]
        return found


@pytest.fixture
def data(tmp_path):
    """An empty data directory."""
    return Data(tmp_path / "data")


def lose_queue(data):
    """What a lost disk leaves."""
    shutil.rmtree(data.path / "queue")


def test_a_message_in_several_objects_is_published_once(data):
    """An upload that was never published and its retries give each Message once, whole or cut."""
    a, b, c, d, e = (Message("p", sequence) for sequence in range(5))
    other = Message("p", 0, write_partition=1)
    data.store(a, b)  # its upload was given up, and so retried:
    data.store(a, c)
    data.store(b)
    data.store(d, e)
    data.store(e, d, c)
    data.store(other)  # the same name in another write partition is another Message
    data.store(Message("p", 0, epoch=1))
    lose_queue(data)
    outcome = data.recover()
    assert (outcome.action, outcome.messages, outcome.records) == ("rebuild", 7, 7)
    assert (outcome.repeated, outcome.rewritten) == (2, 1)
    expected = [a, b, c, d, e, other, Message("p", 0, epoch=1)]
    assert sorted(data.published()) == sorted(map(repr, expected))


def test_the_order_of_sealing_is_kept(data):
    """The Batches of a write partition are published in the order in which they were sealed."""
    messages = [Message("p", sequence) for sequence in range(6)]
    for place in (3, 0, 5, 1, 4, 2):
        data.store(messages[place], at_ms=1 + place)
    lose_queue(data)
    data.recover()
    # Write partition 0 spreads over read partition 0 alone, as there are as many of both.
    assert data.published() == list(map(repr, messages))


def test_orphans_of_a_sound_topic_are_left_alone(data):
    """Where no notification is lost nothing is published: what no notification names is no loss."""
    data.store(Message("p", 0), publish_to=0)
    data.store(Message("p", 1))
    outcome = data.recover()
    assert (outcome.action, outcome.sound, outcome.unnamed) == ("none", 1, 1)
    assert data.published() == [repr(Message("p", 0))]


def test_a_raised_time_is_proven_too(data):
    """An entry that was sealed before the one in front of it had its time raised, and is found."""
    for sequence, at_ms in enumerate((50, 10, 60, 20)):
        data.store(Message("p", sequence), publish_to=0, at_ms=at_ms)
    data.store(Message("p", 9), publish_to=1)  # says who the broker was, which no object does
    before = data.published()
    page = data.folders.partition(data.topic.queue_topic, 0) / "data/000000000000.page"
    page.write_bytes(bytes(page.stat().st_size))
    outcome = data.recover()
    assert (outcome.action, outcome.published, outcome.lost) == ("restore", 4, 4)
    assert data.published() == before
    assert data.recover().action == "none"


def test_what_cannot_be_proven_is_not_guessed(data):
    """One lost notification whose object is gone, too: the topic is rebuilt, with all others."""
    keys = [data.store(Message("p", sequence), publish_to=0) for sequence in range(4)]
    page = data.folders.partition(data.topic.queue_topic, 0) / "data/000000000000.page"
    page.write_bytes(bytes(page.stat().st_size))
    data.storage.delete(keys[1])
    outcome = data.recover()
    assert (outcome.action, outcome.published, outcome.lost) == ("rebuild", 3, 4)
    assert data.published() == [repr(Message("p", sequence)) for sequence in (0, 2, 3)]
    assert (data.path / "recovered" / data.topic.queue_topic / "topic.json").exists()


def test_a_folder_that_is_no_data_directory_is_refused(tmp_path):
    """A mistyped path is an error and gets no files."""
    with pytest.raises(ConfigError, match="is no data directory"):
        recover(tmp_path, topic=None, execute=True, runtime=Runtime(), progress=lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_changes_nothing(data):
    """Without `execute` every file stays as it was."""
    data.store(Message("p", 0), publish_to=0)
    data.store(Message("p", 0), Message("p", 1))
    shutil.rmtree(data.folders.partition(data.topic.queue_topic, 1))
    before = files(data.path)
    assert data.recover(execute=False).action == "rebuild"
    assert files(data.path) == before


def files(folder):
    """Every file but locks, with its content."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_anywhere_in_a_rebuild_loses_nothing(tmp_path, seed):
    """Whatever step it is cut at, running it again ends with every Message published once."""
    messages = [Message("p", sequence) for sequence in range(5)]
    rng = random.Random(seed)
    step, cuts = 1, 0
    while True:
        root = tmp_path / str(step)
        data = Data(root)
        data.store(messages[0], messages[1], publish_to=0)
        data.store(messages[1], messages[2])
        data.store(messages[3], publish_to=1)
        data.store(messages[4], publish_to=0)
        shutil.rmtree(data.folders.partition(data.topic.queue_topic, 0))
        with ForgetfulDisk(root, rng) as disk:
            disk.cut_after(step)
            try:
                data.recover()
            except PowerCut:
                cuts += 1
                disk.crash()
                finished = False
            else:
                finished = True
        data.recover()
        assert sorted(data.published()) == sorted(map(repr, messages)), f"cut at step {step}"
        if finished:
            break
        step += 1 + rng.randrange(16)
    assert cuts > 5
