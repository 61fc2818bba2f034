"""Everything but the bucket is lost, or a part of it: what comes back, at which offsets."""

import pydoc
import shutil
from contextlib import asynccontextmanager, suppress

import msgspec
import pyarrow as pa
import pytest

from memq.broker.backup import latest_catalog
from memq.broker.config import BrokerConfig
from memq.broker.restore_run import restore_cluster
from memq.broker.server import Broker
from memq.core import backup
from memq.core.access.rules import Rule
from memq.core.backup import Span
from memq.core.format.schema import serialize_schema
from memq.core.notification import decode_notification
from memq.core.wire import messages as m
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    LockedError,
    QueueError,
    StorageError,
)
from memq.queue.embedded.folders import TopicFolders
from memq.storage.local import LocalStorage
from tests.integration.broker.support import client, failing, until

TOPIC = {"read_partitions": 2, "write_partitions": 2, "batch_messages": 1, "batch_age": "1s"}


def config(directory, **options):
    """A broker that backs up when it is told to, and at its stop."""
    options = {"data_dir": str(directory), "port": 0, "admin_port": 0} | options
    return BrokerConfig.create({"backup_interval": "1d"} | options)


@asynccontextmanager
async def running(directory, *, dies=False, **options):
    """A broker on real files; one that dies backs up nothing at its end."""
    broker = Broker(config(directory, **options))
    try:
        await broker.start()
    except BaseException:
        await broker.abandon()
        raise
    try:
        yield broker
    finally:
        if dies:
            broker.backups._context.leased = lambda: False
        await broker.stop()


async def restored(directory, *, execute=True, topic=None, **options):
    """Restore a directory; outcomes by topic."""
    found = await restore_cluster(config(directory, **options), execute=execute, topic=topic)
    return {each.topic: each for each in found}


async def published(broker, topic="t"):
    """What each offset names: batch ids by partition and offset."""
    hosted = broker.topics.get(topic)
    name = hosted.topic.queue_topic
    found = {}
    for partition in range(hosted.topic.config.read_partitions):
        start, _ = await broker.context.queue.offsets(name, partition)
        async for entry in broker.context.entries(name, partition, start):
            found[partition, entry.offset] = decode_notification(entry.payload).batch_id
    return found


async def write(c, *sequences, topic="t", producer="p"):
    """Write Messages, each in a Batch of its own, to write partitions in turn."""
    for sequence in sequences:
        await c.write(
            sequence,
            topic=topic,
            write_partition=sequence % 2,
            producer_id=f"{producer}{sequence % 2}",
        )


async def commit(c, group="g", **offsets):
    """Store offsets of a group, by partition."""
    positions = [
        m.PartitionOffset(partition=int(name[1:]), offset=offset)
        for name, offset in offsets.items()
    ]
    await c.ask(m.CommitOffsets(group=group, topic="t", member_id="", offsets=positions))


async def committed(c, group="g"):
    answer = await c.ask(m.FetchCommitted(group=group, topic="t"))
    return {each.partition: each.offset for each in answer.offsets}


def lose(directory, *parts):
    """Lose parts of a data directory."""
    for part in parts or ("queue", "topics", "access.json"):
        path = directory / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


async def test_all_comes_back_at_its_offsets(tmp_path):
    """After a stop all is backed up: offsets, groups, topics, users, rules; nothing has moved."""
    async with running(tmp_path) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, *range(10))
        await commit(c, p0=3, p1=2)
        await c.ask(
            m.AlterRules(add=[Rule(principal="User:ann", operation="read", type="topic", name="t")])
        )
        before, topic = await published(b), b.topics.get("t").topic
        document, running_ms = b.control.document, b.context.now().mono_ms
    lose(tmp_path)
    dry = await restored(tmp_path, execute=False)
    assert not (tmp_path / "topics/t.json").exists()
    assert dry == await restored(tmp_path)
    assert TopicFolders(tmp_path / "queue").times().running_ms >= running_ms
    assert (dry["t"].action, dry["t"].exact, dry["t"].later, dry["t"].groups) == (
        "restore",
        10,
        0,
        ["g"],
    )
    async with running(tmp_path) as b, client(b) as c:
        assert await published(b) == before
        assert b.topics.get("t").topic == topic
        assert b.control.document == document
        assert await committed(c) == {0: 3, 1: 2}
        await c.know("t")
        again = await c.write(8, write_partition=0, producer_id="p0")
        assert again.duplicate, "what was published is known"
        await write(c, 10, 11)
        after = await published(b)
    assert before.items() < after.items()
    assert len(after) == 12
    assert {each.action for each in (await restored(tmp_path)).values()} == {"none"}


async def test_what_was_published_later_gets_offsets_that_were_never_used(tmp_path):
    """Acked data is never lost, and no offset ever names two Batches; groups read it again."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, *range(6))
        await commit(c, p0=3, p1=3)
        await b.backups.write()
        known = await published(b)
        await write(c, *range(6, 12))
        await commit(c, p0=6, p1=6)
        before = await published(b)
    lose(tmp_path)
    outcome = (await restored(tmp_path))["t"]
    assert (outcome.exact, outcome.later, outcome.given_up) == (6, 6, 0)
    async with running(tmp_path) as b, client(b) as c:
        after = await published(b)
        assert sorted(after.values()) == sorted(before.values())
        assert {place: after[place] for place in known} == known
        moved = after.keys() - known.keys()
        assert moved.isdisjoint(before)
        assert await committed(c) == {0: 3, 1: 3}
        ask = m.FetchNotifications(
            topic="t", positions=[m.PartitionOffset(partition=0, offset=4)], max_entries=1
        )
        _, page = await c.connection.request(ask, timeout_s=9)
        [(_, offset, _, _)] = msgspec.msgpack.decode(page)
        assert (0, offset) in moved, "who stands in the gap goes on after it"
        await c.know("t")
        await write(c, 12, 13)
        assert len(await published(b)) == 14
        assert before.keys().isdisjoint((await published(b)).keys() - known.keys())


async def test_an_upload_that_was_given_up_is_not_published(tmp_path):
    """Of Batches that share Messages the one that was sealed last counts."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**(TOPIC | {"upload_deadline": "300ms"}))
        put = b.context.storage.put

        def without_an_answer(key, buffers, **options):
            put(key, buffers, **options)
            raise StorageError("no answer")

        b.context.storage.put = without_an_answer
        with pytest.raises(StorageError, match="no answer"):
            await write(c, 0)
        b.context.storage.put = put
        await write(c, 0, 1)
        before = await published(b)
    lose(tmp_path)
    outcome = (await restored(tmp_path))["t"]
    assert (outcome.later, outcome.given_up) == (2, 1)
    async with running(tmp_path) as b:
        assert sorted((await published(b)).values()) == sorted(before.values())


async def test_a_damaged_notification_comes_back_at_its_offset(tmp_path):
    """Its backup has it, the queue has all others; one that no backup has gets a new offset."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**(TOPIC | {"read_partitions": 1}))
        await write(c, 0, 1)
        await b.backups.write()
        await write(c, 2, 3)
        await commit(c, p0=4)
        before = await published(b)
    page = next((tmp_path / "queue/topics").glob("t.*/0/data/*.page"))
    content = page.read_bytes()
    for batch_id in (before[0, 1], before[0, 2]):
        content = content.replace(batch_id.encode(), b"?" * len(batch_id))
    page.write_bytes(content)
    outcome = (await restored(tmp_path))["t"]
    assert (outcome.exact, outcome.later, outcome.lost) == (3, 1, 1)
    async with running(tmp_path) as b, client(b) as c:
        after = await published(b)
        assert sorted(after.values()) == sorted(before.values())
        kept = {place: name for place, name in before.items() if place != (0, 2)}
        assert kept.items() < after.items()
        assert (0, 2) not in after
        assert await committed(c) == {0: 4}, "of the queue, not of the older backup"


async def test_a_backup_that_is_gone_costs_offsets_and_no_data(tmp_path):
    """A damaged one is refused, with the way out; without it its Batches get new offsets."""
    async with running(tmp_path) as b, client(b) as c:
        await c.create(**TOPIC)
        for sequence in range(0, 6, 2):
            await write(c, sequence, sequence + 1)
            await b.backups.write()
        before = await published(b)
    lose(tmp_path)
    damaged = sorted((tmp_path / "objects/backup/memq/notifications").iterdir())[-2]
    damaged.write_bytes(damaged.read_bytes()[:-20] + bytes(20))
    with pytest.raises(CorruptDataError, match="delete it: the Batches that only it names"):
        await restored(tmp_path)
    damaged.unlink()
    outcome = (await restored(tmp_path))["t"]
    assert (outcome.exact, outcome.later) == (4, 2)
    async with running(tmp_path) as b:
        assert sorted((await published(b)).values()) == sorted(before.values())


async def test_retention_goes_on_where_it_was(tmp_path):
    """Expired Batches stay gone, and offsets begin where they began."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, *range(8))
        await b.backups.write()
        name = b.topics.get("t").topic.queue_topic
        await b.context.queue.truncate(name, 0, 2)
        b.topics.get("t").expired_before_ms = 1
        await b.backups.write()
        before, bounds = await published(b), await b.context.queue.offsets(name, 0)
    lose(tmp_path)
    assert (await restored(tmp_path))["t"].later == 0
    async with running(tmp_path) as b:
        assert await published(b) == before
        assert await b.context.queue.offsets(name, 0) == bounds == (2, 4)


async def test_topics_come_back_that_were_not_deleted(tmp_path):
    """Not those that were; one that is younger than the last backup has schema and data."""
    typed = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create("old", **TOPIC)
        await write(c, 0, 1, topic="old")
        await c.create(**TOPIC)
        await b.backups.write()
        objects = LocalStorage(tmp_path / "objects")
        late = next(each.key for each in objects.list("") if "/topics/old/" in each.key)
        content = objects.get(late)
        await c.ask(m.DeleteTopic(topic="old"))
        await until(lambda: not [each for each in objects.list("") if each.key == late])
        objects.put(late, [content], timeout_s=9)  # an upload that was given up lands
        await b.backups.write()
        info = await c.create("young", schema=serialize_schema(typed))
        await c.create("younger")
        await write(c, 0, topic="younger")
    lose(tmp_path)
    outcomes = await restored(tmp_path)
    assert outcomes.keys() == {"_memq_audit", "t", "younger"}
    assert info.topic_id not in {each.topic_id for each in outcomes.values()}, "it had no Batch"
    async with running(tmp_path) as b:
        assert b.topics.names() == ["_memq_audit", "t", "younger"]
        assert len(await published(b, "younger")) == 1


@pytest.mark.parametrize("damage", [None, b"{"])
async def test_what_is_left_of_a_catalog_counts(tmp_path, damage):
    """A topic whose file is lost or damaged comes back; what the others say is newer than it."""
    async with running(tmp_path) as b, client(b) as c:
        await c.create(**TOPIC)
        await c.create("other", **TOPIC)
        await write(c, 0, 1)
        before = await published(b)
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.ask(m.AlterTopic(topic="other", options={"retention": "9d"}))
    lose(tmp_path, "topics/t.json")
    if damage:
        (tmp_path / "topics/t.json").write_bytes(damage)
    with pytest.raises(DataLossError, match="neither catalog nor backups know a topic 'x'"):
        await restored(tmp_path, topic="x")
    assert (await restored(tmp_path))["t"].action == "restore"
    async with running(tmp_path) as b:
        assert await published(b) == before
        assert b.topics.get("other").topic.config.retention_ms == 9 * 86_400_000


@pytest.mark.parametrize("step", range(1, 40))
async def test_a_restore_that_is_cut_off_is_done_again(tmp_path, monkeypatch, step):
    """Wherever it ends, the next one has the same result, with what only the queue had."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**(TOPIC | {"read_partitions": 1}))
        await write(c, 0, 1)
        await b.backups.write()
        await write(c, 2, 3)
        before = await published(b)
    page = next((tmp_path / "queue/topics").glob("t.*/0/data/*.page"))
    page.write_bytes(page.read_bytes().replace(before[0, 1].encode(), b"?" * len(before[0, 1])))
    lose(tmp_path, "topics")
    steps = iter(range(1, 1_000))

    def counted(call):
        def counting(*args, **options):
            if next(steps) == step:
                raise QueueError("cut off")
            return call(*args, **options)

        return counting

    with monkeypatch.context() as patch:
        for owner, name in [
            ("memq.queue.embedded.folders", "make_partition"),
            ("memq.queue.embedded.folders", "replace_durably"),
            ("memq.queue.embedded.folders.TopicFolders", "show"),
            ("memq.queue.embedded.read_partition.Partition", "append"),
            ("memq.broker.restore_local", "_move"),
            ("memq.broker.restore_local", "sync_folder"),
            ("memq.broker.catalog", "replace_durably"),
        ]:
            target = f"{owner}.{name}"
            patch.setattr(target, counted(pydoc.locate(target)))
        with suppress(QueueError):
            await restored(tmp_path)
    await restored(tmp_path)
    async with running(tmp_path) as b:
        assert await published(b) == before


@pytest.mark.parametrize("kind", ["notifications", "state", "catalog"])
async def test_a_backup_that_failed_lacks_nothing_later(tmp_path, kind):
    """Whatever of it was not written: the next one has that, though nothing has changed since."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, 0, 1)
        await commit(c, p0=1)
        put = b.context.storage.put

        def refused(key, *args, **options):
            if f"backup/memq/{kind}/" in key:
                raise StorageError("away")
            put(key, *args, **options)

        b.context.storage.put = refused
        with pytest.raises(StorageError, match="away"):
            await b.backups.write()
        b.context.storage.put = put
        await b.backups.write()
        before = await published(b)
    lose(tmp_path)
    outcome = (await restored(tmp_path))["t"]
    assert (outcome.exact, outcome.later, outcome.groups) == (2, 0, ["g"])
    async with running(tmp_path) as b:
        assert await published(b) == before


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_queue_that_lost_its_end_is_backed_up_again(tmp_path, noticed):
    """An earlier backup reaches further than the queue does: what comes then is not left out."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, 0, 1)
        await b.backups.write()
        name = b.topics.get("t").topic.queue_topic
        b.backups._known[name] = b.backups._known[name]._replace(spans=[Span(0, 9), Span(0, 9)])
        b.backups._changes.clear()  # as after a start
        if noticed:
            with failing(b.context.queue, "offsets", DataLossError("its end is lost")):
                await b.backups.write()
        await write(c, 2, 3)
        await b.backups.write()
        before = await published(b)
    lose(tmp_path)
    outcome = (await restored(tmp_path))["t"]
    assert (outcome.exact, outcome.later) == (4, 0)
    async with running(tmp_path) as b:
        assert await published(b) == before


async def test_one_topic_that_cannot_be_read_keeps_no_other_back(tmp_path):
    """It is backed up once it can be; the others are meanwhile."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await c.create("u", **TOPIC)
        await write(c, 0, 1)
        await write(c, 0, 1, topic="u")
        name = b.topics.get("t").topic.queue_topic
        with failing(
            b.context.queue, "offsets", QueueError("away"), lambda topic, _: topic == name
        ):
            await b.backups.write()
        before = await published(b), await published(b, "u")
    lose(tmp_path)
    outcomes = await restored(tmp_path)
    assert (outcomes["t"].later, outcomes["u"].exact) == (2, 2)
    async with running(tmp_path) as b:
        assert sorted((await published(b)).values()) == sorted(before[0].values())
        assert await published(b, "u") == before[1]


async def test_a_topic_that_a_writer_has_not_heard_of_is_there(tmp_path):
    """Another broker's catalog is later and lacks a topic that was made just before it."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, 0)
        await b.backups.write()
        folder = backup.catalogs_folder("memq")
        storage = LocalStorage(tmp_path / "objects")
        newest = max(each.key for each in storage.list(folder))
        catalog = backup.decode_catalog(newest, memoryview(storage.get(newest)))
        for late_ms, there in [(50_000, True), (70_000, False)]:
            kept = [each for each in catalog.topics if each.name != "t"]
            late = msgspec.structs.replace(
                catalog,
                broker_id="other",
                topics=kept,
                wall_ms=catalog.wall_ms + late_ms,
                running_ms=1 << 40,
            )
            name = f"{folder}{1 << 40:012x}-other-{late_ms}"
            storage.put(name, [backup.encode_json(late)], timeout_s=9)
            found = latest_catalog(storage, "memq")
            assert ("t" in [each.name for each in found.topics]) == there
            storage.delete(name)


async def test_nothing_begins_anew_over_a_backup(tmp_path):
    """An empty directory is refused where the bucket has a backup: it would replace that."""
    async with running(tmp_path) as b, client(b) as c:
        await c.create(**TOPIC)
    lose(tmp_path)
    with pytest.raises(DataLossError, match=r"has a backup of 2 topics of .*`memq restore`"):
        async with running(tmp_path):
            pass
    async with running(tmp_path, cluster_id="new"):
        pass
    (tmp_path / "other").mkdir()
    async with running(tmp_path / "other") as b:
        shutil.copytree(tmp_path / "objects/backup", tmp_path / "other/objects/backup")
        with pytest.raises(ConfigError, match="has the backups of another cluster 'memq'"):
            await b.backups.write()
    with pytest.raises(DataLossError, match="neither Batches nor backups of this cluster"):
        await restored(tmp_path / "nothing")


async def test_a_broker_that_runs_is_left_alone(tmp_path):
    """Its data directory is locked."""
    async with running(tmp_path):
        with pytest.raises(LockedError):
            await restored(tmp_path)


async def test_who_keeps_offsets_goes_no_further_than_backups(tmp_path):
    """The answer comes after a backup; without backups there is no limit."""
    async with running(tmp_path, dies=True) as b, client(b) as c:
        await c.create(**TOPIC)
        await write(c, *range(4))
        assert (await c.ask(m.FetchBackup(topic="t"))).ends == [2, 2]
        states = LocalStorage(tmp_path / "objects").list(backup.states_folder("memq"))
        assert len(list(states)) == 1
        with failing(b.context.storage, "put", QueueError("away")):
            await commit(c, p0=1)
            with pytest.raises(QueueError, match="away"):
                await c.ask(m.FetchBackup(topic="t"))
    async with running(tmp_path, backup_interval="0s") as b, client(b) as c:
        assert (await c.ask(m.FetchBackup(topic="t"))).ends is None
