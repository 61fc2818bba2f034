"""The topics that a broker serves, and how they come and go.

A topic comes and goes as a whole, whatever fails between the steps. How, `memq.broker.own_topics`
says for a broker that governs itself, and `memq.broker.cluster_topics` for one of a cluster.
"""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from memq.core.queue import GROUPS
from memq.core.topic import AUDIT_OPTIONS, AUDIT_TOPIC, TopicConfig
from memq.core.wire.messages import BrokerInfo, TopicInfo
from memq.errors import (
    InvalidRequestError,
    MemqError,
    NotHostedError,
    TopicRecreatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from memq.broker.context import BrokerContext
    from memq.broker.hosted_topic import HostedTopic
    from memq.core.governor.topics import Topic

T = TypeVar("T")


class Topics(abc.ABC):
    """Every topic that a broker serves.

    Args:
        context: of the broker.

    Attributes:
        may_lag: what others have changed may not be seen here yet.
    """

    may_lag: ClassVar[bool] = False

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._hosted: dict[str, HostedTopic] = {}
        self._changes: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [{len(self._hosted)} hosted]>"

    # -- what there is ----------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the hosted topics, sorted."""
        return sorted(self._hosted)

    def hosted(self) -> list[HostedTopic]:
        """Return the hosted topics."""
        return list(self._hosted.values())

    def running_names(self) -> set[str]:
        """Topics of which a write partition runs here."""
        return {hosted.topic.name for hosted in self._hosted.values() if hosted.partitions}

    def get(self, name: str, topic_id: str = "") -> HostedTopic:
        """Return a hosted topic.

        Args:
            name: of the topic.
            topic_id: that the caller means; empty for whichever there is.

        Raises:
            TopicRecreatedError: it is another topic id that is hosted.
            MemqError: it is not here; `missing` says why.
        """
        hosted = self._hosted.get(name)
        if hosted is None:
            raise self.missing(name)
        if topic_id and topic_id != hosted.topic.topic_id:
            raise TopicRecreatedError(
                f"topic {name!r} was deleted and recreated: {topic_id} is over, this is "
                f"{hosted.topic.topic_id}, with other data under the same offsets. Reopen "
                "the client, and begin at 'earliest' to miss nothing"
            )
        return hosted

    async def find(self, name: str, topic_id: str = "") -> HostedTopic:
        """Return the topic; refresh the catalog first if it is unknown.

        Raises:
            MemqError: as `get`.
        """
        return self.get(name, topic_id)

    async def look(self, name: str) -> None:  # noqa: B027 - the default: nobody else does
        """See all that was changed of a topic up to now, where other brokers may change it."""

    def coordinated(self, name: str, topic_id: str = "") -> HostedTopic:
        """Return a hosted topic of which this broker keeps the groups.

        Raises:
            NotHostedError: another broker does.
            MemqError: as `get`.
        """
        hosted = self.get(name, topic_id)
        if not hosted.coordinated:
            raise self.not_hosted(hosted, GROUPS)
        return hosted

    def coordinated_names(self) -> list[str]:
        """Topics of which this broker keeps the groups, sorted."""
        return sorted(name for name, hosted in self._hosted.items() if hosted.coordinated)

    def not_hosted(self, hosted: HostedTopic, write_partition: int) -> MemqError:
        """Why a write partition does not run here: there is none, or it is another broker's."""
        name, count = hosted.topic.name, hosted.topic.config.write_partitions
        if not 0 <= write_partition < count:
            return InvalidRequestError(
                f"topic {name!r} has no write partition {write_partition}; it has 0 to {count - 1}"
            )
        address = self.hosts(hosted)[write_partition]
        if address == self._context.address:  # it is on its way here
            address = ""
        what = f"write partition {write_partition} of {name!r}"
        if address:
            return NotHostedError(f"{what} is hosted by {address}; ask that broker", address)
        return NotHostedError(f"{what} has no host now; ask again")

    def info(self, hosted: HostedTopic) -> TopicInfo:
        """Describe a topic as clients need it."""
        topic, hosts = hosted.topic, self.hosts(hosted)
        return TopicInfo(
            config=topic.config,
            schemas=topic.schemas,
            schema_id=topic.schema_id,
            hosts=hosts,
            queue_address=hosts[GROUPS],
            named_partitions=topic.named_partitions,
            created_ms=topic.created_ms,
            topic_id=topic.topic_id,
        )

    @abc.abstractmethod
    def missing(self, name: str) -> MemqError:
        """Why a topic is not hosted."""

    @abc.abstractmethod
    def catalog(self) -> list[Topic]:
        """Return all topics there are, sorted by name, for a backup.

        Raises:
            MemqError: one is not known as it should be.
        """

    @abc.abstractmethod
    def hosts(self, hosted: HostedTopic) -> list[str]:
        """Addresses of the brokers of its write partitions, by number; empty for none."""

    @abc.abstractmethod
    def brokers(self) -> list[BrokerInfo]:
        """Return the brokers that a client may ask."""

    @abc.abstractmethod
    def addresses(self, listener: str) -> dict[str, str]:
        """Addresses of brokers' listeners of this name, by those of their default listeners."""

    def version(self, names: Collection[str]) -> str:  # noqa: ARG002 - nothing moves here
        """Stand for what `info` says of some topics; empty where they stay on this broker."""
        return ""

    async def changed(  # noqa: B027 - the default: they never have
        self, names: Collection[str], known: str, timeout_s: float
    ) -> None:
        """Wait until these topics have another version than `known`, if they may have one."""

    # -- how they come and go ---------------------------------------------------------------

    @abc.abstractmethod
    async def start(self) -> None:
        """Take over what is to be here, and make the topics that the configuration asks for."""

    async def create(self, config: TopicConfig, request_id: str = "") -> HostedTopic:
        """Make a topic; a request that made it before is answered with it.

        Raises:
            TopicExistsError, ConfigError, SchemaMismatchError, QueueError: it was not made, and
                nothing is left of it.
            UnavailableError: the broker is draining.
        """
        self._check_running()
        return await self._to_its_end(self._create(config, request_id))

    async def alter(self, name: str, options: dict[str, str], schema: bytes | None) -> HostedTopic:
        """Change a topic; it holds from the next Message on.

        Raises:
            UnknownTopicError, ConfigError, SchemaMismatchError, QueueError: nothing has changed.
            UnavailableError: the broker is draining.
        """
        self._check_running()
        return await self._to_its_end(self._alter(name, options, schema))

    async def delete(self, name: str, topic_id: str = "") -> None:
        """Delete a topic; what belongs to it is removed in the background.

        Args:
            name: of the topic.
            topic_id: that is to go; empty for whichever there is.

        Raises:
            TopicRecreatedError: it is another topic id that is here.
            UnknownTopicError, NotHostedError: it is not here.
            InvalidRequestError: it is internal.
            QueueError: the disk refused; the topic is there as before.
            UnavailableError: the broker is draining.
        """
        if name == AUDIT_TOPIC:
            raise InvalidRequestError(f"{AUDIT_TOPIC} is internal and cannot be deleted")
        self._check_running()
        await self._to_its_end(self._delete(name, topic_id))

    async def stop(self, timeout_s: float) -> bool:
        """Drain and stop everything; True when all that was accepted is stored and acked."""
        self._stopping = True
        await asyncio.gather(*self._changes, return_exceptions=True)
        drained = await asyncio.gather(*(each.stop(timeout_s) for each in self.hosted()))
        return all(drained)

    @abc.abstractmethod
    async def _create(self, config: TopicConfig, request_id: str) -> HostedTopic: ...

    @abc.abstractmethod
    async def _alter(
        self, name: str, options: dict[str, str], schema: bytes | None
    ) -> HostedTopic: ...

    @abc.abstractmethod
    async def _delete(self, name: str, topic_id: str) -> None: ...

    def _check_running(self) -> None:
        if self._stopping:  # what is made or changed now would not be drained
            raise UnavailableError("the broker is draining; retry elsewhere")

    async def _to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change whole, also when the client that asked for it goes away meanwhile."""
        # The caller may have gone away, and with it the net that catches a bug.
        task = self._context.fatal_errors.spawn(self, change, expected=MemqError)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    def _wanted_topics(self) -> list[TopicConfig]:
        """Topics that a broker makes at its start where they do not exist."""
        audit = TopicConfig.create(AUDIT_TOPIC, **AUDIT_OPTIONS)
        return [*self._context.config.topics, audit]
