import asyncio
import contextlib
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.format.schema import serialize_schema
from memq.core.governor.nodes import DOOMED, TOPICS
from memq.core.governor.topics import altered_topic
from memq.core.topic import TopicConfig
from memq.errors import (
    ChangeUncertainError,
    CorruptDataError,
    InvalidRequestError,
    LimitReachedError,
    MemqError,
    NoNodeError,
    TopicExistsError,
    TopicRecreatedError,
    UnavailableError,
    VersionConflictError,
)
from memq.runtime.system import Runtime
from memq.zookeeper.folders import make_persistent
from memq.zookeeper.session import Transaction
from memq.zookeeper.shared_catalog import ATTEMPTS, MAX_TOPIC_BYTES, SharedCatalog
from tests.fakes.loop import ProcessLoop, Timeline, Trace
from tests.unit.zookeeper.servers import Slow, of

LONG_S = 600
RUNTIME = Runtime(random=random.Random(1).random)


class Looked(Slow):
    """Servers that look whether the rules are kept, whatever the brokers do.

    Attributes:
        made: topic ids of which something was made and not removed.
        lived: what each topic id that ever existed has held.
        wrong: what should not have been.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, None] = {}
        self.lived: dict[str, list] = {}
        self.wrong: list[str] = []

    def live(self):
        """The topics that exist, by name."""
        found = {}
        for path, node in self._tree.nodes.items():
            if (name := path.removeprefix("/topics/")) != path:
                with contextlib.suppress(CorruptDataError):
                    found[name] = TOPICS.decode(name, node.data), node
        return found

    def carry_out(self, connection, request, answer):
        before = self.live()
        super().carry_out(connection, request, answer)
        if isinstance(request, Transaction):
            self.look(before, self.live())

    def look(self, before, after):
        for name, (topic, node) in after.items():
            topic_id = topic.topic_id
            if topic_id not in self.made:
                self.wrong.append(f"{name} exists, and nothing of it was made")
            if DOOMED.child(topic.queue_topic) in self._tree.nodes:
                self.wrong.append(f"{name} exists and is doomed")
            if name in before and before[name][1].created == node.created:
                if before[name][0].topic_id != topic_id:
                    self.wrong.append(f"{name} was altered to another topic_id")
            elif topic_id in self.lived:
                self.wrong.append(f"{name} has come back")
            self.lived.setdefault(topic_id, []).append(topic)


class Broker:
    """A broker that makes topics and removes what is left of them."""

    topic_ids = 0

    def __init__(self, service, session, name="a", runtime=RUNTIME) -> None:
        self.service, self.session = service, session
        self.catalog = SharedCatalog(session, name, runtime)

    async def new(self, name, **options):
        Broker.topic_ids += 1
        return await self.catalog.new(
            TopicConfig.create(name, **options),
            now_ms=5,
            topic_id=f"{Broker.topic_ids:016x}",
            request_id="",
        )

    async def announce(self, name="t", **options):
        """Announce a topic, and make what belongs to it."""
        topic = await self.new(name, **options)
        await self.catalog.announce(topic)
        self.service.made[topic.topic_id] = None
        return topic

    async def create(self, name="t", **options):
        topic = await self.announce(name, **options)
        await self.catalog.save_new(topic)
        return topic

    async def alter(self, name="t", **options):
        stored = await self.catalog.get(name)
        return await self.catalog.alter(stored, altered_topic(stored.topic, options, None, 0))

    async def remove(self, topic):
        """Remove what is left of a topic, if there is anything to remove."""
        if await self.catalog.claim_removal(topic):
            self.service.made.pop(topic.topic_id, None)
            await self.catalog.forget(topic)

    async def remove_all(self):
        for node in await self.catalog.doomed():
            await self.remove(node.topic)


@pytest.fixture
async def service(virtual_time):
    """Servers, and what every cluster has."""
    service = Looked()
    await make_persistent(await service.open())
    yield service
    assert service.wrong == []


@pytest.fixture
async def broker(service):
    return Broker(service, await service.open())


@pytest.fixture
async def other(service):
    return Broker(service, await service.open(), "b")


async def doomed(broker):
    """What is doomed, with its maker."""
    return {each.topic.topic_id: each.by for each in await broker.catalog.doomed()}


# -- as it should go ------------------------------------------------------------------------


async def test_a_damaged_topic_is_named(broker, other, service):
    """It can be neither read nor deleted; a damaged doomed one removes nothing."""
    topic = await broker.create()
    await other.session.set(TOPICS.child("t"), b"?", 0)
    for call in (broker.catalog.get, broker.catalog.delete):
        with pytest.raises(CorruptDataError, match="/topics/t"):
            await call("t")
    await other.session.set(TOPICS.child("t"), TOPICS.encode(topic), 1)
    await broker.catalog.delete("t")
    await other.session.set(DOOMED.child(topic.queue_topic), b"?", 1)
    assert await doomed(broker) == {}
    for call in (broker.catalog.claim_removal, broker.catalog.forget):
        with pytest.raises(CorruptDataError, match="/doomed/t"):
            await call(topic)
    service.wrong = []  # a person has let it come back


# -- several at a time ----------------------------------------------------------------------


async def test_a_creation_whose_remains_were_claimed_fails(broker, other):
    """Before anything was removed, and after; it is then created anew."""
    for forgotten in (False, True):
        topic = await broker.announce()
        assert await other.catalog.claim_removal(topic)
        assert await other.catalog.claim_removal(topic)
        if forgotten:
            await other.catalog.forget(topic)
        with pytest.raises(UnavailableError):
            await broker.catalog.save_new(topic)
    await broker.create()


async def test_what_was_not_claimed_is_not_forgotten(broker, other):
    """Its maker may be about to let it exist."""
    topic = await broker.announce()
    with pytest.raises(InvalidRequestError, match="not claimed"):
        await other.catalog.forget(topic)
    await broker.catalog.save_new(topic)


async def test_a_later_topic_id_is_not_deleted_for_an_earlier_one(broker, other, service):
    """Neither when it is named nor when it comes in between."""
    topic = await broker.create()
    service.hold(of(broker.session, Transaction))
    late = asyncio.ensure_future(broker.catalog.delete("t"))
    while not service.held:
        await asyncio.sleep(0.01)
    await other.catalog.delete("t")
    later = await other.create()
    service.release()
    with pytest.raises(TopicRecreatedError, match=later.topic_id):
        await late
    with pytest.raises(TopicRecreatedError):
        await broker.catalog.delete("t", topic.topic_id)
    assert (await other.catalog.get("t")).topic == later


# -- answers that get lost ------------------------------------------------------------------


class Deaf(Looked):
    """Servers that never hear of some changes."""

    deaf = 0

    def carry_out(self, connection, request, answer):
        if self.deaf and isinstance(request, Transaction):
            self.deaf -= 1
            connection.link.reset()
        else:
            super().carry_out(connection, request, answer)


DEEDS = {
    "announce": lambda broker, _: broker.announce("new"),
    "create": lambda broker, topic: broker.catalog.save_new(topic),
    "alter": lambda broker, _: broker.alter("old", batch_age="1s"),
    "delete": lambda broker, _: broker.catalog.delete("old"),
    "claim": lambda broker, topic: broker.catalog.claim_removal(topic),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("deaf", [ATTEMPTS - 1, ATTEMPTS])
async def test_what_was_not_done_is_tried_again_so_often(virtual_time, deed, deaf):
    """When it is certain that it was not, up to a limit; then nobody knows."""
    service = Deaf()
    await make_persistent(await service.open())
    broker = Broker(service, await service.open())
    await broker.create("old")
    topic = await broker.announce("t")
    service.deaf = deaf
    uncertain = pytest.raises(ChangeUncertainError)
    with uncertain if deaf == ATTEMPTS else contextlib.nullcontext():
        await DEEDS[deed](broker, topic)
    assert (service.deaf, service.wrong) == (0, [])


@pytest.mark.parametrize(
    ("deed", "refused"),
    [
        ("alter", VersionConflictError),
        ("alter", NoNodeError),
        ("alter", ChangeUncertainError),
        ("delete", VersionConflictError),
        ("delete", NoNodeError),
        ("delete", ChangeUncertainError),
        ("create", ChangeUncertainError),
    ],
)
async def test_what_a_refusal_means_is_not_guessed(broker, deed, refused):
    """Who cannot look why it was refused is told just that; of what may have happened, this."""
    await broker.create("old")
    topic = await broker.announce("new")
    session, get = broker.session, broker.session.get

    async def refuse(_):
        session.get = away
        raise refused("refused")

    async def away(_):
        raise UnavailableError("away")

    session.transact = refuse
    error = ChangeUncertainError if refused is ChangeUncertainError else UnavailableError
    with pytest.raises(error, match="refused" if error is refused else "away"):
        await DEEDS[deed](broker, topic)
    session.get = get


async def test_others_that_change_all_the_time_are_not_awaited_for_ever(broker, other, service):
    """A deletion ends with an error that passes when they stop."""
    await broker.create()
    service.hold(of(broker.session, Transaction))
    late = asyncio.ensure_future(broker.catalog.delete("t"))
    for number in range(ATTEMPTS):
        while not service.held:
            await asyncio.sleep(0.01)
        await other.session.set(TOPICS.path, b"", number)
        service.release()
        service.hold(of(broker.session, Transaction))
    with pytest.raises(UnavailableError, match="met other changes"):
        await late
    service.release()
    await broker.catalog.delete("t")


# -- limits ---------------------------------------------------------------------------------


def wide(columns):
    """A schema with so many columns."""
    fields = [pa.field(f"column-{number:04}-{'x' * 200}", pa.int64()) for number in range(columns)]
    return serialize_schema(pa.schema(fields))


async def test_a_topic_with_too_many_large_schemas_is_refused(broker, other):
    """Before anything is made or changed; another topic takes the new schema."""
    await broker.create(schema=wide(100))
    stored = await broker.catalog.get("t")
    columns = 100
    with pytest.raises(LimitReachedError, match=rf"schemas, more than {MAX_TOPIC_BYTES}"):
        while True:
            columns += 100
            altered = altered_topic(stored.topic, {}, wide(columns), 0)
            stored = await broker.catalog.alter(stored, altered)
    assert len(stored.topic.schemas) > 3
    assert await other.catalog.get("t") == stored
    with pytest.raises(LimitReachedError):
        await broker.announce("v", schema=wide(2_000))
    assert await doomed(broker) == {}


# -- any history ----------------------------------------------------------------------------

DEEDS_AT_RANDOM = st.sampled_from(["create", "create", "alter", "delete", "delete", "remove"])
FAULTS = st.sampled_from(
    ["lose_answer", "lose_answer", "reset", "freeze", "thaw", "refuse", "restore", "expire"]
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),  # by which broker
        st.one_of(st.tuples(DEEDS_AT_RANDOM, st.sampled_from("tu")), FAULTS),
        st.sampled_from([0.0, 0.0, 0.005, 0.2, 3.0]),  # pause after it
    ),
    max_size=40,
)


class History:
    """Two brokers with many things under way at a time, each in a session that may end."""

    def __init__(self, service, runtime) -> None:
        self.service, self.runtime = service, runtime
        self.brokers: list[Broker] = []
        self.under_way: list[asyncio.Task] = []
        self.making: dict[str, None] = {}  # by brokers that have not given up

    async def open(self, number):
        session = await self.service.open(request_timeout_s=2.0)
        self.service.delay(session, 0.001)
        return Broker(self.service, session, "ab"[number], self.runtime)

    async def take(self, number, step):
        if isinstance(step, tuple):
            deed = self.do(self.brokers[number], *step)
            self.under_way.append(asyncio.ensure_future(deed))
        else:
            getattr(self.service, step)(self.brokers[number].session)
            if step == "expire":
                self.brokers[number] = await self.open(number)

    async def do(self, broker, deed, name):
        """Do it; errors that may come may come."""
        with contextlib.suppress(MemqError):
            await getattr(self, deed)(broker, name)

    def is_live(self, topic):
        live = self.service.live().get(topic.name)
        return live is not None and live[0].topic_id == topic.topic_id

    async def create(self, broker, name):
        topic = await broker.new(name)
        topic_id = topic.topic_id
        self.making[topic_id] = None
        try:
            await broker.catalog.announce(topic)
            self.service.made[topic_id] = None
            await broker.catalog.save_new(topic)
            assert topic_id in self.service.lived, "told that it exists"
        except (TopicExistsError, UnavailableError):
            assert not self.is_live(topic), "told that it does not exist"
            raise
        finally:
            self.making.pop(topic_id)

    async def alter(self, broker, name):
        stored = await broker.catalog.get(name)
        options = {"batch_age": f"{1 + int(self.runtime.random() * 500)}ms"}
        altered = altered_topic(stored.topic, options, None, 0)
        before = len(self.service.lived[altered.topic_id])
        try:
            await broker.catalog.alter(stored, altered)
            assert altered in self.service.lived[altered.topic_id]
        except VersionConflictError:
            since = self.service.lived[altered.topic_id][before - 1 :]
            assert len(since) > 1 or not self.is_live(altered), "nothing has changed"
            raise

    async def delete(self, broker, name):
        topic = await broker.catalog.delete(name)
        assert not self.is_live(topic), "told that it is gone"

    async def remove(self, broker, _):
        """As the broker does that governs: not what somebody is making, unless he may be gone."""
        for node in await broker.catalog.doomed():
            making = node.by and node.topic.topic_id in self.making
            if not making or self.runtime.random() < 0.3:
                await broker.remove(node.topic)

    async def end(self):
        """Nothing fails any more, and all that is left is removed."""
        for broker in self.brokers:
            self.service.restore(broker.session)
        await asyncio.gather(*self.under_way)
        await asyncio.sleep(1)  # for what is still on its way
        successor = await self.open(0)
        await successor.remove_all()
        live = sorted(topic.topic_id for topic, _ in self.service.live().values())
        assert sorted(self.service.made) == live
        assert await doomed(successor) == {}


@given(STEPS, st.integers(0, 1_000))
def test_whatever_happens_a_topic_is_there_as_a_whole_or_not_at_all(steps, seed):
    """Nothing live is doomed or removed, nothing else is left, and nobody is told otherwise."""
    loop = ProcessLoop(Timeline(random.Random(seed), Trace()), "all")

    async def run():
        service = Looked()
        runtime = Runtime(random=random.Random(seed).random)
        await make_persistent(await service.open())
        history = History(service, runtime)
        history.brokers = [await history.open(number) for number in (0, 1)]
        for number, step, pause_s in steps:
            await history.take(number, step)
            await asyncio.sleep(pause_s)
        await history.end()
        assert service.wrong == []

    loop.run(run(), timeout_s=LONG_S)
