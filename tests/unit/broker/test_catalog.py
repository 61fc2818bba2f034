"""The topics of a broker that governs itself, in files: what holds when the disk refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from memq.broker import catalog as module
from memq.broker.catalog import Catalog
from memq.core.format.schema import serialize_schema
from memq.core.governor.topics import altered_topic, new_topic
from memq.core.topic import TopicConfig
from memq.errors import (
    ConfigError,
    CorruptDataError,
    QueueError,
    SchemaMismatchError,
)


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


@pytest.fixture
def refuse(monkeypatch):
    """Let the disk refuse some of the next calls of a kind, by their number from 1."""

    def refuse(name, *numbers, done=False):
        call, calls = getattr(module, name), []

        def refusing(*args, **options):
            calls.append(args)
            if len(calls) in numbers:
                if done:  # and not durable
                    call(*args, **options)
                raise OSError(28, "No space left on device")
            return call(*args, **options)

        monkeypatch.setattr(module, name, refusing)
        return calls

    return refuse


@pytest.mark.parametrize("refused", [[1], [1, 2]])
def test_a_topic_that_cannot_be_saved_is_as_it_was(catalog, refuse, refused):
    """In memory and, as far as the disk lets it, in its file, which may have been replaced."""
    before = catalog.get("t")
    after = altered_topic(before, {"retention": "2h"}, None, 7)
    calls = refuse("replace_durably", *refused, done=refused == [1])
    with pytest.raises(QueueError, match=r"cannot write topic 't' at .*t\.json: No space left"):
        catalog.save(after)
    assert len(calls) == 2, "what was there is written again"
    assert catalog.get("t") == before
    with pytest.raises(QueueError):
        refuse("replace_durably", 1)
        catalog.save(topic("new"))
    assert catalog.names() == ["t"]
    assert opened(catalog) == ({"t": before}, [])


def test_what_is_doomed_is_what_does_not_exist(catalog):
    """An announcement of what was made is forgotten; another life of the name is not."""
    earlier, other = topic(topic_id="0" * 16), topic("u")
    for each in (topic(), earlier, other):
        catalog.announce(each)
    assert opened(catalog) == ({"t": topic()}, [earlier.queue_topic, other.queue_topic])
    assert not catalog._doomed_path(topic()).exists()
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


@pytest.mark.parametrize("file", ["of this life", "of another life", "none"])
def test_only_what_was_never_made_is_withdrawn(catalog, refuse, file):
    """A file that its failed creation has left goes, durably; that of another topic stays."""
    made = topic("u", topic_id=("2" if file == "of another life" else "1") * 16)
    if file != "none":
        module.replace_durably(catalog._path("u"), module._text(made))
    for refused in (True, False):
        synced = refuse("sync_folder", *[1] * refused)
        if refused:
            with pytest.raises(QueueError, match="cannot remove topic 'u'"):
                catalog.withdraw(topic("u"))
        else:
            catalog.withdraw(topic("u"))
        assert len(synced) == 1
        assert catalog._path("u").exists() == (file == "of another life")
    catalog.withdraw(topic())
    assert len(synced) == 1
    assert opened(catalog)[0]["t"] == topic()


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
