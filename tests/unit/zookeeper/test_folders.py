import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.governor.nodes import PERSISTENT
from memq.errors import SessionLostError
from memq.zookeeper.folders import Mirror, make_persistent
from memq.zookeeper.session import GetChildren, GetNode
from tests.fakes.loop import ProcessLoop, Timeline, Trace
from tests.fakes.zookeeper import InMemoryZooKeeper
from tests.unit.zookeeper.servers import Slow, of

LONG_S = 60


class Followed:
    """A mirror of `/f`, another session that changes what is there, and what was told."""

    @classmethod
    async def create(cls, *names, folder=True, service=None):
        self = cls()
        self.service = service or InMemoryZooKeeper()
        self.session, self.other = await self.service.open(), await self.service.open()
        if folder:
            await self.other.create("/f")
        for name in names:
            await self.other.create(f"/f/{name}", b"0")
        self.told = []
        self.mirror = Mirror(self.session, "/f", self.on_change)
        return self

    def on_change(self, name, node):
        self.told.append((name, node and node.data))

    async def change(self, name, data):
        """Make a child, change it, or delete it."""
        if data is None:
            node = await self.other.get(f"/f/{name}")
            await self.other.delete(f"/f/{name}", node.version)
        elif name in await self.other.children("/f"):
            node = await self.other.get(f"/f/{name}")
            await self.other.set(f"/f/{name}", data, node.version)
        else:
            await self.other.create(f"/f/{name}", data)

    def data(self):
        return {name: node.data for name, node in sorted(self.mirror.nodes.items())}


async def quiet():
    """Let everything that is under way arrive."""
    await asyncio.sleep(1)


async def test_a_child_that_is_back_before_the_names_are_read_is_followed(virtual_time):
    """Nobody has seen names without it, and its own watch has seen it gone."""
    followed = await Followed.create("a", service=Slow())
    await followed.mirror.start()
    followed.service.hold(of(followed.session, GetChildren))
    await followed.other.delete("/f/a", 0)
    await quiet()
    await followed.other.create("/f/a", b"1")
    followed.service.release()
    await quiet()
    await followed.other.set("/f/a", b"2", 0)
    await quiet()
    assert followed.told == [("a", None), ("a", b"1"), ("a", b"2")]


async def test_a_child_that_goes_before_it_is_read_holds_up_no_start(virtual_time):
    """The names say so before it was read at all."""
    followed = await Followed.create("a", "b", service=Slow())
    followed.service.hold(of(followed.session, GetNode("/f/b")))
    start = asyncio.ensure_future(followed.mirror.start())
    await quiet()
    await followed.other.delete("/f/b", 0)
    await asyncio.wait_for(start, LONG_S)
    assert followed.data() == {"a": b"0"}
    followed.service.release()
    await quiet()
    assert followed.told == []


# -- its end --------------------------------------------------------------------------------


async def test_it_ends_with_its_session(virtual_time):
    """Whoever waits for its end is told that the session is lost, however often."""
    followed = await Followed.create("a")
    await followed.mirror.start()
    followed.service.expire(followed.session)
    for _ in range(2):
        with pytest.raises(SessionLostError):
            await followed.mirror.wait_ended()
    assert repr(followed.mirror) == "<Mirror /f [ended, 1 node]>"


async def test_an_error_of_who_is_told_ends_it(virtual_time):
    """Its owner is given the error, and nothing more is told."""
    followed = await Followed.create("a", "b")

    def fail(name, node):
        followed.on_change(name, node)
        raise ZeroDivisionError(name)

    mirror = Mirror(followed.session, "/f", fail)
    await mirror.start()
    await followed.change("a", b"1")
    with pytest.raises(ZeroDivisionError, match="a"):
        await mirror.wait_ended()
    await followed.change("b", b"1")
    await quiet()
    assert followed.told == [("a", b"1")]


async def test_nothing_is_told_after_a_stop(virtual_time):
    """And no task is left."""
    followed = await Followed.create("a")
    await followed.mirror.start()
    await followed.change("a", b"1")
    await followed.mirror.stop()
    await followed.mirror.stop()
    await followed.mirror.wait_ended()
    await quiet()
    assert followed.told == []
    starting = Mirror(followed.session, "/f", followed.on_change)
    task = asyncio.ensure_future(starting.start())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(task.done() for task in (*starting._all_tasks(), *followed.mirror._all_tasks()))


# -- what every cluster has -------------------------------------------------------------------


async def test_the_first_start_makes_what_every_cluster_has(virtual_time):
    """Brokers that start together all succeed; another start changes nothing."""
    service = InMemoryZooKeeper()
    sessions = [await service.open() for _ in range(3)]
    for number, session in enumerate(sessions):
        service.delay(session, 0.01 * number)
    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(make_persistent(session))
    expected = tuple(sorted(path.removeprefix("/") for path in PERSISTENT))
    assert await sessions[0].children("/") == expected
    before = [await sessions[0].get(path) for path in PERSISTENT]
    await make_persistent(sessions[1])
    assert [await sessions[0].get(path) for path in PERSISTENT] == before


# -- any history ----------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.sampled_from([b"1", b"2", None])),
        st.sampled_from(["freeze", "thaw", "reset", "refuse", "restore", "pause"]),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 25), st.integers(0, 1_000))
def test_whatever_happens_the_mirror_is_right_in_the_end(steps, before, seed):
    """What was told leads from the first state to the last, and no two lives of a child touch."""
    loop = ProcessLoop(Timeline(random.Random(seed), Trace()), "all")

    async def run():
        followed = await Followed.create("a", "b")
        service, session = followed.service, followed.session
        told = []
        followed.mirror._on_change = lambda name, node: told.append((name, node))
        present = {"a", "b"}

        async def take(step):
            if step == "pause":
                await asyncio.sleep(0.05)
            elif isinstance(step, str):
                getattr(service, step)(session)
            elif (step[1] is None) <= (step[0] in present):
                (present.discard if step[1] is None else present.add)(step[0])
                await followed.change(*step)

        for step in steps[:before]:
            if not isinstance(step, str):
                await take(step)

        async def started():
            await followed.mirror.start()
            assert not told
            return dict(followed.mirror.nodes)

        start = asyncio.ensure_future(started())
        await asyncio.sleep(0)
        for step in steps[before:]:
            await take(step)
        service.restore(session)
        first = await asyncio.wait_for(start, LONG_S)
        for step in steps:
            await take(step)
        service.restore(session)
        await quiet()
        names = await followed.other.children("/f")
        truth = {name: await followed.other.get(f"/f/{name}") for name in names}
        assert followed.mirror.nodes == truth
        state = first
        for name, node in told:
            if node is None:
                del state[name]
            else:
                assert name not in state or (
                    state[name].created == node.created and state[name].version < node.version
                )
                state[name] = node
        assert state == truth
        assert followed.mirror._tasks.keys() == truth.keys()

    loop.run(run(), timeout_s=LONG_S)
