"""The model of ZooKeeper passes the contract of coordination, in time that passes at once."""

from __future__ import annotations

import asyncio

import pytest

from memq.errors import SessionLostError, UnavailableError
from memq.zookeeper.session import REFUSED_SESSIONS
from tests.contracts.coordination import *  # noqa: F403 - the suite is the module
from tests.contracts.coordination import begun, within
from tests.fakes.zookeeper import InMemoryZooKeeper


class Service(InMemoryZooKeeper):
    """The model, with a clock for the contract."""

    def clock_s(self):
        return asyncio.get_running_loop().time()


@pytest.fixture
async def service(virtual_time):
    """An empty one."""
    return Service()


# -- what only a model can be ordered to do ---------------------------------------------------


async def test_a_service_that_is_away_expires_nobody(service):
    """When it is back, sessions go on with their ephemerals, and their watches too."""
    session, other = await service.open(), await service.open(request_timeout_s=1)
    await session.create("/mine", ephemeral=True)
    watch = other.watch("/new")
    assert await anext(watch) is None
    waiter = await begun(anext(watch))
    service.stop()
    assert "stopped" in repr(service)
    await asyncio.sleep(60)
    assert not session.lease.valid(service.clock_s())
    with pytest.raises(UnavailableError):
        await other.get("/mine")
    with pytest.raises(UnavailableError):
        await service.open(request_timeout_s=1)
    service.start()
    await session.create("/new", b"x")
    assert (await within(waiter)).data == b"x"
    assert (await other.get("/mine")).owner == session.session_id
    assert session.lease.valid(service.clock_s())


@pytest.mark.parametrize("backup", ["older", "none"])
async def test_a_session_that_has_seen_more_than_the_servers_is_given_up(service, backup):
    """It is refused for as long as it tries, and is over then; another one sees what there is."""
    session = await service.open()
    await session.create("/before")
    copy = service.back_up() if backup == "older" else None
    for number in range(5):  # with as many, sessions that end then make up for them
        await session.create(f"/after-{number}")
    began_s = service.clock_s()
    service.roll_back(copy)
    with pytest.raises(SessionLostError, match=r"no server has gone on with it for 18 s.*backup"):
        await within(anext(session.watch("/before")))
    assert service.clock_s() - began_s == pytest.approx(REFUSED_SESSIONS * 6, abs=2)
    other = await service.open()
    assert await other.children("/") == (("before",) if copy else ())


async def test_a_session_that_servers_do_not_take_for_a_while_goes_on(service):
    """A server that lags for less than is waited for is no reason to give the session up."""
    session, other = await service.open(), await service.open()
    await session.create("/mine", ephemeral=True)
    behind = service.back_up()
    for number in range(5):
        await other.create(f"/seen-{number}")
    await session.get("/seen-4")
    ahead = service.back_up()
    service.roll_back(behind)
    await asyncio.sleep((REFUSED_SESSIONS - 1) * 6)
    service.roll_back(ahead)
    assert (await within(anext(session.watch("/mine")))).owner == session.session_id
