import asyncio
import contextlib
import random

import pyarrow as pa
import pytest

from memq.core.format.schema import serialize_schema
from memq.core.governor.nodes import DOOMED, TOPICS
from memq.core.governor.topics import altered_topic
from memq.core.topic import TopicConfig
from memq.errors import (
    ChangeUncertainError,
    CorruptDataError,
    InvalidRequestError,
    LimitReachedError,
    NoNodeError,
    TopicRecreatedError,
    UnavailableError,
    VersionConflictError,
)
from memq.runtime.system import Runtime
from memq.zookeeper.folders import make_persistent
from memq.zookeeper.session import Transaction
from memq.zookeeper.shared_catalog import ATTEMPTS, MAX_TOPIC_BYTES, SharedCatalog
from tests.unit.zookeeper.servers import Slow, of

LONG_S = 600
RUNTIME = Runtime(random=random.Random(1).random)


class Looked(Slow):
    """Servers that look whether the rules are kept, whatever the brokers do.

    Attributes:
        made: topic ids of which something was made and not removed.
        lived: topic ids that ever existed.
        wrong: what should not have been.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, None] = {}
        self.lived: set[str] = set()
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
            self.lived.add(topic_id)


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
