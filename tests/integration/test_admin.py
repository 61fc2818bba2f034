"""The admin clients, over real sockets."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from memq.client.admin import AdminClient, AsyncAdminClient
from memq.core.format.schema import serialize_schema
from memq.core.wire.messages import PartitionOffset
from memq.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnavailableError,
    UnknownGroupError,
    UnknownTopicError,
)
from tests.integration.reading import take, world


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


async def test_wrong_options(tmp_path):
    """A wrong option or name is refused by an error that names it."""
    async with world(tmp_path) as w, AsyncAdminClient(w.address) as admin:
        with pytest.raises(ConfigError, match="batch_agee"):
            await admin.create_topic("x", batch_agee="1s")
        with pytest.raises(ConfigError, match="batch_age"):
            await admin.alter_topic("t", batch_age="1 fortnight")
        with pytest.raises(InvalidRequestError, match="a/b"):
            await admin.create_topic("a/b")


async def test_typed_topic(tmp_path):
    """A schema is given as Arrow has it, or serialized; it grows by nullable columns."""
    old = pa.schema([("x", pa.int64())])
    new = old.append(pa.field("y", pa.utf8()))
    async with world(tmp_path) as w, AsyncAdminClient(w.address) as admin:
        made = await admin.create_topic("typed", schema=old)
        assert made.config.schema == serialize_schema(old)
        grown = await admin.alter_topic("typed", schema=serialize_schema(new))
        assert grown.schemas[grown.schema_id] == serialize_schema(new)
        assert len(grown.schemas) == 2


async def test_offsets_and_watermark(tmp_path):
    """Offsets are those held, and with a time the first one since then."""
    async with world(tmp_path, read_partitions=2) as w, AsyncAdminClient(w.address) as admin:
        before = datetime.now(UTC)
        for _ in range(5):
            await w.write(b"v")
        found = await admin.offsets("t", at=before)
        assert sum(offsets.end for offsets in found) == 5
        assert [(offsets.start, offsets.at) for offsets in found] == [(0, 0), (0, 0)]
        assert [offsets.at for offsets in await admin.offsets("t")] == [None, None]
        assert len((await admin.watermark("t")).read_partitions) == 2
        with pytest.raises(ConfigError, match="no time zone"):
            await admin.offsets("t", at=datetime(2020, 1, 1))  # noqa: DTZ001 - that is the point


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


async def test_closed(tmp_path):
    """A closed client says so, and closing again is fine."""
    async with world(tmp_path) as w:
        admin = AsyncAdminClient(w.address)
        await admin.close()
        await admin.close()
        with pytest.raises(ClosedError):
            await admin.list_topics()


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
