"""The admin clients, over real sockets: through a broker, and what they ask of one."""

import pytest

from memq.client.admin import AdminClient, AsyncAdminClient
from memq.core.wire import messages as m
from memq.core.wire.messages import PartitionOffset
from memq.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StorageError,
    TopicRecreatedError,
    UnavailableError,
    UnknownGroupError,
    UnknownTopicError,
)
from tests.fakes.tiny_broker import TinyBroker
from tests.topics.reading import take, world


async def test_topics(tmp_path):
    """Topics are created, shown, changed and deleted."""
    async with world(tmp_path) as w, AsyncAdminClient(w.address) as admin:
        made = await admin.create_topic("clicks", batch_age="500ms", audited=False)
        assert (made.config.batch_age_ms, made.config.audited) == (500, False)
        changed = await admin.alter_topic("clicks", retention="1d", audited=True)
        assert (changed.config.retention_ms, changed.config.audited) == (86_400_000, True)
        assert (await admin.describe_topic("clicks")).config == changed.config
        names = [topic.config.name for topic in await admin.list_topics()]
        assert [each for each in names if each[0] != "_"] == ["clicks", "t"]
        await admin.delete_topic("clicks")
        for call in (admin.describe_topic, admin.delete_topic):
            with pytest.raises(UnknownTopicError):
                await call("clicks")


async def test_groups(tmp_path):
    """Groups are listed with offsets and members, reset while they are idle, and deleted."""
    async with world(tmp_path) as w, AsyncAdminClient(w.address) as admin:
        for _ in range(4):
            await w.write(b"v")
        async with w.consumer(group="g", client="me") as consumer:
            await take(consumer, 3)
            await consumer.commit()
            (group,) = await admin.groups("t")
            assert (group.group, group.topic, group.offsets) == ("g", "t", [PartitionOffset(0, 3)])
            assert [(m.client, m.partitions) for m in group.members] == [("me", [0])]
            assert [(each.group, each.offsets) for each in await admin.groups()] == [
                ("g", group.offsets)
            ]
            with pytest.raises(InvalidRequestError, match="1 live member"):
                await admin.reset_offsets("g", "t", "earliest")
            with pytest.raises(InvalidRequestError, match="1 live member"):
                await admin.delete_group("g", "t")
        assert await admin.reset_offsets("g", "t", {0: 1}) == {0: 1}
        assert await admin.committed("g", "t") == {0: 1}
        assert await admin.reset_offsets("g", "t", "latest", dry_run=True) == {0: 4}
        assert await admin.committed("g", "t") == {0: 1}
        with pytest.raises(OffsetOutOfRangeError):
            await admin.reset_offsets("g", "t", {0: 5})
        with pytest.raises(InvalidRequestError, match="no partition 1"):
            await admin.reset_offsets("g", "t", {1: 0})
        with pytest.raises(ConfigError, match="'yesterday'"):
            await admin.reset_offsets("g", "t", "yesterday")
        await admin.delete_group("g", "t")
        assert await admin.groups() == []
        with pytest.raises(UnknownGroupError):
            await admin.delete_group("g", "t")


def test_sync_client_without_broker():
    """The sync client raises what the async one does, and ends its thread."""
    with AdminClient("127.0.0.1:1", request_timeout_s=0.2) as admin:
        with pytest.raises(UnavailableError):
            admin.list_topics()
        assert "AdminClient" in repr(admin)
    admin.close()
    with pytest.raises(ClosedError):
        admin.list_topics()
    with pytest.raises(ConfigError):
        AdminClient("nonsense")


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


@pytest.fixture
async def admin(broker):
    async with AsyncAdminClient(broker.address) as client:
        yield client


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), TopicRecreatedError("another")])
async def test_a_topic_that_is_gone_by_then_is_deleted(broker, admin, error):
    """An attempt whose answer was lost may have done it; a given topic id must be there."""
    broker.topic_id = "7" * 16
    broker.answers[m.DeleteTopic] = error
    await admin.delete_topic("events")
    assert [each.topic_id for each in broker.asked] == ["7" * 16]
    with pytest.raises(type(error)):
        await admin.delete_topic("events", topic_id="1" * 16)
    assert broker.asked[-1].topic_id == "1" * 16


async def test_each_creation_has_its_name(broker, admin):
    """A creation that is sent again is the same one, another one is not."""
    retried = [StorageError("slow")]

    def create(_):
        return retried.pop() if retried else m.TopicAnswer(topic=broker._info("events"))

    broker.answers[m.CreateTopic] = create
    for _ in range(2):
        await admin.create_topic("events")
    first, again, other = [request.request_id for request in broker.asked]
    assert first == again != other
    assert first
