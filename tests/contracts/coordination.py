"""What every `Coordination` must do.

A test module runs the suite for an implementation by importing everything here and defining one
fixture, `service`. Its sessions are closed after the test. It has

- `open(session_timeout_s=…, request_timeout_s=…)`, which opens a session,
- `reset`, `refuse`, `restore`, `freeze`, `thaw` and `lose_answer`, which do to the connection of a
  session what `tests.fakes.zookeeper` says of them; an answer may also be lost only at a `reset`,
- `clock_s`, that of the leases.
"""

import asyncio

import pytest

from memq.core.governor.coordination import (
    MAX_CHANGES,
    MAX_IN_FLIGHT,
    MAX_NODE_BYTES,
    Check,
    Create,
    Delete,
    Set,
)
from memq.core.governor.lease import LEAVE_S, RESERVE_SHARE
from memq.errors import (
    ChangeUncertainError,
    ClosedError,
    InvalidRequestError,
    MessageTooLargeError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    SessionLostError,
    UnavailableError,
    VersionConflictError,
)

LONG_S = 30  # a wait that ends sooner, or the test has failed
SHORT_S = 2.0  # a session that is meant to expire


@pytest.fixture
async def session(service):
    """A session, and nothing in its tree."""
    return await service.open()


@pytest.fixture
async def other(service):
    """Another one on the same tree."""
    return await service.open()


async def within(awaitable):
    """Its result; a wait that ought to end is not waited for for ever."""
    async with asyncio.timeout(LONG_S):
        return await awaitable


async def lost(session):
    """Wait until a session is lost; one that was closed ends this with its error."""
    with pytest.raises(SessionLostError):
        async for _ in session.watch("/"):
            pass


async def following(watch, expected):
    """Take states from a watch until one is as expected, and give those before it."""
    seen = []
    while not expected(state := await within(anext(watch))):
        seen.append(state)
    return seen


def data_is(data):
    """Whether a node has this data; None for no node."""
    return lambda node: (node and node.data) == data


async def begun(awaitable):
    """A task that has begun to wait."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    return task


async def until(session, state):
    """Wait until a session says so of itself."""
    async with asyncio.timeout(LONG_S):
        while state not in repr(session):
            await asyncio.sleep(0.01)


# -- nodes ----------------------------------------------------------------------------------


async def test_a_node_is_read_as_it_was_made(session):
    """A new node has its data, version 0, and no owner."""
    await session.create("/a", b"one")
    node = await session.get("/a")
    assert (node.data, node.version, node.owner) == (b"one", 0, 0)
    await session.create("/b")
    assert (await session.get("/b")).data == b""


async def test_a_change_is_for_one_version(session):
    """A set or a delete for any other version is refused, and changes nothing."""
    await session.create("/a", b"0")
    assert await session.set("/a", b"1", 0) == 1
    assert await session.set("/a", b"2", 1) == 2
    for version in (0, 1, 3):
        with pytest.raises(VersionConflictError, match="'/a'"):
            await session.set("/a", b"x", version)
        with pytest.raises(VersionConflictError, match="'/a'"):
            await session.delete("/a", version)
    assert (await session.get("/a"))[:2] == (b"2", 2)
    await session.delete("/a", 2)
    with pytest.raises(NoNodeError):
        await session.get("/a")


async def test_a_node_that_is_made_again_is_another_one(session):
    """Its version begins at 0 again, but `created` has grown, as it does over the whole tree."""
    await session.create("/a", b"same")
    first = await session.get("/a")
    await session.create("/b")
    await session.delete("/a", 0)
    await session.create("/a", b"same")
    assert (await session.get("/a"))[:3] == first[:3]
    made = [first, await session.get("/b"), await session.get("/a")]
    created = [node.created for node in made]
    assert created == sorted(set(created))


async def test_what_cannot_be_done_is_a_typed_error(session):
    """A node that is missing is an error that names it; those of changes are below."""
    for call in (session.get("/no"), session.children("/no"), session.create("/no/child")):
        with pytest.raises(NoNodeError, match="'/no"):
            await call


@pytest.mark.parametrize("path", ["", "a", "a/b", "/a/", "//a", "/a/../b", "/./a", "/a\0", "/a\n"])
async def test_a_path_that_is_none_is_refused(session, path):
    """No call takes it."""
    for call in (
        lambda: session.get(path),
        lambda: session.children(path),
        lambda: session.create(path),
        lambda: session.set(path, b"", 0),
        lambda: session.delete(path, 0),
        lambda: anext(session.watch(path)),
        lambda: anext(session.watch_children(path)),
    ):
        with pytest.raises(InvalidRequestError, match="node path"):
            await call()


async def test_the_largest_node(session):
    """A node of the most bytes there may be is stored; one byte more is refused."""
    largest = b"x" * MAX_NODE_BYTES
    await session.create("/a", largest)
    assert await session.set("/a", largest[::-1], 0) == 1
    assert (await session.get("/a")).data == largest
    with pytest.raises(MessageTooLargeError, match=str(MAX_NODE_BYTES)):
        await session.set("/a", largest + b"x", 1)
    with pytest.raises(MessageTooLargeError):
        await session.create("/b", largest + b"x")
    assert await session.set("/a", b"small", 1) == 2


async def test_a_negative_version_is_refused(session):
    """ZooKeeper would take it for any version."""
    await session.create("/a")
    for call in (session.set("/a", b"", -1), session.delete("/a", -1)):
        with pytest.raises(InvalidRequestError, match="-1"):
            await call
    assert (await session.get("/a")).version == 0


async def test_more_calls_than_may_be_under_way(session):
    """Further calls wait for their turn, and none is lost."""
    count = 3 * MAX_IN_FLIGHT
    await asyncio.gather(*(session.create(f"/{number}") for number in range(count)))
    assert len(await session.children("/")) == count


# -- transactions ---------------------------------------------------------------------------


async def test_a_transaction_makes_all_its_changes(session):
    """Changes see those before them, and all of them are there afterwards."""
    await session.create("/old", b"0")
    await session.create("/gone")
    await session.transact(
        [
            Check("/old", 0),
            Create("/new", b"n"),
            Create("/new/child", b"c"),
            Set("/old", b"1", 0),
            Set("/old", b"2", 1),
            Delete("/gone", 0),
        ]
    )
    assert await session.children("/") == ("new", "old")
    assert await session.children("/new") == ("child",)
    assert (await session.get("/old"))[:2] == (b"2", 2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Check("/a", 7), VersionConflictError),
        (Check("/no", 0), NoNodeError),
        (Set("/a", b"x", 5), VersionConflictError),
        (Create("/a"), NodeExistsError),
        (Create("/no/child"), NoNodeError),
        (Delete("/no", 0), NoNodeError),
        (Delete("/full", 0), NodeNotEmptyError),
    ],
)
async def test_a_transaction_with_one_part_that_fails_changes_nothing(session, change, error):
    """Neither what stands before it nor what comes after is done; the error is that part's."""
    for path in ("/a", "/b", "/full", "/full/child"):
        await session.create(path, b"0")
    changes = [Set("/a", b"1", 0), Create("/new"), Delete("/b", 0)]
    for at in range(len(changes) + 1):
        with pytest.raises(error, match=change.path):
            await session.transact([*changes[:at], change, *changes[at:]])
    assert await session.children("/") == ("a", "b", "full")
    assert [(await session.get(path))[:2] for path in ("/a", "/b")] == [(b"0", 0)] * 2
    await session.transact(changes)
    assert await session.children("/") == ("a", "full", "new")


async def test_the_limits_of_a_transaction(session):
    """As many changes and bytes as there may be are made; one more is refused."""
    await session.transact([Create(f"/{number:04}") for number in range(MAX_CHANGES)])
    assert len(await session.children("/")) == MAX_CHANGES
    with pytest.raises(InvalidRequestError, match=f"1001 changes.*1 to {MAX_CHANGES}"):
        await session.transact([Check("/0000", 0)] * (MAX_CHANGES + 1))
    with pytest.raises(InvalidRequestError, match="0 changes"):
        await session.transact([])
    half = b"x" * (MAX_NODE_BYTES // 2)
    with pytest.raises(MessageTooLargeError, match="2 changes"):
        await session.transact([Set("/0001", half, 0), Set("/0002", half, 0)])
    most = half[:-1_000]
    await session.transact([Set("/0001", most, 0), Set("/0002", most, 0)])
    assert (await session.get("/0002")).data == most


# -- ephemerals -----------------------------------------------------------------------------


async def test_ephemerals_go_when_their_session_is_closed(session, other):
    """They go at once, others stay, and nobody needs to ask."""
    await session.create("/mine", ephemeral=True)
    await session.create("/stays")
    watch, names = other.watch("/mine"), other.watch_children("/")
    assert (await anext(watch)).owner == session.session_id
    assert await anext(names) == ("mine", "stays")
    await session.close()
    assert await within(anext(watch)) is None
    await following(names, lambda state: state == ("stays",))


async def test_an_ephemeral_goes_after_its_session_was_silent(service, other):
    """It is there as long as the session may live, and gone after; the lease has run out before."""
    session = await service.open(session_timeout_s=SHORT_S)
    await session.create("/mine", ephemeral=True)
    watch = other.watch("/mine")
    await anext(watch)
    service.freeze(session)
    frozen_s = service.clock_s()
    assert session.lease.valid(service.clock_s())
    assert await within(anext(watch)) is None
    gone_s = service.clock_s()
    lease_s = session.lease.valid_until_s
    assert not session.lease.valid(gone_s)
    assert gone_s - lease_s >= RESERVE_SHARE * SHORT_S
    assert lease_s <= frozen_s + SHORT_S * (1 - RESERVE_SHARE) - LEAVE_S


# -- watches --------------------------------------------------------------------------------


async def test_a_watch_gives_what_comes(session, other):
    """A node that is made, changed, deleted and made again."""
    watch = session.watch("/a")
    assert await anext(watch) is None
    await other.create("/a", b"0")
    assert await within(anext(watch)) == (await other.get("/a"))
    await other.set("/a", b"1", 0)
    assert (await within(anext(watch)))[:2] == (b"1", 1)
    await other.delete("/a", 1)
    assert await within(anext(watch)) is None
    await other.create("/a", b"1")
    assert (await within(anext(watch)))[:2] == (b"1", 0)


async def test_a_watch_of_children_gives_what_comes(session, other):
    """Children that come and go, also those of a node that comes and goes itself."""
    watch = session.watch_children("/a")
    assert await anext(watch) == ()
    await other.create("/a")
    await other.create("/a/x")
    await following(watch, lambda names: names == ("x",))
    await other.create("/a/y")
    assert await within(anext(watch)) == ("x", "y")
    await other.transact([Delete("/a/x", 0), Delete("/a/y", 0), Delete("/a", 0)])
    assert await within(anext(watch)) == ()
    await other.transact([Create("/a"), Create("/a/z")])
    assert await within(anext(watch)) == ("z",)


async def test_a_wait_that_is_cancelled_loses_nothing(session, other):
    """The next one gives what the cancelled one would have given, wherever it was by then."""
    await other.create("/a", b"0")
    watch = session.watch("/a")
    await anext(watch)
    for version in range(30):
        waiter = await begun(anext(watch))
        await other.set("/a", b"%d" % version, version)
        for _ in range(version % 15):
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        if waiter.cancelled():
            waiter = anext(watch)
        assert (await within(waiter)).data == b"%d" % version


# -- connections ----------------------------------------------------------------------------


async def test_a_watch_gives_what_it_missed_without_a_connection(service, session, other):
    """The last state of the time without a connection comes once there is another."""
    await session.create("/a", b"0")
    await session.create("/gone")
    watches = [session.watch("/a"), session.watch("/gone"), session.watch("/new")]
    names = session.watch_children("/")
    before = [await anext(watch) for watch in watches]
    assert await anext(names) == ("a", "gone")
    waiters = [await begun(anext(watch)) for watch in (*watches, names)]
    service.refuse(session)
    for version in range(5):
        await other.set("/a", b"%d" % version, version)
    await other.delete("/gone", 0)
    await other.create("/new", b"n")
    assert not any(waiter.done() for waiter in waiters)
    service.restore(session)
    after = [await within(waiter) for waiter in waiters]
    assert (after[0].data, after[0].created) == (b"4", before[0].created)
    assert after[1] is None
    assert after[2].data == b"n"
    assert after[3] == ("a", "new")


async def test_without_a_connection_a_call_has_not_happened(service, other):
    """After its timeout it fails retriably, a change as well, and it never happens."""
    session = await service.open(request_timeout_s=0.5)
    service.refuse(session)
    await until(session, "not connected")
    for call in (session.get("/"), session.create("/a"), session.children("/")):
        with pytest.raises(UnavailableError, match=r"within 0\.5 s"):
            await call
    service.restore(session)
    await until(session, "[connected]")
    await session.create("/b")
    assert await other.children("/") == ("b",)


async def test_a_change_whose_answer_is_lost_is_uncertain(service, session, other):
    """It is told apart from one that has not happened; reading says that it has."""
    await session.create("/a", b"0")
    watch = other.watch("/a")
    await anext(watch)
    service.lose_answer(session)
    change = await begun(session.set("/a", b"1", 0))
    await following(watch, data_is(b"1"))
    service.reset(session)
    with pytest.raises(ChangeUncertainError, match="'/a'") as caught:
        await within(change)
    assert not caught.value.retriable
    assert (await session.get("/a"))[:2] == (b"1", 1)
    with pytest.raises(VersionConflictError):
        await session.set("/a", b"1", 0)


async def test_a_change_that_is_not_answered_in_time_is_uncertain(service):
    """A service that stands still leaves a change open, and a read retriable."""
    session = await service.open(request_timeout_s=0.5)
    await session.create("/a", b"0")
    service.freeze(session)
    with pytest.raises(UnavailableError):
        await session.get("/a")
    with pytest.raises(ChangeUncertainError):
        await session.set("/a", b"1", 0)
    service.thaw(session)
    await following(session.watch("/a"), data_is(b"1"))


# -- the lease, and the end of a session ----------------------------------------------------


async def test_the_lease_goes_on_while_nothing_is_asked(service):
    """An idle session keeps its lease, and its ephemerals, for longer than its timeout."""
    session = await service.open(session_timeout_s=SHORT_S)
    await session.create("/mine", ephemeral=True)
    assert session.lease.timeout_s == SHORT_S
    until_s = service.clock_s() + 2 * SHORT_S
    while service.clock_s() < until_s:
        assert session.lease.valid(service.clock_s())
        await asyncio.sleep(SHORT_S / 20)
    assert (await session.get("/mine")).owner == session.session_id


async def test_the_lease_comes_back_with_the_connection(service):
    """It runs out without one, and is valid again when the session was in time."""
    session = await service.open(session_timeout_s=3 * SHORT_S)
    service.refuse(session)
    while session.lease.valid(service.clock_s()):
        await asyncio.sleep(session.lease.valid_until_s - service.clock_s() + 0.001)
    service.restore(session)
    await session.get("/")
    assert session.lease.valid(service.clock_s())


async def test_a_session_that_was_silent_is_over(service, other):
    """When it can hear again, its calls, its watches and whoever waits learn so; another begins."""
    session = await service.open(session_timeout_s=SHORT_S)
    await session.create("/mine", ephemeral=True)
    watches = [session.watch("/mine"), session.watch_children("/")]
    for watch in watches:
        await anext(watch)
    waiters = [await begun(anext(watch)) for watch in watches]
    told = await begun(lost(session))
    gone = other.watch("/mine")
    await anext(gone)
    service.freeze(session)
    assert await within(anext(gone)) is None
    service.restore(session)
    await within(told)
    for waiter in waiters:
        with pytest.raises(SessionLostError, match=f"{session.session_id:#x}"):
            await within(waiter)
    for call in (session.get("/"), session.create("/again", ephemeral=True), anext(watches[0])):
        with pytest.raises(SessionLostError):
            await call
    assert not session.lease.valid(service.clock_s())
    assert "lost" in repr(session)
    await session.close()
    another = await service.open()
    assert another.session_id != session.session_id
    assert await another.children("/") == ()


async def test_a_closed_session_is_over(session):
    """Closing ends calls, watches and waits with the reason, and may be done again."""
    watch = session.watch("/a")
    await anext(watch)
    waiters = [await begun(anext(watch)), await begun(lost(session))]
    await session.close()
    await session.close()
    for call in (*waiters, session.get("/"), session.create("/a"), anext(watch)):
        with pytest.raises(ClosedError):
            await call
    assert not session.lease.valid(0)
    assert "closed" in repr(session)


async def test_closing_ends_calls_that_are_under_way(service, session):
    """A change on its way is uncertain then, and does not hold up the close."""
    service.freeze(session)
    change = await begun(session.create("/a"))
    await asyncio.sleep(0.05)
    await within(session.close())
    with pytest.raises((ChangeUncertainError, ClosedError)):
        await asyncio.wait_for(change, 1.0)
