import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.governor.nodes import (
    ASSIGNMENTS,
    BROKERS,
    DOOMED,
    LOADS,
    READ_ROLE,
    TOPICS,
    BrokerNode,
    DoomedNode,
    LoadsNode,
    TopicAssignment,
)
from memq.core.governor.topics import new_topic
from memq.core.topic import TopicConfig
from memq.errors import CorruptDataError

TOPIC = new_topic(TopicConfig.create("t"), (), now_ms=5, topic_id="ab" * 8, request_id="r")
EACH = [
    (BROKERS, "a", BrokerNode(id="a", address="h:1", zone="z", rack="r", capacity=2.0)),
    (TOPICS, "t", TOPIC),
    (DOOMED, TOPIC.queue_topic, DoomedNode(topic=TOPIC, by="a")),
    (ASSIGNMENTS, "t", TopicAssignment(topic_id="i1", epoch=3, owners=("a", ""))),
    (LOADS, "a", LoadsNode(loads={"t": {0: 1.5, 7: 0.0}})),
]

each_kind = pytest.mark.parametrize(
    ("folder", "name", "value"), EACH, ids=[folder.path for folder, *_ in EACH]
)


# -- what nodes hold ------------------------------------------------------------------------


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
