"""A ZooKeeper for each test; and failures of the contract explained as those of a test module."""

import pytest

pytest.register_assert_rewrite("tests.contracts.coordination")

from tests.integration.zookeeper.servers import Service, kazoo_threads  # noqa: E402 - after it


@pytest.fixture
async def service(zookeeper_server):
    """An empty root, which belongs to nobody."""
    service = Service(zookeeper_server)
    await (await service.open()).close()
    yield service
    await service.close()
    assert kazoo_threads() == []
