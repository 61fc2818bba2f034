"""The model of ZooKeeper passes the contract of coordination, in time that passes at once."""

import asyncio

import pytest

from tests.contracts.coordination import *  # noqa: F403 - the suite is the module
from tests.fakes.zookeeper import InMemoryZooKeeper


class Service(InMemoryZooKeeper):
    """The model, with a clock for the contract."""

    def clock_s(self):
        return asyncio.get_running_loop().time()


@pytest.fixture
async def service(virtual_time):
    """An empty one."""
    return Service()
