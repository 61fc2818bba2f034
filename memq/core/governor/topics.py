"""What a topic is, and how it may come to be and change: pure functions that both catalogs share.

A broker that governs itself keeps topics in files (`memq.broker.catalog`), brokers of a
cluster keep them in ZooKeeper (`memq.zookeeper.shared_catalog`).
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from memq.core.format.message import TIMESTAMP_COLUMN, time_position
from memq.core.format.schema import (
    DEFAULT_SCHEMA,
    ORIGIN_COLUMNS,
    RANGE_COLUMNS,
    check_topic_schema,
    deserialize_schema,
    schema_id,
    serialize_schema,
)
from memq.core.topic import TopicConfig, check_topic_name
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    SchemaMismatchError,
    TopicExistsError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

MAX_TOPICS = 10_000  # each has a TopicProcessor for each write partition, and files or nodes
MAX_COMPARED = 200  # topics, for one that may have been meant; comparing takes about 20 us each
MAX_SCHEMAS = 100  # of one topic, oldest to newest
_ORIGINS = frozenset(["topic", *ORIGIN_COLUMNS, *RANGE_COLUMNS])


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as a catalog keeps it. Unknown fields are ignored when it is read.

    Attributes:
        config: its configuration.
        schemas: serialized schemas it accepts, oldest first, by schema id.
        created_ms: when it was created, milliseconds since 1970 UTC.
        topic_id: random id of the topic from creation to deletion.
        named_partitions: write partitions that it was made with; producers with an id of their own
            use only these.
        request_id: of the request that created it, so that a request sent again is recognised.
        retained_since_ms: how far retention had come when the topic was altered last: nothing
            published at this time or later had been removed.
    """

    config: TopicConfig
    schemas: dict[str, bytes]
    created_ms: int
    topic_id: str
    named_partitions: int
    request_id: str = ""
    retained_since_ms: int = 0

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.config.name

    @property
    def queue_topic(self) -> str:
        """The topic of the notification queue that holds this topic id."""
        return f"{self.name}.{self.topic_id}"

    @property
    def schema_id(self) -> str:
        """The newest schema."""
        return next(reversed(self.schemas))


def new_topic(
    config: TopicConfig,
    others: Collection[str],
    *,
    now_ms: int,
    topic_id: str,
    request_id: str,
) -> Topic:
    """Make a topic that could be added to those that there are; nothing is stored.

    Args:
        config: its configuration.
        others: names of the topics that there are.
        now_ms: the time, milliseconds since 1970 UTC.
        topic_id: random name of this life of the topic.
        request_id: of the request that creates it.

    Raises:
        TopicExistsError: the name is taken.
        ConfigError: a value is out of its limits, or there are too many topics.
        SchemaMismatchError: the schema cannot be stored.
    """
    config.checked()
    if config.name in others:
        raise TopicExistsError(f"topic {config.name!r} exists already")
    if len(others) >= MAX_TOPICS:
        raise ConfigError(f"there are {MAX_TOPICS} topics, which is the limit; delete some")
    schema = DEFAULT_SCHEMA if config.schema is None else deserialize_schema(config.schema)
    check_topic_schema(schema)
    _check_time_column(config.time_column, schema)
    serialized = serialize_schema(schema)
    return Topic(
        config=config,
        schemas={schema_id(serialized): serialized},
        created_ms=now_ms,
        topic_id=topic_id,
        named_partitions=config.write_partitions,
        request_id=request_id,
    )


def _check_time_column(name: str, schema: pa.Schema) -> None:
    position = time_position(schema, name)
    if name != TIMESTAMP_COLUMN and (position < 0 or schema.types[position].tz is None):
        raise ConfigError(
            f"time_column = {name!r}: must be a column of a timestamp with a zone, such as "
            f"timestamp[us, tz=UTC]; the topic's columns are {', '.join(schema.names)}"
        )


def altered_topic(
    topic: Topic, options: dict[str, str], schema: bytes | None, retained_since_ms: int
) -> Topic:
    """Make a topic as it would be with other options or another schema; nothing is stored.

    Raises:
        ConfigError, SchemaMismatchError: it cannot be changed so.
    """
    config, schemas = topic.config.altered(**options), topic.schemas
    if schema is not None:
        schemas = _extended(topic, schema)
        config = msgspec.structs.replace(config, schema=schema)
    return msgspec.structs.replace(
        topic, config=config, schemas=schemas, retained_since_ms=retained_since_ms
    )


def unknown_topic(name: str, others: Collection[str]) -> UnknownTopicError:
    """Make the error for a missing topic, which names one that may have been meant."""
    near = get_close_matches(name[:250], islice(others, MAX_COMPARED), n=1, cutoff=0.8)
    there = f" (there is {near[0]!r})" if near else ""
    return UnknownTopicError(f"no topic {name[:250]!r} here{there}; {_way_to_create(name)}")


def _way_to_create(name: str) -> str:
    """Say how to make a topic of that name, or why there can be none."""
    try:
        check_topic_name(name)
    except InvalidRequestError as exc:
        return str(exc)
    return f"create it with `memq topic create {name}`"


def _extended(topic: Topic, schema: bytes) -> dict[str, bytes]:
    """Add a new schema to the topic's; it must add nullable columns at the end."""
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
    taken = [name for name in new.names[len(old) :] if name.lower() in _ORIGINS]
    if taken:
        raise SchemaMismatchError(
            f"column {taken[0]!r} cannot be added to {topic.name!r}: what was made of the topic so "
            "far, as files and tables, has under this name where a row is from. Choose another name"
        )
    if len(topic.schemas) >= MAX_SCHEMAS:
        raise ConfigError(f"topic {topic.name!r} has had {MAX_SCHEMAS} schemas, its limit")
    serialized = serialize_schema(new)
    return topic.schemas | {schema_id(serialized): serialized}
