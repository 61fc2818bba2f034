"""The admin clients, over real sockets: through a broker, and what they ask of one."""

from __future__ import annotations

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
    TopicExistsError,
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
        made = await admin.create_topic(
            "clicks", read_partitions=3, batch_age="500ms", audited=False
        )
        assert (made.config.read_partitions, made.config.batch_age_ms) == (3, 500)
        assert made.hosts == [w.address]
        with pytest.raises(TopicExistsError):
            await admin.create_topic("clicks")
        changed = await admin.alter_topic("clicks", retention="1d", audited=True)
        assert (changed.config.retention_ms, changed.config.audited) == (86_400_000, True)
        assert (await admin.describe_topic("clicks")).config == changed.config
        names = [topic.config.name for topic in await admin.list_topics()]
        assert names == sorted(names)
        assert {"clicks", "t"} <= set(names)
        await admin.delete_topic("clicks")
        with pytest.raises(UnknownTopicError):
            await admin.describe_topic("clicks")
        with pytest.raises(UnknownTopicError):
            await admin.delete_topic("clicks")


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
            assert await admin.groups() == [group]
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


async def test_lag(tmp_path):
    """Lag is in Batches, records, bytes and seconds; what nobody committed is not guessed."""
    async with world(tmp_path, read_partitions=2) as w, AsyncAdminClient(w.address) as admin:
        now_us = w.broker.context.now().wall_ms * 1_000
        for _ in range(6):
            await w.write(b"a", b"b", min_timestamp_us=now_us - 60_000_000)
        await admin.reset_offsets("g", "t", {0: 1})
        await admin.reset_offsets("h", "t", "latest")

        ours, theirs = await admin.lag()

        assert (ours.group, ours.topic, ours.members, ours.removed) == ("g", "t", [], False)
        committed, other = ours.partitions
        sizes = [(await w.notification(0, offset)).size_bytes for offset in (1, 2)]
        assert (committed.committed, committed.start, committed.end) == (1, 0, 3)
        assert committed.lag[:3] == (2, 4, sum(sizes))
        assert 60 <= committed.lag.seconds < 90
        assert (other.committed, other.lag, other.end, other.error) == (None, None, 3, "")
        assert ours.total == committed.lag
        assert theirs.total == (0, 0, 0, 0.0)
        assert await admin.lag(group="h") == [theirs]
        assert await admin.lag("t", "nobody") == []
        with pytest.raises(UnknownTopicError):
            await admin.lag("nothing")


async def test_what_retention_removed_is_no_lag(tmp_path):
    """A group does not lag by Batches that are gone: it is told that it has missed them."""
    async with world(tmp_path) as w, AsyncAdminClient(w.address) as admin:
        for _ in range(5):
            await w.write(b"v")
        await admin.reset_offsets("g", "t", {0: 1})
        async with w.consumer(start="earliest") as consumer:
            await w.queue.truncate(w.queue_topic, 0, 3)

            [found] = await admin.lag("t")

            assert found.removed
            [partition] = found.partitions
            assert (partition.committed, partition.start, partition.end) == (1, 3, 5)
            assert (partition.lag.batches, partition.removed) == (2, True)
            assert await consumer.lag() == {0: 2}


async def test_lag_over_damage(tmp_path):
    """A damaged notification costs the lag of those who stand before it, and no other."""
    async with world(tmp_path) as w, AsyncAdminClient(w.address) as admin:
        await w.write(b"v")
        await w.publish(0, b"{}")
        await w.write(b"v")
        await admin.reset_offsets("after", "t", {0: 2})
        await admin.reset_offsets("before", "t", {0: 0})

        after, before = await admin.lag("t")

        assert after.total.batches == 1
        assert before.partitions[0].lag is None
        assert "offset 1: not a notification" in before.partitions[0].error


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
    """An attempt whose answer was lost may have done it; a given incarnation must be there."""
    broker.incarnation = "7" * 16
    broker.answers[m.DeleteTopic] = error
    await admin.delete_topic("events")
    assert [each.incarnation for each in broker.asked] == ["7" * 16]
    with pytest.raises(type(error)):
        await admin.delete_topic("events", incarnation="1" * 16)
    assert broker.asked[-1].incarnation == "1" * 16


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


def group(name, topic):
    return m.GroupInfo(group=name, topic=topic, offsets=[], members=[])
