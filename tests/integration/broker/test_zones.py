"""What a broker counts of its network: all bytes, and those that cross zones."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from memq.core.wire import messages as m
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
