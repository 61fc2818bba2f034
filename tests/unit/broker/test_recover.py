"""Recovery of a data directory, on files made by hand: what is published, and crashes in it."""

import os
import random
import shutil
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa
import pytest

from memq.broker.catalog import Catalog
from memq.broker.recover import notification_of, open_partition, read_object, recover
from memq.core.format.batch import BatchBuilder
from memq.core.format.message import encode_message, encode_records
from memq.core.format.reader import BatchReader
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.governor.topics import new_topic
from memq.core.notification import decode_notification, encode_notification
from memq.core.queue import Publication
from memq.core.topic import TopicConfig
from memq.errors import ConfigError, DataLossError, LockedError, UnknownTopicError
from memq.queue.embedded.folders import TopicFile, TopicFolders
from memq.queue.embedded.read_partition import Partition, payload_of, times_of
from memq.runtime.files import lock_exclusively
from memq.runtime.system import Runtime
from memq.storage.handler import ObjectInfo
from memq.storage.keys import BatchKey, key_of_uri, object_key
from memq.storage.local import LocalStorage
from tests.fakes.disk import ForgetfulDisk, PowerCut
from tests.unit.core.format.builders import add

PAGES = {"page_bytes": 1 << 16, "index_page_items": 64}
TOPIC_ID = "0123456789abcdef"
SCHEMA = serialize_schema(DEFAULT_SCHEMA)


class Message(NamedTuple):
    """One Message, by its name."""

    producer: str
    sequence: int
    epoch: int = 0
    write_partition: int = 0


class Data:
    """A data directory with a topic of two read partitions, filled by hand."""

    def __init__(self, path, name="t", *, topic_id=TOPIC_ID, read_partitions=2):
        self.path, self.name, self.topic_id = path, name, topic_id
        self.root = ""
        self.storage = LocalStorage(path / "objects")
        (path / "queue/topics").mkdir(parents=True, exist_ok=True)
        (path / "queue/moving").mkdir(exist_ok=True)
        catalog = Catalog(path / "topics")
        self.topic = new_topic(
            TopicConfig.create(name, read_partitions=read_partitions, write_partitions=2),
            (),
            now_ms=1,
            topic_id=topic_id,
            request_id="",
        )
        catalog.save(self.topic)
        self.folders = TopicFolders(path / "queue")
        self.folders.make(self.topic.queue_topic, TopicFile(partitions=read_partitions, **PAGES))
        self.folders.show(self.topic.queue_topic)
        self.batches = 0

    def store(self, *messages, publish_to=None, at_ms=None, schema=SCHEMA):
        """Store a Batch of these Messages and publish it, or not; the key of its object."""
        self.batches += 1
        key = BatchKey(
            "memq",
            self.name,
            self.topic_id,
            messages[0].write_partition,
            1_700_000_000_000 + (at_ms or self.batches),
            f"b{self.batches}",
            running_ms=1_000 * self.batches,
        )
        builder = BatchBuilder(
            schema, batch_id=key.batch_id, topic=self.name, write_partition=key.write_partition
        )
        for message in messages:
            values = [repr(message).encode()]
            body = encode_message(encode_records(None, values, None, [message.sequence]))
            add(
                builder,
                body,
                producer_id=message.producer,
                epoch=message.epoch,
                sequence=message.sequence,
                records=1,
            )
        name, sealed = object_key(key), builder.seal()
        self.storage.put(name, sealed.buffers, timeout_s=9)
        if publish_to is not None:
            stored = read_object(self.storage, ObjectInfo(name, sealed.size_bytes, 0), {})
            uri = f"{self.root}{name}" if self.root else self.storage.uri(name)
            payload = encode_notification(notification_of(stored, uri, "the-broker"))
            publication = Publication(publish_to, payload, key.sealed_ms, key.running_ms)
            folder = self.folders.partition(self.topic.queue_topic, publish_to)
            with closing(Partition(self.name, publish_to, folder, clock_s=float)) as partition:
                partition.append([publication])
        return name

    def recover(self, *, execute=True):
        """Run the recovery; what became of the topic."""
        [outcome] = run(self.path, topic=self.name, execute=execute)
        return outcome

    def lose_page(self, number):
        """Lose all notifications of a read partition, but not what its index says of them."""
        folder = self.folders.partition(self.topic.queue_topic, number)
        page = folder / "data/000000000000.page"
        page.write_bytes(bytes(page.stat().st_size))

    def entries(self, number):
        """What a read partition has: the times and the notification of each entry."""
        topic = Catalog(self.path / "topics").get(self.name)
        with open_partition(self.folders, topic.queue_topic, number) as array:
            items = [array.get(offset) for offset in range(array.start, array.end)]
        found = [(times_of(item), decode_notification(payload_of(item))) for item in items]
        assert all(each.topic_id == topic.topic_id for _, each in found)
        return found

    def published(self):
        """The Messages behind all notifications, in the order of read partitions and offsets."""
        found = []
        for number in range(self.topic.config.read_partitions):
            for _, notification in self.entries(number):
                reader = BatchReader(self.storage.get(key_of_uri(notification.uri)))
                found += [value.decode() for value in reader.read_all()["value"].to_pylist()]
        return found


def run(path, *, topic=None, execute=True, **options):
    """Run the recovery of a data directory."""
    return recover(
        path,
        topic=topic,
        execute=execute,
        runtime=Runtime(),
        progress=lambda *_: None,
        **options,
    )


@pytest.fixture
def data(tmp_path):
    """An empty data directory."""
    return Data(tmp_path / "data")


def lose_queue(data):
    """What a lost disk leaves."""
    shutil.rmtree(data.path / "queue")


def test_a_message_in_several_objects_is_published_once(data):
    """An upload that was never published and its retries give each Message once."""
    a, b, c = (Message("p", sequence) for sequence in range(3))
    other = Message("p", 0, write_partition=1)
    data.store(a, b)  # its upload was given up, and so retried:
    data.store(a)
    data.store(b)
    data.store(c)
    data.store(other)  # the same name in another write partition is another Message
    data.store(Message("p", 0, epoch=1))
    lose_queue(data)
    outcome = data.recover()
    assert (outcome.action, outcome.messages, outcome.records) == ("rebuild", 5, 5)
    assert outcome.repeated == 2
    expected = [a, b, c, other, Message("p", 0, epoch=1)]
    assert sorted(data.published()) == sorted(map(repr, expected))


def test_an_object_with_some_messages_of_another_is_refused(data):
    """Nothing is changed, and the error names the object; without it the others are rebuilt."""
    data.store(Message("p", 0), Message("p", 1))
    cut = data.store(Message("p", 1), Message("p", 2))
    lose_queue(data)
    for execute in (False, True):
        with pytest.raises(DataLossError, match=f"^{cut} shares 1 of its 2 Messages .* away"):
            data.recover(execute=execute)
    assert Catalog(data.path / "topics").get("t").topic_id == TOPIC_ID
    data.storage.delete(cut)
    assert data.recover().messages == 2


def test_orphans_of_a_sound_topic_are_left_alone(data):
    """Where no notification is lost nothing is published: what no notification names is no loss."""
    data.store(Message("p", 0), publish_to=0)
    data.store(Message("p", 1))
    outcome = data.recover()
    assert (outcome.action, outcome.sound, outcome.unnamed) == ("none", 1, 1)
    assert data.published() == [repr(Message("p", 0))]


def files(folder):
    """Every file but locks, with its content."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_a_power_cut_anywhere_in_a_rebuild_loses_nothing(tmp_path):
    """Whatever step it is cut at, running it again ends with every Message published once."""
    messages = [Message("p", sequence) for sequence in range(5)]
    rng = random.Random(1)
    step, cuts = 1, 0
    while True:
        root = tmp_path / str(step)
        data = Data(root)
        data.store(messages[0], messages[1], publish_to=0)
        data.store(messages[1])
        data.store(messages[2])
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


# -- restoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", "s3://elsewhere/some/root/"])
@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_notifications_of_every_read_partition_are_restored(data, root, lost):
    """What the lost ones said of broker and root is known from others, of any topic."""
    other = Data(data.path, "other", topic_id="f" * 16)
    other.root = data.root = root
    other.store(Message("p", 0), publish_to=1)
    for sequence in range(6):
        data.store(Message("p", sequence), publish_to=sequence % 2, at_ms=9 - sequence)
        data.store(Message("q", sequence))  # was never published
    before = data.published()
    for number in lost:
        data.lose_page(number)
    planned, done = data.recover(execute=False), data.recover()
    assert planned == done
    assert (done.action, done.published, done.lost) == ("restore", 3 * len(lost), 3 * len(lost))
    assert (done.messages, done.records) == (3 * len(lost), 3 * len(lost))
    assert data.published() == before
    assert data.recover().action == "none"


# -- rebuilding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [2, 1_000])
def test_a_rebuild_spreads_batches_as_a_broker_does(tmp_path, monkeypatch, at_once):
    """Those of a write partition go to its read partitions in turn, each at its time."""
    monkeypatch.setattr("memq.broker.recover.APPEND_ENTRIES", at_once)
    data = Data(tmp_path, read_partitions=5)
    for number in range(14):  # of the two write partitions in turn
        data.store(Message("p", number // 2, write_partition=number % 2))
    lose_queue(data)
    data.recover()
    for write_partition in range(2):
        share = data.topic.config.read_partitions_of(write_partition)
        batches = range(1 + write_partition, 15, 2)
        for place, number in enumerate(share):
            assert [(times, each.batch_id) for times, each in data.entries(number)] == [
                ((1_700_000_000_000 + batch, 1_000 * batch), f"b{batch}")
                for batch in batches[place :: len(share)]
            ]


def spoil_index(path):
    """Its last bytes are others."""
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))


def spoil_schema(path):
    """Its first bytes are others."""
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def hold_another(path):
    """Another Batch has taken its name."""
    others = sorted(path.parents[6].rglob("*-b9.arrows"))
    path.write_bytes(others[0].read_bytes())


@pytest.mark.parametrize("spoil", [spoil_index, spoil_schema, hold_another])
@pytest.mark.parametrize("place", [0, 7])
def test_an_object_that_cannot_be_read_stops_no_other(data, spoil, place):
    """It is named and stays where it is, whichever it is; the others are published."""
    # Each has a schema of its own: one that was read before is not read again.
    schemas = [DEFAULT_SCHEMA.append(pa.field(f"x{number}", pa.int64())) for number in range(9)]
    keys = [
        data.store(Message("p", number), schema=serialize_schema(schema))
        for number, schema in enumerate(schemas)
    ]
    spoil(data.path / "objects" / keys[place])
    lose_queue(data)
    planned, outcome = data.recover(execute=False), data.recover()
    assert outcome.published == planned.published == 8
    assert [line.partition(":")[0].split(" ")[0] for line in outcome.damaged] == [keys[place]]
    found = [each.batch_id for _, each in data.entries(0)]
    assert found == [f"b{n + 1}" for n in range(9) if n != place]
    left = {info.key for info in data.storage.list("")}
    assert left & set(keys) == {keys[place]}
    assert len(left) == 9


@pytest.mark.parametrize("seed", range(4))
def test_a_dry_run_says_what_is_done(tmp_path, seed):
    """Of any topic, whatever is lost of it; once it is done nothing is left to do."""
    rng = random.Random(seed)
    data, other = Data(tmp_path / "data"), Data(tmp_path / "data", "t2", topic_id="f" * 16)
    for topic in (data, other):
        for _ in range(8):
            producer, pair = rng.choice("pq"), 2 * rng.randrange(3)
            messages = [Message(producer, pair), Message(producer, pair + 1)]
            topic.store(*messages, publish_to=rng.choice((0, 1, None)))
    other.store(Message("last", 0), publish_to=0)
    rng.choice((data.lose_page, other.lose_page, lambda _: lose_queue(data)))(0)
    planned = run(data.path, execute=False)
    done = run(data.path)
    assert [each.topic for each in done] == ["t", "t2"]
    for plan, outcome in zip(planned, done, strict=True):
        assert (outcome.topic_id == plan.topic_id) is (outcome.action != "rebuild")
        plan.topic_id = outcome.topic_id
        assert plan == outcome
    for topic, outcome in zip((data, other), done, strict=True):
        if outcome.action == "rebuild":
            found = topic.published()
            assert len(found) == len(set(found)) == outcome.messages
    assert {each.action for each in run(data.path)} == {"none"}


# -- which topics there are ----------------------------------------------------------------------


def test_a_topic_whose_catalog_file_is_damaged_is_named_and_left_alone(data):
    """Nobody knows what it is, so nothing of it is changed; the others are recovered."""
    other = Data(data.path, "a", topic_id="f" * 16)
    for topic in (data, other):
        topic.store(Message("p", 0))
        shutil.rmtree(topic.folders.partition(topic.topic.queue_topic, 1))
    (data.path / "topics/t.json").write_bytes(b"{")
    before = {path: text for path, text in files(data.path).items() if "t.0" in str(path)}
    found = {each.topic: each for each in run(data.path)}
    assert (found["a"].action, found["t"].action) == ("rebuild", "none")
    assert found["t"].reason
    after = {path: text for path, text in files(data.path).items() if "t.0" in str(path)}
    assert after == before


# -- refusals ------------------------------------------------------------------------------------


def test_what_is_in_use_or_no_folder_is_refused(data, tmp_path):
    """Before anything is read; and nothing is in use any more afterwards."""
    data.store(Message("p", 0), publish_to=0)
    for execute in (True, False):
        held = lock_exclusively(data.path / "queue/lock")
        with pytest.raises(LockedError):
            run(data.path, execute=execute)
        os.close(held)
        assert run(data.path, execute=execute)[0].action == "none"
    with pytest.raises(ConfigError, match="no folder of this machine"):
        run(data.path, storage="s3://bucket/root")
    with pytest.raises(UnknownTopicError, match="no topic 'no'"):
        run(data.path, topic="no")
    os.close(lock_exclusively(data.path / "queue/lock"))


def test_where_there_is_no_object_at_all_nothing_is_rebuilt(data):
    """The folder may not be mounted: an empty topic would be the loss of all of it."""
    data.storage.delete(data.store(Message("p", 0), publish_to=0))
    shutil.rmtree(data.folders.partition(data.topic.queue_topic, 1))
    before = files(data.path)
    for execute in (False, True):
        with pytest.raises(DataLossError, match="is missing or empty"):
            data.recover(execute=execute)
    assert files(data.path) == before
