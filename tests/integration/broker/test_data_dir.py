"""A data directory that was moved, copied or damaged: what the start says, what is served."""

import asyncio
import shutil
import subprocess
from contextlib import asynccontextmanager
from functools import partial

import pytest

from memq import AsyncConsumer
from memq.broker.config import BrokerConfig
from memq.broker.restore_run import restore_cluster
from memq.broker.server import Broker
from memq.core.wire import messages as m
from memq.errors import CorruptDataError, DataLossError, MemqError, SequenceConflictError
from memq.testing.broker import BrokerProcess
from tests.integration.broker.support import client


@asynccontextmanager
async def on_files(directory, **options):
    """A broker on real files below a data directory."""
    options = {"data_dir": str(directory), "port": 0, "admin_port": 0} | options
    running = Broker(BrokerConfig.create(options))
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def restored(directory, **options):
    """Restore a data directory; outcomes by topic."""
    config = BrokerConfig.create({"data_dir": str(directory)} | options)
    return {each.topic: each for each in await restore_cluster(config, execute=True)}


@pytest.fixture
async def data(tmp_path):
    """The data directory of a stopped broker with two topics, one Batch in each."""
    async with on_files(tmp_path) as b, client(b) as c:
        for topic in ("t", "other"):
            await c.create(topic)
            await c.write(0, topic=topic)
    return tmp_path


async def written(running, topic, sequence=1):
    """The offset of a Message that is written now."""
    async with client(running) as c:
        await c.know(topic)
        return (await c.write(sequence, topic=topic)).offset


async def test_storage_may_be_elsewhere(tmp_path, caplog):
    """With the option storage the objects are there, and there they are missed and recovered."""
    elsewhere = tmp_path / "on another disk"
    storage = elsewhere.as_uri()
    async with on_files(tmp_path / "data", storage=storage) as b, client(b) as c:
        await c.create("t")
        await c.write(0)
    assert len(list(elsewhere.rglob("*.arrows"))) == 1
    assert not (tmp_path / "data" / "objects").exists()
    (queue_topic,) = (each for each in topic_folder(tmp_path / "data").parent.glob("t.*"))
    shutil.rmtree(queue_topic)
    run = partial(restored, tmp_path / "data")
    with pytest.raises(DataLossError, match="neither Batches nor backups of this cluster"):
        await run()
    assert (await run(storage=storage))["t"].exact == 1
    (tmp_path / "data/queue").rename(tmp_path / "unmounted")
    with pytest.raises(DataLossError, match=r"queue is missing or empty, but .*`memq restore`"):
        async with on_files(tmp_path / "data", storage=storage):
            raise AssertionError("started")
    (tmp_path / "unmounted").rename(tmp_path / "data/queue")
    shutil.rmtree(elsewhere)
    async with on_files(tmp_path / "data", storage=storage):
        assert f"no object below {elsewhere.as_uri()}/ for 1 of 1 notification" in caplog.text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: (data / "topics/t.json").write_bytes(b"{"), "topics/t.json"),
        (lambda data: (data / "topics/t.json").write_bytes(b""), "topics/t.json"),
        (lambda data: (topic_folder(data) / "topic.json").write_bytes(b"{"), "topic.json"),
        (lambda data: (topic_folder(data) / "topic.json").unlink(), "topic.json"),
        (lambda data: shutil.rmtree(topic_folder(data) / "0"), "0 is missing"),
        (lambda data: shutil.rmtree(topic_folder(data)), "its notifications are missing"),
        (lambda data: (topic_folder(data) / "0/meta.json").unlink(), "meta.json is missing"),
        (lambda data: flip(topic_folder(data) / "0/data/000000000000.page"), "offset 0 of"),
    ],
)
async def test_a_damaged_topic_costs_only_itself(data, damage, said, caplog):
    """It is not served, with an error that names file and way out; the other topics are."""
    damage(data)
    async with on_files(data) as b:
        assert await written(b, "other") == 1
        with pytest.raises(CorruptDataError, match="not served") as caught:
            await written(b, "t")
        assert said in str(caught.value)
        assert any(way in str(caught.value) for way in ("`memq restore`", "Topics lost"))
        async with client(b) as c:
            with pytest.raises(CorruptDataError):
                await c.create("t")
            everything = await c.ask(m.Metadata(topics=None))
            assert [topic.config.name for topic in everything.topics] == ["_memq_audit", "other"]
    assert "topic t is damaged and not served" in caplog.text


def topic_folder(data):
    """The folder of topic t in the queue."""
    return next((data / "queue/topics").glob("t.*"))


def flip(file):
    """Damage the first entry of a data page."""
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)


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
async def test_a_directory_is_read_from_where_it_is(tmp_path, how, caplog):
    """Readers, groups and duplicates meet no difference, and nothing is read of the original."""
    commit = [m.PartitionOffset(0, 1), m.PartitionOffset(1, 0)]
    async with on_files(tmp_path / "data") as b, client(b) as c:
        await c.create("t", read_partitions=2, batch_messages=1)
        for sequence in range(4):
            await c.write(sequence)
        await c.ask(m.CommitOffsets(group="g", topic="t", member_id="", offsets=commit))
    place = how(tmp_path / "data")
    async with on_files(place) as b, client(b) as c:
        await c.know("t")
        for sequence in range(4):
            assert (await c.write(sequence)).duplicate
        with pytest.raises(SequenceConflictError):
            await c.write(0, b"other content")
        for through in ("storage", "broker"):
            async with AsyncConsumer(
                b.address, topic="t", start="earliest", read_through=through
            ) as consumer:
                found = [await consumer.poll(timeout=60) for _ in range(4)]
            assert sorted(each.value for batch in found for each in batch) == [
                b"value %d" % sequence for sequence in range(4)
            ]
            uris = [batch.notification.uri for batch in found]
            assert all(each.startswith((place / "objects").as_uri()) for each in uris)
        found = await c.ask(m.FetchCommitted(group="g", topic="t"))
        assert found.offsets == commit
        assert not b.context.presence.missing
    assert "ERROR" not in caplog.text


async def test_a_copy_does_not_share_the_objects_of_a_running_broker(data):
    """Started on the same objects by a link, it is refused; another lineage may use them."""
    copy = data.with_name(f"{data.name}-copy")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("objects"))
    (copy / "objects").symlink_to(data / "objects")
    async with on_files(data):
        with pytest.raises(MemqError, match="on a copy of this data directory, uses"):
            await asyncio.to_thread(BrokerProcess, copy)
        storage = (data / "objects").as_uri()
        async with on_files(f"{data}-stranger", storage=storage, cluster_id="stranger"):
            pass
    async with on_files(copy) as b:
        assert await written(b, "t") == 1
