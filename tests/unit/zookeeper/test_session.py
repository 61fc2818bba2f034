"""What a session makes of what its link says, in every order that a link may say it."""

import asyncio

import pytest

from memq.core.governor.coordination import Create
from memq.errors import ChangeUncertainError, SessionLostError, UnauthorizedError, UnavailableError
from memq.zookeeper.session import (
    REFUSED_SESSIONS,
    GetChildren,
    GetNode,
    Session,
    Sync,
    Transaction,
    WatchNode,
)

TIMEOUT_S = 8.0


class Link:
    """One that answers what it is told to, and otherwise as if nothing were stored.

    Attributes:
        asked: requests, in their order.
        silent: nothing is answered.
        fails: what the next request ends with, if anything.
        reached: as a link has it.
    """

    target = "zk:2181"

    def __init__(self):
        self.asked, self.pending = [], []
        self.silent, self.reached = False, True
        self.fails = None

    def open(self, session):
        session.agreed(7, now_s(), TIMEOUT_S)
        session.connected()

    def ask(self, request):
        self.asked.append(request)
        future = asyncio.get_running_loop().create_future()
        if self.fails is not None:
            future.set_exception(self.fails)
            self.fails = None
        elif self.silent:
            self.pending.append(future)
        else:
            future.set_result(() if isinstance(request, GetChildren) else None)
        return future

    def breaks(self):
        """The connection is gone, with all answers."""
        pending, self.pending = self.pending, []
        for future in pending:
            if not future.done():
                future.set_exception(ConnectionError())

    async def close(self):
        """Nothing is left to close."""


def now_s():
    """The clock of the session."""
    return asyncio.get_running_loop().time()


@pytest.fixture
def link(virtual_time):
    """One that answers."""
    return Link()


@pytest.fixture
async def session(link):
    """An open one, with nothing asked yet."""
    made = Session(link, clock_s=now_s, request_timeout_s=3.0)
    await made.open()
    link.asked.clear()
    yield made
    await made.close()


CALLS = {
    "get": (lambda session: session.get("/a"), [Sync, GetNode]),
    "children": (lambda session: session.children("/a"), [Sync, GetChildren]),
    "create": (lambda session: session.create("/a"), [Transaction]),
    "watch": (lambda session: anext(session.watch("/a")), [WatchNode, GetNode]),
    "names": (lambda session: anext(session.watch_children("/a")), [WatchNode, GetChildren]),
}


@pytest.mark.parametrize("name", CALLS)
async def test_what_is_asked_in_which_order(link, session, name):
    """A read follows a sync, so that no follower gives old news; a watch is set before its read."""
    call, kinds = CALLS[name]
    await call(session)
    assert [type(each) for each in link.asked] == kinds


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionError("reset"), UnavailableError("away")]
)
async def test_probes_go_on_after_one_that_failed(session, link, error):
    """The lease is renewed by the next one, and counts from when that was sent."""
    link.fails = error
    await asyncio.sleep(TIMEOUT_S)
    assert session.lease.valid(now_s())
    session.check_alive()
    link.silent = True
    await asyncio.sleep(TIMEOUT_S)
    assert not session.lease.valid(now_s())


async def test_an_error_that_nobody_expected_ends_the_session(session, link):
    """A lease that nobody renews any more would seem to run out for no reason."""
    link.fails = UnauthorizedError("not yours")
    await asyncio.sleep(TIMEOUT_S)
    with pytest.raises(SessionLostError, match=r"lease could not be renewed: .*not yours"):
        session.check_alive()


@pytest.mark.parametrize("reached", [True, False])
async def test_only_servers_that_are_there_end_a_session(session, link, reached):
    """Where none is reached it is waited for; time without a server, or connected, counts not."""
    most_s = REFUSED_SESSIONS * TIMEOUT_S
    for _ in range(3):  # each time for less than it takes
        session.disconnected()
        link.reached = True
        await asyncio.sleep(most_s - 2)
        session.connected()
        await asyncio.sleep(2)
    session.check_alive()
    session.disconnected()
    link.reached = False
    await asyncio.sleep(10 * most_s)
    session.check_alive()
    link.reached = reached
    await asyncio.sleep(most_s + 2)
    assert session._over == reached


async def test_a_wait_for_a_connection_is_part_of_the_time_of_a_call(session, link):
    """Before one that comes about late is used, and with an answer that does not come."""
    session.disconnected()
    asking, began_s = asyncio.ensure_future(session.create("/a")), now_s()
    await asyncio.sleep(2)
    link.silent = True
    session.connected()
    with pytest.raises(ChangeUncertainError):
        await asking
    assert now_s() - began_s == pytest.approx(3)
    assert link.asked.count(Transaction((Create("/a", b"", False),))) == 1
