"""Which topics a read is about: one, several by name, or all whose names match a pattern.

A pattern is looked up again whenever the reader asks, which a stream does once for each
micro-batch. All topics share one thread and one set of connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.format.schema import deserialize_schema
from memq.errors import ConfigError, InvalidRequestError, SchemaMismatchError, UnknownTopicError
from memq.spark.topic import SparkTopic, share

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Self

    import pyarrow as pa

    from memq.core.wire.messages import TopicInfo
    from memq.spark.options import ReadOptions

MAX_TOPICS = 1_000
"""A stream asks each of its topics for its end, whenever it looks for data, and a checkpoint names
all of them."""


class SparkTopics:
    """The topics of a read. Use it with `with`, or `close` it; it cannot be pickled.

    Args:
        options: of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._shared = share(options)
        self._topics: dict[str, SparkTopic] = {}

    def __repr__(self) -> str:
        return f"<SparkTopics {self._options.subject}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._shared.close()

    def look_up(self) -> dict[str, TopicInfo]:
        """The topics that are to be read now, by name, in their order.

        Raises:
            UnknownTopicError: a topic that is named does not exist.
            TopicRecreatedError: the topic is another one than the options name.
            InvalidRequestError: the pattern matches more than `MAX_TOPICS`.
            MemqError: the brokers failed.
        """
        if self._options.subscribe_pattern is None:
            names = self._options.subscribe or (self._options.topic,)
            infos = [self._named(name).info() for name in names]
        else:
            infos = self._shared.loop.run(self._shared.cluster.metadata(None)).topics
            infos = [info for info in infos if self._options.covers(info.config.name)]
        if len(infos) > MAX_TOPICS:
            raise InvalidRequestError(
                f"{self._options.subject} are {len(infos)}, and a read may have {MAX_TOPICS}; "
                "make several reads of them"
            )
        return {info.config.name: info for info in sorted(infos, key=lambda each: each.config.name)}

    def topic(self, options: ReadOptions) -> SparkTopic:
        """One of the topics, with the thread and the connections of all.

        Args:
            options: of the read of this topic; they name its incarnation.
        """
        return SparkTopic(options, self._shared)

    def _named(self, name: str) -> SparkTopic:
        """A topic of this name: in the incarnation of the options, or whichever there is."""
        return self.topic(self._options.of_topic(name, self._options.incarnation or ""))


def check_named(options: ReadOptions, found: Collection[str]) -> None:
    """Refuse a read that begins or ends at offsets of a topic that there is not.

    Raises:
        ConfigError: a bound names one.
    """
    for side, bound in (("starting", options.starting), ("ending", options.ending)):
        missing = sorted(set(bound.by_topic or ()) - set(found))
        if missing:
            raise ConfigError(f"option '{side}Offsets' names topic {missing[0]!r}: there is none")


def agreed_schema(
    options: ReadOptions, found: Mapping[str, TopicInfo], chosen: Sequence[str] | None
) -> pa.Schema:
    """The schema of some topics, which must be the same as far as it is read.

    Args:
        options: of the read.
        found: the topics, by name.
        chosen: columns that alone are read; None for all.

    Raises:
        UnknownTopicError: there are none, so there are no columns either.
        SchemaMismatchError: two of them have other columns, or the same as other types.
    """
    schemas = {name: deserialize_schema(it.schemas[it.schema_id]) for name, it in found.items()}
    if not schemas:
        raise UnknownTopicError(
            f"there are no {options.subject} yet; the columns of a read are those of its topics, "
            "so create one first"
        )
    (first, schema), *others = schemas.items()
    for name, other in others:
        check_agrees(first, schema, name, other, chosen)
    return schema


def check_agrees(
    first: str, schema: pa.Schema, name: str, other: pa.Schema, chosen: Sequence[str] | None
) -> None:
    """Refuse a topic with other columns than those before it.

    Raises:
        SchemaMismatchError: a column is in one of them only, or has another type, or may be null.
    """
    here, there = _columns(schema, chosen), _columns(other, chosen)
    for column in [*here, *there]:
        if here.get(column) != there.get(column):
            raise SchemaMismatchError(
                f"topics {first!r} and {name!r} cannot be read together: column {column!r} is "
                f"{here.get(column, 'not in the one')} and {there.get(column, 'not in the other')}"
                "; read each by itself, or choose columns that they share by the option 'columns'"
            )


def _columns(schema: pa.Schema, chosen: Sequence[str] | None) -> dict[str, str]:
    return {
        field.name: f"{field.type}{'' if field.nullable else ' not null'}"
        for field in schema
        if chosen is None or field.name in chosen
    }
