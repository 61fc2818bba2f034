"""What is missing or damaged in a data directory: what the start says, and what is still served."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from functools import partial

import pytest

from memq.broker.config import BrokerConfig
from memq.broker.recover import recover
from memq.broker.server import Broker
from memq.core.wire import messages as m
from memq.errors import CorruptDataError, DataLossError
from memq.runtime.system import SYSTEM
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
        answer = await c.ask(m.Metadata(topics=[topic]))
        c.schema_id = answer.topics[0].schema_id
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
    run = partial(recover, tmp_path / "data", topic="t", runtime=SYSTEM, progress=lambda *_: None)
    with pytest.raises(DataLossError, match="objects is missing or empty"):
        run(execute=False)
    assert run(storage=storage, execute=True)[0].published == 1
    (tmp_path / "data/queue").rename(tmp_path / "unmounted")
    with pytest.raises(DataLossError, match=f"`memq recover {tmp_path}/data --storage {storage}`"):
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
        assert any(way in str(caught.value) for way in ("`memq recover DATA_DIR`", "Topics lost"))
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
