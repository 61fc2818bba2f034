"""How Spark reaches topics: the driver asks its brokers, driver and tasks read its objects.

Spark plans in plain blocking calls, from a Python process that may fork, so clients of brokers are
made where they are used, and not before. Objects are read from storage, or through a broker.

A read is about one topic, several by name, or all whose names match a pattern. A pattern is looked
up again whenever the reader asks, which a stream does once for each micro-batch. All topics share
one thread and one set of connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread, SyncClient
from memq.client.topic import SyncTopicClient, TopicClient
from memq.core.format.schema import deserialize_schema
from memq.core.named_values import asks_brokers
from memq.core.notification import PublishedBatch
from memq.errors import (
    ConfigError,
    DataLossError,
    InvalidRequestError,
    MemqError,
    ObjectNotFoundError,
    SchemaMismatchError,
    TopicRecreatedError,
    UnknownTopicError,
)
from memq.reading.objects import in_storage, read_broker, read_storage
from memq.runtime.retry import Retry
from memq.runtime.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence

    import pyarrow as pa

    from memq.core.named_values import NamedValues
    from memq.core.wire.messages import TopicInfo
    from memq.spark.options import ReadOptions

T = TypeVar("T")

GO_ON = (
    "The known offsets belong to the earlier topic. To read this one from its first Batch, load() "
    "the DataFrame again, begin with a new checkpoint and startingOffsets=earliest, or plan the "
    "range again"
)
"""What to do about a topic that was recreated."""

MAX_TOPICS = 1_000
"""A stream asks each of its topics for its end, whenever it looks for data, and a checkpoint names
all of them."""

REQUEST_TIMEOUT_S = 30.0  # how long brokers may be out of reach: one that restarts is back by then

GetRange = Callable[[PublishedBatch, int, int], Any]
"""Bytes of the object of a Batch: the first byte, and how many; fewer where it ends sooner."""


class Shared(NamedTuple):
    """The connections of several topics, and the thread that works on them. Close it."""

    cluster: Cluster
    loop: EventLoopThread

    def close(self) -> None:
        """Close the connections, and end the thread."""
        try:
            self.loop.run(self.cluster.close())
        finally:
            self.loop.close()


class SparkTopic(SyncTopicClient):
    """The brokers, as a plan needs them. Use it with `with`, or `close` it; it cannot be pickled.

    All calls are about one topic id: that of the options, or else the first that is
    met. Of another one all raise `TopicRecreatedError`, with advice.

    Args:
        options: of the read of this topic.
        shared: what it works with; its maker closes it, and not this. None for connections
            of its own.
    """

    def __init__(self, options: ReadOptions, shared: Shared | None = None) -> None:
        self._shared = shared is not None
        own = shared or share(options)
        client = TopicClient(own.cluster, options.topic, options.topic_id or "")
        SyncClient.__init__(self, client, own.loop)
        self._closed = self._shared

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._shared:
            super()._end(work)


def share(options: ReadOptions) -> Shared:
    """Connections for the topics of a read."""
    cluster = Cluster(
        options.bootstrap,
        client="memq.spark",
        token=options.token,
        storage_options=options.storage_options,
        security=options.security,
        request_timeout_s=REQUEST_TIMEOUT_S,
    )
    return Shared(cluster, AdvisingLoop(f"memq-{options.subject}"))


class SparkTopics:
    """The topics of a read. `close` it; it cannot be pickled.

    Args:
        options: of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._shared = share(options)
        self._topics: dict[str, SparkTopic] = {}

    def __repr__(self) -> str:
        return f"<SparkTopics {self._options.subject}>"

    def close(self) -> None:
        """Close the connections."""
        self._shared.close()

    def look_up(self) -> dict[str, TopicInfo]:
        """Look up the topics that are to be read now, by name, in their order.

        Raises:
            UnknownTopicError: a topic that is named does not exist.
            TopicRecreatedError: the topic is another one than the options name.
            InvalidRequestError: the pattern matches more than `MAX_TOPICS`.
            MemqError: the brokers failed.
        """
        if self._options.subscribe_pattern is None:
            names = self._options.subscribe or (self._options.topic,)
            named = [self._options.of_topic(each, self._options.topic_id) for each in names]
            infos = [self.topic(each).info() for each in named]
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
        """Return one of the topics, with the thread and the connections of all.

        Args:
            options: of the read of this topic; they name its topic id.
        """
        return SparkTopic(options, self._shared)


def check_named(options: ReadOptions, found: Collection[str]) -> None:
    """Refuse a read that begins or ends at offsets of a topic that there is not.

    Raises:
        ConfigError: a bound names one.
    """
    for side, bound in (("starting", options.starting_offsets), ("ending", options.ending_offsets)):
        missing = sorted(set(bound.by_topic or ()) - set(found))
        if missing:
            raise ConfigError(f"option '{side}Offsets' names topic {missing[0]!r}: there is none")


def agreed_schema(
    options: ReadOptions, found: Mapping[str, TopicInfo], chosen: Sequence[str] | None
) -> pa.Schema:
    """Return the schema of some topics, which must be the same as far as it is read.

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


def without_runs(batch: PublishedBatch) -> PublishedBatch:
    """Drop the names of a Batch's Messages, which take most of its notification's memory.

    Texts that all notifications of a topic have in common are kept once.
    """
    it = batch.notification
    lean = msgspec.structs.replace(
        it,
        topic=intern(it.topic),
        topic_id=intern(it.topic_id),
        producers=(),  # a list would make the garbage collector look at every Batch
        schema_id=intern(it.schema_id),
        broker_id=intern(it.broker_id),
    )
    return PublishedBatch(batch.partition, batch.offset, batch.timestamp_ms, lean)


class AdvisingLoop(EventLoopThread):
    """An event loop that says how to go on when the topic was recreated."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it as every such loop does, with advice."""
        try:
            return super().run(work)
        except TopicRecreatedError as exc:
            raise TopicRecreatedError(f"{exc}. {GO_ON}") from exc


@contextmanager
def open_objects(options: ReadOptions) -> Iterator[GetRange]:
    """Open what reads the objects of the topics of a read; any thread may call it.

    What may pass is tried again for `REQUEST_TIMEOUT_S`. It raises:
        CorruptDataError: no object can have these bytes.
        ObjectNotFoundError: there is no such object.
        MemqError: storage or brokers failed until the deadline.
    """
    direct = options.read_through == "storage"
    if direct and not asks_brokers(options.storage_options):
        yield partial(_read_storage, options.storage_options)
        return
    with closing(share(options)) as shared:
        yield partial(_read_with_credentials if direct else _read_broker, shared)


def _read_broker(shared: Shared, batch: PublishedBatch, start: int, length: int) -> Any:
    it = batch.notification
    topic = TopicClient(shared.cluster, it.topic, it.topic_id)
    return shared.loop.run(read_broker(topic, it.uri, start, length))


def _read_with_credentials(shared: Shared, batch: PublishedBatch, start: int, length: int) -> Any:
    it = batch.notification
    topic = TopicClient(shared.cluster, it.topic, it.topic_id)
    reading = partial(asyncio.to_thread, read_storage, it.uri, start, length)
    return _retried(lambda: shared.loop.run(in_storage(topic, it.uri, reading)))


def _read_storage(options: NamedValues, batch: PublishedBatch, start: int, length: int) -> Any:
    return _retried(lambda: read_storage(batch.notification.uri, start, length, options))


def _retried(read: Callable[[], Any]) -> Any:
    retry = Retry(REQUEST_TIMEOUT_S, SYSTEM)
    while True:
        try:
            return read()
        except MemqError as exc:
            delay_s = retry.after(exc)
        time.sleep(delay_s)


@contextmanager
def naming(batch: PublishedBatch, what: str = "") -> Iterator[None]:
    """Let errors name the Batch, and what of it.

    Raises:
        DataLossError: in place of `ObjectNotFoundError`.
        MemqError: of the type that it had.
    """
    try:
        yield
    except ObjectNotFoundError as exc:
        raise DataLossError(
            f"{batch} is gone, though its notification is retained. If this machine does not share "
            "the brokers' storage, set readThrough to broker; mode=permissive or "
            "failOnDataLoss=false read on without it"
        ) from exc
    except MemqError as exc:
        raise type(exc)(f"{batch}{what}: {exc}") from exc
