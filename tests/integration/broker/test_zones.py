"""What a broker counts of its network: all bytes, and those that cross zones."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from memq.core.wire import messages as m
from memq.errors import InvalidRequestError
from tests.integration.broker.support import broker, client

MESSAGE = b"x" * 300_000  # several reads, and some of them straight into the body's memory
HEADS = 2_000  # bytes of all heads and answers of a test, at most


def counted(running):
    """Bytes by name of the counter and direction."""
    families = text_string_to_metric_families(running.context.metrics.render().decode())
    return {
        (sample.name, sample.labels["direction"]): sample.value
        for family in families
        for sample in family.samples
        if "direction" in sample.labels
    }


async def exchange(running, zone):
    """Write a large Message and read it back; the growth of each counter."""
    before = counted(running)
    async with client(running, zone=zone) as c:
        topic = f"from-{zone or 'nowhere'}"
        await c.create(topic)
        await c.write(0, MESSAGE, topic=topic)
        page = m.FetchNotifications(topic=topic, positions=[m.PartitionOffset(0, 0)])
        _, body = await c.connection.request(page, timeout_s=20)
        uri = next(part for part in bytes(body).decode("latin-1").split('"') if "://" in part)
        batch = m.FetchBatch(topic=topic, uri=uri, start=0, length=len(MESSAGE))
        await c.connection.request(batch, timeout_s=20)
    return {name: value - before[name] for name, value in counted(running).items()}


@pytest.mark.parametrize(
    ("own", "zone", "crosses"),
    [("a", "b", True), ("a", "a", False), ("a", "", False), ("", "b", False)],
)
async def test_bytes_that_cross_zones(tmp_path, own, zone, crosses):
    """Bytes count as crossing where broker and client name different zones, in both directions."""
    async with broker(tmp_path, zone=own) as running:
        grown = await exchange(running, zone)
    for direction in ("in", "out"):
        every = grown["memq_network_bytes_total", direction]
        crossed = grown["memq_cross_zone_bytes_total", direction]
        assert len(MESSAGE) <= every <= len(MESSAGE) + HEADS
        assert every - HEADS <= crossed <= every if crosses else crossed == 0


async def test_neighbours_are_counted_apart(tmp_path):
    """What one client sends counts for its own zone, whoever else is connected."""
    async with broker(tmp_path, zone="a") as running:
        await exchange(running, "b")
        assert (await exchange(running, "a"))["memq_cross_zone_bytes_total", "in"] == 0


@pytest.mark.parametrize(
    "request_", [m.DescribeCluster(), m.DrainBroker(broker_id="b"), m.RebalanceCluster()]
)
async def test_a_broker_by_itself_is_no_cluster(tmp_path, request_):
    """Who asks a broker that governs itself about its cluster is told how it would have one."""
    async with broker(tmp_path) as running, client(running) as c:
        with pytest.raises(InvalidRequestError, match=r"governs itself \(set the option zookeeper"):
            await c.ask(request_)


async def test_a_broker_by_itself_has_no_news(tmp_path):
    """Topics that stay have no version, and metadata of them is answered at once."""
    async with broker(tmp_path) as running, client(running) as c:
        await c.create("t")
        for known in ("", "anything"):
            answer = await c.ask(m.Metadata(topics=["t"], known=known, max_wait_ms=60_000))
            assert answer.version == ""
