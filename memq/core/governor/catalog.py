"""The topics of a broker that is its own Governor, kept as one small file per topic.

A file is written to a temporary name, synced and renamed, so that a crash leaves the old or the new
text and never half of one. It holds the configuration and every schema that the topic has had, for
Messages with an older schema may still be on their way.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from memq.core.format.schema import (
    DEFAULT_SCHEMA,
    check_topic_schema,
    deserialize_schema,
    schema_id,
    serialize_schema,
)
from memq.core.topic import TopicConfig
from memq.errors import (
    ConfigError,
    CorruptDataError,
    QueueError,
    SchemaMismatchError,
    TopicExistsError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from pathlib import Path

MAX_TOPICS = 10_000  # each has files, and a TopicProcessor for each write partition
MAX_SCHEMAS = 100  # of one topic, oldest to newest


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic as the catalog keeps it.

    Attributes:
        config: its configuration.
        schemas: serialized schemas it accepts, oldest first, by schema id.
        created_ms: when it was created, milliseconds since 1970 UTC.
    """

    config: TopicConfig
    schemas: dict[str, bytes]
    created_ms: int

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.config.name

    @property
    def schema_id(self) -> str:
        """The newest schema."""
        return next(reversed(self.schemas))


class Catalog:
    """Topics by name, in memory and on disk.

    Raises:
        CorruptDataError: a topic's file does not hold a topic.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._topics: dict[str, Topic] = {}
        for path in sorted(directory.glob("*.json")):
            topic = _load(path)
            self._topics[topic.name] = topic

    def __repr__(self) -> str:
        return f"<Catalog [{len(self._topics)} topics] {self._directory}>"

    def names(self) -> list[str]:
        """The topics' names, sorted."""
        return sorted(self._topics)

    def get(self, name: str) -> Topic:
        """One topic.

        Raises:
            UnknownTopicError: there is none of that name.
        """
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopicError(
                f"no topic {name[:250]!r} here; create it with `memq topic create`"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def create(self, config: TopicConfig, now_ms: int) -> Topic:
        """Add a topic, durably.

        Raises:
            TopicExistsError: the name is taken.
            ConfigError: a value is out of its limits, or there are too many topics.
            SchemaMismatchError: the schema cannot be stored.
        """
        config.checked()
        if config.name in self._topics:
            raise TopicExistsError(f"topic {config.name!r} exists already")
        if len(self._topics) >= MAX_TOPICS:
            raise ConfigError(f"this broker has {MAX_TOPICS} topics, its limit; delete some")
        schema = DEFAULT_SCHEMA if config.schema is None else deserialize_schema(config.schema)
        check_topic_schema(schema)
        serialized = serialize_schema(schema)
        topic = Topic(config=config, schemas={schema_id(serialized): serialized}, created_ms=now_ms)
        self._save(topic)
        return topic

    def alter(self, name: str, options: dict[str, str], schema: bytes | None) -> Topic:
        """Change a topic, durably.

        Raises:
            UnknownTopicError, ConfigError, SchemaMismatchError: nothing has changed.
        """
        topic = self.get(name)
        config, schemas = topic.config.altered(**options), topic.schemas
        if schema is not None:
            schemas = _extended(topic, schema)
            config = msgspec.structs.replace(config, schema=schema)
        altered = msgspec.structs.replace(topic, config=config, schemas=schemas)
        self._save(altered)
        return altered

    def delete(self, name: str) -> None:
        """Forget a topic, durably."""
        self.get(name)
        try:
            self._path(name).unlink()
            _sync_directory(self._directory)
        except OSError as exc:
            raise QueueError(f"cannot delete topic {name!r}: {exc}") from exc
        del self._topics[name]

    def _save(self, topic: Topic) -> None:
        path = self._path(topic.name)
        temporary = path.with_suffix(".tmp")
        text = msgspec.json.format(msgspec.json.encode(topic), indent=2)
        try:
            with temporary.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            _sync_directory(self._directory)
        except OSError as exc:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise QueueError(f"cannot write topic {topic.name!r} to {path}: {exc}") from exc
        self._topics[topic.name] = topic

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def _load(path: Path) -> Topic:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Topic)
    except (msgspec.MsgspecError, OSError) as exc:
        raise CorruptDataError(f"{path} does not hold a topic: {exc}") from exc


def _extended(topic: Topic, schema: bytes) -> dict[str, bytes]:
    """The topic's schemas with a new one, which must add nullable columns at the end."""
    if topic.config.schema is None:
        raise SchemaMismatchError(
            f"topic {topic.name!r} has the default schema; a typed topic is another topic"
        )
    new = deserialize_schema(schema)
    check_topic_schema(new)
    old = deserialize_schema(topic.schemas[topic.schema_id])
    added = list(new)[len(old) :]
    if list(new)[: len(old)] != list(old) or not all(field.nullable for field in added):
        raise SchemaMismatchError(
            f"the new schema of {topic.name!r} must keep the columns {old.names} and may add "
            f"nullable ones after them; it has {new.names}"
        )
    if len(topic.schemas) >= MAX_SCHEMAS:
        raise ConfigError(f"topic {topic.name!r} has had {MAX_SCHEMAS} schemas, its limit")
    serialized = serialize_schema(new)
    return topic.schemas | {schema_id(serialized): serialized}


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
