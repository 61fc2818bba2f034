"""Discovery, shared connections and retries, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from memq.client.cluster import Cluster, parse_bootstrap
from memq.errors import (
    ConfigError,
)
from memq.runtime.system import SYSTEM, Runtime
from tests.fakes.tiny_broker import TinyBroker

DEAD = "127.0.0.1:1"


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


@pytest.fixture
async def make():
    clusters = []

    def make(*addresses, clock=SYSTEM.mono_s, **options):
        runtime = Runtime(mono_s=clock, random=lambda: 0.01)
        clusters.append(Cluster(",".join(addresses), runtime=runtime, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        await cluster.close()


async def test_any_seed_that_answers_will_do(broker, make):
    """What it told of a topic is remembered until refreshed."""
    cluster = make(DEAD, broker.address)
    first = await cluster.topic("events")
    assert first.hosts == [broker.address]
    assert await cluster.topic("events") is first
    assert broker.metadata_requests == 1
    await cluster.topic("events", refresh=True)
    assert broker.metadata_requests == 2


async def test_broker_that_comes_up_late_is_found(make):
    """Until its deadline a call waits for a broker to appear."""
    late = TinyBroker()
    await late.start()
    port = int(late.address.rpartition(":")[2])
    await late.stop()
    tries = []

    async def sleep(seconds):
        tries.append(seconds)
        if len(tries) == 3:
            await late.start(port)
        await asyncio.sleep(0)

    cluster = make(f"127.0.0.1:{port}", sleep=sleep)
    await cluster.topic("events")
    assert len(tries) == 3
    await late.stop()


async def test_caller_that_gives_up_does_not_take_the_attempt_along(broker, make):
    """A cancelled caller leaves the others their connection."""
    cluster = make(broker.address)
    first = asyncio.ensure_future(cluster.connection(broker.address))
    second = asyncio.ensure_future(cluster.connection(broker.address))
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).closed


def test_bootstrap_is_a_list_of_addresses():
    """Spaces and repeats do not matter."""
    assert parse_bootstrap(" a:1, b:2 ,a:1,") == ["a:1", "b:2"]
    for bad in ("", " , ", "a:1,b"):
        with pytest.raises(ConfigError):
            parse_bootstrap(bad)
