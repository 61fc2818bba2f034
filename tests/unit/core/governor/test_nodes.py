from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    DOOMED,
    LOADS,
    PERSISTENT,
    READ_ROLE,
    TOPICS,
    BrokerNode,
    DoomedNode,
    LoadsNode,
    TopicAssignment,
    make_persistent,
)
from memq.core.governor.topics import new_topic
from memq.core.topic import TopicConfig
from memq.errors import CorruptDataError
from tests.advice import follows
from tests.fakes.zookeeper import InMemoryZooKeeper

TOPIC = new_topic(TopicConfig.create("t"), (), now_ms=5, incarnation="ab" * 8, request_id="r")
EACH = [
    (BROKERS, "a", BrokerNode(id="a", address="h:1", zone="z", rack="r", capacity=2.0)),
    (TOPICS, "t", TOPIC),
    (DOOMED, TOPIC.queue_topic, DoomedNode(topic=TOPIC, by="a")),
    (ASSIGNMENTS, "t", TopicAssignment(incarnation="i1", epoch=3, owners=("a", ""))),
    (LOADS, "a", LoadsNode(loads={"t": {0: 1.5, 7: 0.0}})),
]

each_kind = pytest.mark.parametrize(
    ("folder", "name", "value"), EACH, ids=[folder.path for folder, *_ in EACH]
)


# -- what nodes hold ------------------------------------------------------------------------


def test_nodes_are_readable_json():
    """A person with a client of ZooKeeper can read them."""
    value = TopicAssignment(incarnation="i1", epoch=3, owners=("a", ""))
    assert ASSIGNMENTS.encode(value) == b'{"incarnation":"i1","epoch":3,"owners":["a",""]}'
    assert LOADS.encode(LoadsNode(loads={"t": {2: 0.5}})) == b'{"loads":{"t":{"2":0.5}}}'


@each_kind
def test_a_field_that_is_not_known_is_passed_over(folder, name, value):
    """A broker of a later version may have written it."""
    fields = msgspec.json.decode(folder.encode(value)) | {"later": {"x": 1}}
    assert folder.decode(name, msgspec.json.encode(fields)) == value


@each_kind
@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"id":1}', b'{"loads":{"t":{"x":1}}}']
)
def test_what_cannot_be_understood_is_named(folder, name, value, data):
    """The error has the path, the bytes, and what to do."""
    with pytest.raises(CorruptDataError) as caught:
        folder.decode(name, data)
    assert folder.child(name) in str(caught.value)
    assert repr(data) in str(caught.value)
    assert str(caught.value).endswith(folder.way_out)


@pytest.mark.parametrize(("folder", "name", "value"), EACH[:3])
def test_a_node_under_another_name_is_not_believed(folder, name, value):
    """It may have been copied there."""
    with pytest.raises(CorruptDataError, match=f"holds that of .{name}"):
        folder.decode("other", folder.encode(value))


@pytest.mark.parametrize(
    ("role", "accepting", "expected"),
    [
        ("all", True, True),
        ("all", False, False),
        (READ_ROLE, True, False),
        ("some-later-role", True, False),
    ],
)
def test_a_broker_that_only_reads_takes_no_write_partitions(role, accepting, expected):
    """Nor does one of a role that is not known."""
    node = BrokerNode(id="a", address="h:1", role=role, accepting=accepting)
    assert BROKERS.decode("a", BROKERS.encode(node)).resources().accepting is expected


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("tuv"), st.integers(0, 255)), st.floats(0, 1e15), max_size=9
    )
)
def test_loads_keep_their_write_partitions(loads):
    """Whatever is written by write partition is read by write partition."""
    data = LOADS.encode(LoadsNode.create(loads))
    assert LOADS.decode("a", data).by_partition() == loads


# -- what a person does about one that cannot be understood ---------------------------------


async def read(session, folder, name):
    """What a node says."""
    return folder.decode(name, (await session.get(folder.child(name))).data)


@follows("restart that broker, which makes it anew")
async def test_a_broker_registers_anew_when_it_is_restarted(virtual_time):
    """The damaged node was its ephemeral, and went with it."""
    folder, name, value = EACH[0]
    service = InMemoryZooKeeper()
    person, broker = await service.open(), await service.open()
    await make_persistent(person)
    await broker.create(folder.child(name), b"?", ephemeral=True)
    with pytest.raises(CorruptDataError):
        await read(person, folder, name)
    await broker.close()
    restarted = await service.open()
    await restarted.create(folder.child(name), folder.encode(value), ephemeral=True)
    assert await read(person, folder, name) == value


@follows("put back what it held, or delete it, and create the topic anew")
@follows("delete it; what is left of that topic in the queue and in the storage then stays")
@pytest.mark.parametrize(("folder", "name", "value"), EACH[1:3])
async def test_a_damaged_node_is_put_back_or_deleted(virtual_time, folder, name, value):
    """Both are possible at any time."""
    person = await InMemoryZooKeeper().open()
    await make_persistent(person)
    await person.create(folder.child(name), b"?")
    with pytest.raises(CorruptDataError):
        await read(person, folder, name)
    await person.set(folder.child(name), folder.encode(value), 0)
    assert await read(person, folder, name) == value
    await person.delete(folder.child(name), 1)
    assert await person.children(folder.path) == ()


# -- what every cluster has -----------------------------------------------------------------


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
