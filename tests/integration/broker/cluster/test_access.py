"""Users and rules of a cluster: one broker changes them, all hold to them."""

import asyncio

import pytest

from memq.core.access.document import decode_document
from memq.core.access.rules import Rule
from memq.core.access.users import SALT_BYTES, new_user
from memq.core.wire import messages as m
from memq.errors import ForbiddenError, InvalidRequestError, UnavailableError
from memq.zookeeper.shared_access import PATH
from tests.integration.broker.support import client, until

OPTIONS = {"authentication": "required", "superusers": "User:root", "token": "root admin"}
PASSWORD = "correct horse"  # noqa: S105 - of nobody
ALICE = {"user": "alice", "password": PASSWORD}
USER = new_user("alice", PASSWORD, bytes(SALT_BYTES))
CREATE = m.AlterRules(
    add=[Rule(principal="User:alice", operation="create", type="topic", name="*")]
)


@pytest.fixture
async def brokers(cluster):
    """Two brokers that ask, and a client of each that may do everything."""
    one, two = await cluster.start("one", "two", **OPTIONS)
    roots = [await cluster.stack.enter_async_context(client(each, "admin")) for each in (one, two)]
    return one, two, *roots


def stored(cluster):
    return decode_document(cluster.zookeeper.node(PATH).data)


async def test_what_one_broker_changes_holds_at_all(cluster, brokers):
    """Users log in everywhere, rules count everywhere, and who goes is gone everywhere; a broker
    that starts later knows them as well.
    """
    _, two, root, other = brokers
    await root.ask(m.PutUser(user=USER))
    await until(lambda: "alice" in two.control.document.users)
    async with client(two, **ALICE) as alice:
        with pytest.raises(ForbiddenError):
            await alice.create("t")
        await root.ask(CREATE)
        await until(lambda: two.control.document.rules)
        await alice.create("t")
        [three] = await cluster.start("three", **OPTIONS)
        async with client(three, **ALICE) as late:
            await late.create("u")
        await root.ask(m.DeleteUser(name="alice"))
        await until(lambda: alice.connection.closed)
    assert (await other.ask(m.ListUsers())).users == []


async def test_changes_at_the_same_time_are_all_made(cluster, brokers):
    """Each is made once, whichever broker was asked; of two alike one is refused."""
    *_, root, other = brokers
    users = [new_user(f"user-{number}", PASSWORD, bytes(SALT_BYTES)) for number in range(6)]
    asked = [each.ask(m.PutUser(user=user)) for user in users for each in (root, other)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert (
        sorted(type(each).__name__ for each in answers)
        == ["Done"] * 6 + [InvalidRequestError.__name__] * 6
    )
    assert set(stored(cluster).users) == {user.name for user in users}


async def test_a_change_whose_answer_is_lost_is_made_once(cluster, brokers):
    """The client hears that it was made, not that the user exists already."""
    one, _, root, _ = brokers
    await root.ask(CREATE)
    cluster.zookeeper.lose_answer(one.sessions[-1])
    await root.ask(m.PutUser(user=USER))
    assert list(stored(cluster).users) == ["alice"]


async def test_without_zookeeper_the_last_rules_hold(cluster, brokers):
    """Users log in, what was denied stays denied, and a change is refused until it is back."""
    one, _, root, _ = brokers
    await root.ask(m.PutUser(user=USER))
    cluster.zookeeper.stop()
    async with client(one, **ALICE) as alice:
        with pytest.raises(ForbiddenError):
            await alice.create("t")
        with pytest.raises(UnavailableError):
            await root.ask(m.DeleteUser(name="alice"))
        assert not alice.connection.closed
    cluster.zookeeper.start()


@pytest.mark.parametrize("data", [b"{}", b'{"secret":"", "version": 2}', None])
async def test_a_damaged_node_changes_nothing(cluster, brokers, caplog, data):
    """Nor does one that somebody deletes: nobody gets in who was not let in before."""
    one, _, root, _ = brokers
    await root.ask(m.PutUser(user=USER))
    session = await cluster.zookeeper.open()
    if data is None:
        await session.delete(PATH, (await session.get(PATH)).version)
    else:
        await session.set(PATH, data, (await session.get(PATH)).version)
        await until(lambda: "invalid node in ZooKeeper ignored" in caplog.text)
    await session.create("/access/other", b"{}")
    async with client(one, **ALICE) as alice:
        with pytest.raises(ForbiddenError):
            await alice.ask(m.ListUsers())
    await session.close()
