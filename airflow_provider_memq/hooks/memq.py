"""`MemqHook`: an Airflow connection of type `memq`, and what can be asked over it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseHook

from airflow_provider_memq.get_provider_info import CONN_TYPE
from airflow_provider_memq.settings import DEFAULT_CONN_ID, explain, settings_of
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from datetime import datetime

    from airflow_provider_memq.session import Found, Session, TopicState
    from airflow_provider_memq.settings import ClientSettings
    from memq.client.admin import AdminClient, AsyncAdminClient
    from memq.core.wire.messages import PartitionOffsets

T = TypeVar("T")


class MemqHook(BaseHook):
    """Asks a MemQ cluster, over a connection of type `memq`.

    Methods without a prefix may be called from tasks; those that begin with `a`, and `session`, are
    for triggers and other async code. All may raise `MemqError`; a connection that is malformed is
    a `ConfigError` before anything is asked.

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
        """What the connection says.

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

    async def asettings(self) -> ClientSettings:
        """What the connection says; as `settings`."""
        return settings_of(await self.aget_connection(self.memq_conn_id))

    def get_conn(self) -> AdminClient:
        """A client that administers the cluster; close it, or use it with `with`."""
        from memq.client.admin import AdminClient  # noqa: PLC0415 - loads the client

        settings = self.settings()
        return AdminClient(
            settings.bootstrap,
            token=settings.token,
            client="airflow",
            request_timeout_s=settings.request_timeout_s,
        )

    async def aget_conn(self) -> AsyncAdminClient:
        """A client that administers the cluster from an event loop; use it with `async with`."""
        from airflow_provider_memq.session import admin_client  # noqa: PLC0415 - loads the client

        return admin_client(await self.asettings())

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Connections for one look, closed at its end."""
        from airflow_provider_memq.session import Session  # noqa: PLC0415 - loads the client

        async with Session(await self.asettings()) as session:
            yield session

    def test_connection(self) -> tuple[bool, str]:
        """What *Test connection* shows: whether a broker answers, or why not."""

        async def look(session: Session) -> str:
            answer = await session.metadata()
            return (
                f"Connected to cluster {answer.cluster_id}: {len(answer.brokers)} broker(s), "
                f"{len(answer.topics)} topic(s)"
            )

        try:
            return True, self.ask(look)
        except MemqError as exc:
            return False, explain(self.memq_conn_id, exc)

    # -- what is asked ----------------------------------------------------------------------

    def state(self, topic: str) -> TopicState:
        """What a topic holds now, and how far it is stored.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self.ask(lambda session: session.state(topic))

    def offsets(self, topic: str, at: datetime | None = None) -> list[PartitionOffsets]:
        """Start and end of each read partition; with `at` also the first offset since then.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: `at` has no time zone.
        """
        return self.ask(lambda session: session.offsets(topic, at))

    def offsets_for_time(self, topic: str, at: datetime) -> dict[int, int]:
        """The first offset published at a time or later, by read partition.

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
        """Every Message received before this time and acked is published; ms since 1970 UTC.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self.state(topic).watermark_ms

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Stored next offsets of a group; partitions without one are absent.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self.ask(lambda session: session.committed(group, topic))

    def notifications(self, topic: str, partition: int, start: int, end: int) -> Iterator[Found]:
        """The notifications of a range with their offsets, a page in memory at a time.

        Raises:
            InvalidRequestError: the topic has no such partition, or the range is none.
            OffsetOutOfRangeError: some of the range is not held.
            UnknownTopicError: there is no such topic.
        """
        from airflow_provider_memq.session import Session  # noqa: PLC0415 - loads the client
        from memq.client.sync import EventLoopThread  # noqa: PLC0415 - likewise

        async def open_session() -> Session:
            return Session(settings)

        async def next_page() -> list[Found] | None:
            return await anext(pages, None)

        settings = self.settings()
        loop = EventLoopThread("memq-airflow")
        try:
            session = loop.run(open_session())
            pages = session.pages(topic, partition, start, end)
            try:
                while (page := loop.run(next_page())) is not None:
                    yield from page
            finally:
                loop.run(session.__aexit__(None, None, None))
        finally:
            loop.close()

    def ask(self, question: Callable[[Session], Awaitable[T]]) -> T:
        """Open a session, await what a function of it returns, and close it."""
        from airflow_provider_memq.session import Session  # noqa: PLC0415 - loads the client
        from memq.client.sync import EventLoopThread  # noqa: PLC0415 - likewise

        async def run() -> T:
            async with Session(settings) as session:
                return await question(session)

        settings = self.settings()
        # A thread of its own: a caller may run inside an event loop, as `dags test` does.
        loop = EventLoopThread("memq-airflow")
        try:
            return loop.run(run())
        finally:
            loop.close()
