"""`MemqHook`: an Airflow connection of type `memq`, and what can be asked over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseHook

from airflow_provider_memq.aws import storage_options_of
from airflow_provider_memq.planning.topics import read_state
from airflow_provider_memq.settings import CONN_TYPE, DEFAULT_CONN_ID, explain, settings_of
from memq.core.defaults import READ_TIMEOUT_S
from memq.core.named_values import NO_VALUES
from memq.core.ranges import OffsetRange
from memq.core.units import counted
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_provider_memq.planning.topics import TopicState
    from airflow_provider_memq.settings import ClientSettings
    from memq.client.admin import AdminClient, AsyncAdminClient
    from memq.client.cluster import Cluster
    from memq.client.topic import SyncTopicClient, TopicClient
    from memq.core.named_values import NamedValues
    from memq.core.notification import PublishedBatch
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.objects import ReadThrough

T = TypeVar("T")


class MemqHook(BaseHook):
    """Asks a MemQ cluster, over a connection of type `memq`.

    Methods without a prefix may be called from tasks; those that begin with `a` are for triggers
    and other async code. All may raise `MemqError`; a connection that is malformed is a
    `ConfigError` before anything is asked. Nothing is kept open between two calls.

    Args:
        memq_conn_id: id of the Airflow connection.
    """

    conn_name_attr = "memq_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONN_TYPE
    hook_name = "MemQ"

    def __init__(self, memq_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.memq_conn_id = memq_conn_id

    def __repr__(self) -> str:
        return f"<MemqHook {self.memq_conn_id}>"

    # -- the connection ---------------------------------------------------------------------

    def settings(self) -> ClientSettings:
        """Read what the connection says.

        Raises:
            ConfigError: it is malformed.
            AirflowNotFoundException: there is no such connection.
        """
        return settings_of(self.get_connection(self.memq_conn_id))

    @property
    def bootstrap(self) -> str:
        """Comma separated `host:port` of the connection's brokers."""
        return self.settings().bootstrap

    @property
    def token(self) -> str:
        """The connection's token; empty where the brokers ask for none."""
        return self.settings().token

    @property
    def security(self) -> NamedValues:
        """What TLS needs, as the option `security` of every client."""
        return self.settings().security

    @property
    def storage_options(self) -> NamedValues:
        """With which a client reads Batches in S3, by the connection's `aws_conn_id`.

        They are resolved each time; there are none where the connection names no other.

        Raises:
            ConfigError: the connection holds no credentials, or its provider is not installed.
            StorageError: they cannot be had.
        """
        return storage_options_of(self.settings())

    async def asettings(self) -> ClientSettings:
        """Read what the connection says; like `settings`."""
        return settings_of(await self.aget_connection(self.memq_conn_id))

    # Function-level imports from here on: loading the client is for those who ask something.

    def get_conn(self) -> AdminClient:
        """Open a client that administers the cluster; close it, or use it with `with`."""
        from memq.client.admin import AdminClient  # noqa: PLC0415

        return AdminClient(**_client_options(self.settings()))

    async def aget_conn(self) -> AsyncAdminClient:
        """Open a client that administers the cluster from an event loop; use `async with`."""
        from memq.client.admin import AsyncAdminClient  # noqa: PLC0415

        return AsyncAdminClient(**_client_options(await self.asettings()))

    def topic(self, topic: str, topic_id: str = "") -> SyncTopicClient:
        """Open a client of one topic; close it, or use it with `with`.

        Args:
            topic: the topic.
            topic_id: of it; empty for the one that is met first. Another one is a
                `TopicRecreatedError`.
        """
        from memq.client.topic import SyncTopicClient  # noqa: PLC0415

        options = _client_options(self.settings())
        return SyncTopicClient(topic=topic, topic_id=topic_id, **options)

    async def atopic(self, topic: str, topic_id: str = "") -> TopicClient:
        """Open a client of one topic for an event loop, like `topic`; use it with `async with`."""
        from memq.client.cluster import Cluster  # noqa: PLC0415
        from memq.client.topic import TopicClient  # noqa: PLC0415

        cluster = Cluster(**_client_options(await self.asettings()))
        return TopicClient(cluster, topic, topic_id)

    def ask(
        self,
        question: Callable[[Cluster], Coroutine[Any, Any, T]],
        *,
        reads_objects: bool = False,
    ) -> T:
        """Await what an async function of the cluster returns, over connections of its own.

        Args:
            question: the function.
            reads_objects: it reads Batches: then the cluster has the `storage_options`.

        Raises:
            ConfigError: as `storage_options`, where it reads Batches.
            StorageError: as `storage_options`, too.
            MemqError: as the function.
        """
        from memq.client.cluster import Cluster  # noqa: PLC0415
        from memq.client.sync import EventLoopThread  # noqa: PLC0415

        async def run() -> T:
            cluster = Cluster(**options)
            try:
                return await question(cluster)
            finally:
                await cluster.close()

        settings = self.settings()
        options = _client_options(settings)
        if reads_objects:
            options["storage_options"] = storage_options_of(settings)
        # A thread of its own: a caller may run inside an event loop, as `dags test` does.
        loop = EventLoopThread("memq-airflow")
        try:
            return loop.run(run())
        finally:
            loop.close()

    def test_connection(self) -> tuple[bool, str]:
        """Tell *Test connection* whether a broker answers, or why not."""
        try:
            answer = self.ask(lambda cluster: cluster.metadata(None))
        except MemqError as exc:
            return False, explain(self.memq_conn_id, exc)
        return True, (
            f"Connected to cluster {answer.cluster_id}: "
            f"{counted(len(answer.brokers), 'broker')}, {counted(len(answer.topics), 'topic')}"
        )

    # -- what is asked ----------------------------------------------------------------------

    def state(self, topic: str) -> TopicState:
        """Return what a topic retains now, and how far it is stored.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        with self.topic(topic) as client:
            return read_state(topic, client)

    def offsets(self, topic: str, at: datetime | None = None) -> list[PartitionOffsets]:
        """Start and end of each read partition; with `at` also the first offset since then.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: `at` has no time zone.
        """
        with self.get_conn() as admin:
            return admin.offsets(topic, at)

    def offsets_for_time(self, topic: str, at: datetime) -> dict[int, int]:
        """Return the first offset published at a time or later, by read partition.

        It is the end of the partition where nothing was published since.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: `at` has no time zone.
        """
        return {
            each.partition: each.end if each.at is None else each.at
            for each in self.offsets(topic, at)
        }

    def watermark_ms(self, topic: str) -> int:
        """Return the time before which every acked Message is published; ms since 1970 UTC.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self.state(topic).watermark_ms

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Stored next offsets of a group; partitions without one are absent.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        with self.get_conn() as admin:
            return admin.committed(group, topic)

    def notifications(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[PublishedBatch]:
        """Yield the notifications of a range with their offsets, a page in memory at a time.

        Raises:
            InvalidRequestError: the topic has no such partition, or the range is none.
            OffsetOutOfRangeError: some of the range is not retained.
            UnknownTopicError: there is no such topic.
        """
        wanted = OffsetRange(partition, start, end)
        with self.topic(topic) as client:
            client.check_retained(wanted)
            yield from client.batches([wanted])

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: str = "",
        columns: Sequence[str] | None = None,
        read_through: ReadThrough = "storage",
        timeout: float = READ_TIMEOUT_S,
    ) -> pa.Table:
        """Return the records of a range, as one table in memory; see `memq.read_range`.

        Args:
            topic: the topic.
            partition: read partition.
            start: first offset.
            end: one past the last offset.
            topic_id: of the topic; empty for whichever there is.
            columns: names of the columns wanted; None for all.
            read_through: "storage", or "broker" for workers that cannot reach the storage.
            timeout: seconds that all of it may take.

        Raises:
            InvalidRequestError: the topic has no such partition or column, or the range is none.
            OffsetOutOfRangeError: some of the range is not retained.
            ConfigError: as `storage_options`.
            StorageError: the storage failed or refused access; or as `storage_options`.
            MemqError: as `memq.read_range`.
        """
        from memq.client.read_range import read_range  # noqa: PLC0415

        settings = self.settings()
        in_storage = read_through == "storage"
        return read_range(
            settings.bootstrap,
            topic=topic,
            timeout=timeout,
            partition=partition,
            start=start,
            end=end,
            topic_id=topic_id,
            columns=columns,
            read_through=read_through,
            token=settings.token,
            security=settings.security,
            storage_options=storage_options_of(settings) if in_storage else NO_VALUES,
        )


def _client_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the options with which every client is opened."""
    return {
        "bootstrap": settings.bootstrap,
        "client": "airflow",  # in the brokers' logs
        "token": settings.token,
        "security": settings.security,
        "request_timeout_s": settings.request_timeout_s,
    }
