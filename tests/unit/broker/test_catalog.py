"""The topics of a broker that governs itself, in files, and how a topic may change."""

import pyarrow as pa
import pytest

from memq.broker.catalog import Catalog
from memq.core.format.schema import serialize_schema
from memq.core.governor.topics import altered_topic, new_topic
from memq.core.topic import TopicConfig
from memq.errors import ConfigError, CorruptDataError, SchemaMismatchError


def topic(name="t", topic_id="1" * 16, **options):
    """One that could be stored."""
    config = TopicConfig.create(name, **options)
    return new_topic(config, (), now_ms=1, topic_id=topic_id, request_id="r")


@pytest.fixture
def catalog(tmp_path):
    """One with a topic."""
    found = Catalog(tmp_path / "topics")
    found.save(topic())
    return found


def opened(catalog):
    """What the next start finds."""
    found = Catalog(catalog._directory)
    return (
        {name: found.get(name) for name in found.names()},
        sorted(each.queue_topic for each in found.doomed()),
    )


def test_what_is_doomed_is_what_does_not_exist(catalog):
    """An announcement of what was made is forgotten; another life of the name is not."""
    earlier, other = topic(topic_id="0" * 16), topic("u")
    for each in (topic(), earlier, other):
        catalog.announce(each)
    assert opened(catalog) == ({"t": topic()}, [earlier.queue_topic, other.queue_topic])
    assert not catalog._doomed_path(topic()).exists()
    catalog.withdraw(earlier)
    assert opened(catalog)[0] == {"t": topic()}, "that is the file of another life"
    catalog.doom(other)
    assert catalog.doomed() == [other]
    for _ in range(2):
        catalog.forget(other)
    assert catalog.doomed() == []
    assert opened(catalog) == ({"t": topic()}, [earlier.queue_topic])


def test_what_is_damaged_costs_only_itself(catalog, caplog):
    """It is not taken for missing, nothing of its name is removed, and it can be replaced."""
    folder = catalog._directory
    for name in ("a", "z"):
        catalog.save(topic(name))
    for name, data in (("m", b"?"), ("other", (folder / "a.json").read_bytes())):
        (folder / f"{name}.json").write_bytes(data)
    (folder / "half.json.tmp").write_bytes(b"{")
    (folder / "b.1.doomed").write_bytes(b"?")
    for each in (topic("m"), topic("n")):
        catalog.announce(each)
    found = Catalog(folder)
    assert found.names() == ["a", "t", "z"]
    assert [each.name for each in found.doomed()] == ["n"]
    assert "deleted topic not removed, its file is damaged" in caplog.text
    assert not (folder / "half.json.tmp").exists()
    assert sorted(found.damaged) == ["m", "other"]
    assert all(name in found for name in ("a", "m", "other"))
    assert "n" not in found
    for ask in (found.get, found.delete):
        with pytest.raises(CorruptDataError, match=r"m\.json does not hold a topic"):
            ask("m")
    found.save(topic("m"))
    assert found.get("m") == topic("m")
    assert sorted(found.damaged) == ["other"]


# -- how a topic may come to be, and change -------------------------------------------------


def typed(*fields):
    """A serialized schema."""
    return serialize_schema(pa.schema(list(fields)))


A = pa.field("a", pa.int64(), nullable=False)
B = pa.field("b", pa.int64())


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (typed(A, B), None),
        (typed(A), None),
        (typed(B), SchemaMismatchError),
        (typed(B, A), SchemaMismatchError),
        (typed(pa.field("a", pa.int64()), B), SchemaMismatchError),
        (typed(A, pa.field("b", pa.int64(), nullable=False)), SchemaMismatchError),
        (typed(A, B, pa.field("c", pa.int64(), nullable=False)), SchemaMismatchError),
        (typed(A, pa.field("Topic", pa.string())), SchemaMismatchError),
    ],
)
def test_a_schema_may_grow_by_nullable_columns_at_its_end(new, error):
    """What is there stays as it is, in its order; the newest is the last, and is the topic's."""
    before = topic(schema=typed(A))
    if error is not None:
        with pytest.raises(error):
            altered_topic(before, {}, new, 0)
        return
    after = altered_topic(before, {}, new, 0)
    assert after.config.schema == new
    assert after.schemas[after.schema_id] == new
    assert next(iter(after.schemas)) == before.schema_id
    assert before.schemas.keys() <= after.schemas.keys()
    again = altered_topic(after, {"retention": "2h"}, None, 5)
    assert (again.schemas, again.schema_id) == (after.schemas, after.schema_id)


@pytest.mark.parametrize(
    ("column", "taken"),
    [
        (pa.field("at", pa.timestamp("us", "UTC")), True),
        (pa.field("at", pa.timestamp("us")), False),
        (pa.field("other", pa.timestamp("us", "UTC")), False),
    ],
)
def test_a_time_column_is_one_of_a_zone(column, taken):
    """A topic whose times nobody can read is not made."""
    make = {"schema": typed(A, column), "time_column": "at"}
    if taken:
        assert topic(**make).config.time_column == "at"
    else:
        with pytest.raises((ConfigError, SchemaMismatchError)):
            topic(**make)
