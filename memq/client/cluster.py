"""Which broker to ask: discovery, connections and retries.

A `Cluster` starts from a few seed addresses and learns the brokers from any of them. It keeps one
connection per broker, and the topics that were asked for, for up to `METADATA_AGE_S`. A caller that
is told `NotHostedError` without an address refreshes the topic and asks its new host.

Every call has one deadline. Inside it, retriable errors are tried again at another broker, and
after a back-off with full jitter once all were asked. A `NotHostedError` that names an address is
followed, at once the first time. What is not retriable, and the last error at the deadline, is
raised. A call that has tried for some seconds says so in the log, so that nobody waits in the dark.

One event loop, not thread safe.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypedDict

from memq.client.broker_choice import BrokerChoice
from memq.client.connection import BrokerConnection, parse_address
from memq.client.credentials import BorrowedCredentials
from memq.client.profile import Connection, connection_of
from memq.client.security import Security, security_values
from memq.core.access.principals import ID_DIGITS, producer_suffix
from memq.core.named_values import NO_VALUES
from memq.core.wire.messages import (
    BrokerInfo,
    DescribeCluster,
    DescribeClusterAnswer,
    Metadata,
    MetadataAnswer,
    Struct,
    TopicInfo,
)
from memq.errors import (
    ClosedError,
    ConfigError,
    MemqError,
    NotHostedError,
    ProtocolError,
    RequestTimeoutError,
    UnauthorizedError,
    UnavailableError,
)
from memq.runtime.retry import Retry, RetryLog
from memq.runtime.system import SYSTEM, Runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from memq.client.connection import Body
    from memq.core.named_values import GivenValues

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0  # a dead host costs this much before the next is tried
ANY_BROKER_ATTEMPT_S = 5.0  # where any broker will do, none is waited for longer than this
METADATA_AGE_S = 300.0  # brokers that are added are found by then, by clients that lack nothing
MAX_CACHED_TOPICS = 1_000  # a client uses a few; the oldest goes, and costs one more request


def parse_bootstrap(bootstrap: str) -> list[str]:
    """Parse a comma separated list of addresses, and check them.

    Raises:
        ConfigError: there is none, or one is malformed.
    """
    if not isinstance(bootstrap, str):
        raise ConfigError(
            f"bootstrap {bootstrap!r} is no text; write it like 'broker-1:6367,broker-2:6367', and "
            "options as keyword arguments"
        )
    addresses = [part.strip() for part in bootstrap.split(",") if part.strip()]
    if not addresses:
        raise ConfigError(
            f"bootstrap {bootstrap!r} names no broker; write it like 'broker-1:6367,broker-2:6367'"
        )
    for address in addresses:
        parse_address(address)
    return list(dict.fromkeys(addresses))


class ClusterArguments(TypedDict, total=False):
    """How brokers are reached; see `Cluster`."""

    client: str
    token: str
    zone: str
    storage_options: GivenValues
    security: GivenValues
    request_timeout_s: float
    inherit: bool


class Cluster:
    """The brokers, as one client sees them.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None as in `connection_of`.
        client: free text that names this client in the brokers' logs.
        token: credential; empty where the brokers ask for none.
        zone: where this client runs; empty as in `connection_of`.
        storage_options: of the object store, for those who read objects of its topics; none as in
            `connection_of`.
        security: what TLS needs, and who logs in; see `Security`. Nothing as in `connection_of`.
        request_timeout_s: deadline of a call that is given none.
        group: of the consumer whose cluster it is; empty for none.
        inherit: take what is not given from the environment and the profile; a program that acts
            for others does not, and reads no objects.
        sleep: waits for seconds.
        runtime: clocks, chance and threads, for all that is built around this cluster.

    Attributes:
        storage_options: with which objects of its topics are read.
        throttled_ms: for how long brokers let this client wait so far, by its quotas.
        borrowed: credentials for these, where brokers hand them out.
        principal: who this client is for the broker to which it connected last.
    """

    def __init__(
        self,
        bootstrap: str | None,
        *,
        client: str = "",
        token: str = "",
        zone: str = "",
        storage_options: GivenValues = NO_VALUES,
        security: GivenValues = NO_VALUES,
        request_timeout_s: float = 30.0,
        group: str = "",
        inherit: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.runtime = runtime
        self._sleep = sleep
        if inherit:
            connection = connection_of(bootstrap, token, zone, storage_options, security)
        else:
            secure = security_values(security)
            connection = Connection(bootstrap=bootstrap or "", token=token, security=secure)
        self.seeds = parse_bootstrap(connection["bootstrap"])
        self.request_timeout_s = request_timeout_s
        self.brokers: list[BrokerInfo] = []
        self.cluster_id = ""
        self.throttled_ms = 0
        self._client = client
        self._group = group
        self._token = connection["token"]
        self._zone = connection.get("zone", "")
        self.storage_options = connection.get("storage_options", NO_VALUES)
        self.borrowed = BorrowedCredentials()
        self._security = Security.parse(connection.get("security", NO_VALUES))
        self.principal = ""  # as the broker said to which it connected last
        self._choice = BrokerChoice(self._zone, runtime)
        self._clock = runtime.mono_s
        self._topics: dict[str, TopicInfo] = {}
        self._versions: dict[str, str] = {}  # of these, where they have one
        self._told_s = self._clock()  # when brokers were told last
        self._connections: dict[str, asyncio.Task[BrokerConnection]] = {}
        self._retry_log = RetryLog(log)
        self._closed = False

    def __repr__(self) -> str:
        live = sum(map(_is_open, list(self._connections.values())))
        state = "closed" if self._closed else f"{live} connections"
        return (
            f"<Cluster {','.join(self.seeds)} [{state} | {len(self.brokers)} brokers | "
            f"{len(self._topics)} topics]>"
        )

    async def topic(
        self,
        name: str,
        *,
        refresh: bool = False,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> TopicInfo:
        """Return a topic with its hosts and schemas; remembered until `refresh` or `forget`.

        With `create` a broker that may do so makes a topic that does not exist.

        Raises:
            UnknownTopicError: there is no such topic.
            MemqError: as `call`.
        """
        known = self._topics.get(name)
        if known is not None and not refresh and self._clock() < self._told_s + METADATA_AGE_S:
            return known
        return self._told(name, await self.metadata([name], create=create, timeout_s=timeout_s))

    async def next_topic(self, name: str, wait_s: float) -> TopicInfo:
        """Return a topic as soon as it has changed, or when `wait_s` are over.

        Raises:
            UnknownTopicError: there is no such topic any more.
            MemqError: as `call`.
        """
        known = self._versions.get(name, "")
        request = Metadata(topics=[name], known=known, max_wait_ms=int(wait_s * 1000))
        answer, _ = await self.call(request, wait_s=wait_s)
        assert isinstance(answer, MetadataAnswer)  # noqa: S101 - the wire checked the type
        self._adopt(answer)
        return self._told(name, answer)

    def moves(self, name: str) -> bool:
        """Return whether a known topic may move between brokers, so `next_topic` may wait."""
        return name in self._versions

    def forget(self, name: str) -> None:
        """Ask for a topic again when it is wanted next: what is known of it is over."""
        self._topics.pop(name, None)

    def _told(self, name: str, answer: MetadataAnswer) -> TopicInfo:
        if [topic.config.name for topic in answer.topics] != [name]:
            raise ProtocolError(f"asked for topic {name!r}, but the broker answered {answer!r}")
        self._remember(answer.topics[0], answer.version)
        return answer.topics[0]

    def _remember(self, topic: TopicInfo, version: str = "") -> None:
        name = topic.config.name
        for known in (self._topics, self._versions):
            known.pop(name, None)
            while len(known) >= MAX_CACHED_TOPICS:
                del known[next(iter(known))]
        self._topics[name] = topic
        if version:
            self._versions[name] = version

    async def metadata(
        self, topics: list[str] | None, *, create: bool = False, timeout_s: float | None = None
    ) -> MetadataAnswer:
        """Brokers and the topics named (None: all) as any broker knows them.

        All topics may take several requests; a topic that is made or deleted meanwhile is there
        or not.

        Raises:
            UnknownTopicError: there is no such topic.
            MemqError: as `call`.
        """
        budget_s = self.request_timeout_s if timeout_s is None else timeout_s
        deadline_s = self._clock() + budget_s
        found: list[TopicInfo] = []
        while True:
            after = found[-1].config.name if found else ""
            request = Metadata(topics=topics, create=create, after=after)
            answer, _ = await self.call(request, timeout_s=deadline_s - self._clock())
            assert isinstance(answer, MetadataAnswer)  # noqa: S101 - the wire checked the type
            found += answer.topics
            if not answer.more:
                break
            if not answer.topics or answer.topics[-1].config.name <= after:
                raise ProtocolError(f"asked for topics after {after!r}, the broker goes back")
        self._adopt(answer)
        if topics is None:
            for topic in found:
                self._remember(topic)
        answer.topics = found
        return answer

    def _adopt(self, answer: MetadataAnswer) -> None:
        self.brokers = answer.brokers
        self.cluster_id = answer.cluster_id
        self._choice.known(answer.brokers)
        self._told_s = self._clock()

    def near(self) -> Collection[str]:
        """Addresses of the brokers in this client's zone, as told last."""
        return self._choice.near()

    def reader(self, topic: TopicInfo) -> str:
        """Address of the broker to read a topic at; empty when none is known."""
        return self._choice.reader(topic.queue_address)

    def retry(self, timeout_s: float) -> Retry:
        """Make the attempts of a call that consists of several; log them like those of others."""
        return Retry(timeout_s, self.runtime, log=self._retry_log)

    async def connection(self, address: str) -> BrokerConnection:
        """Return the connection to a broker; open it once for all callers when there is none.

        Raises:
            UnavailableError: the broker cannot be reached.
            UnauthorizedError: it refuses the token.
            ClosedError: this cluster was closed.
        """
        if self._closed:
            raise ClosedError("this client was closed")
        opening = self._connections.get(address)
        if opening is None or (opening.done() and not _is_open(opening)):
            self._connections = {
                other: task
                for other, task in self._connections.items()
                if not task.done() or _is_open(task)
            }
            opening = self._connections[address] = asyncio.ensure_future(self._connect(address))
        # One caller that gives up must not take the attempt from the others.
        return await asyncio.shield(opening)

    async def call(
        self, header: Struct, *, timeout_s: float | None = None, wait_s: float = 0.0
    ) -> tuple[Struct, memoryview]:
        """Ask any broker until one answers: header and body of the answer.

        Args:
            header: of the request.
            timeout_s: deadline of the whole call; None for `request_timeout_s`.
            wait_s: how long the broker may take on purpose, on top of it.

        Raises:
            RequestTimeoutError: no answer within the deadline.
            UnavailableError: no broker could be reached within the deadline.
            MemqError: the typed error that the broker named.
        """
        budget_s = self.request_timeout_s if timeout_s is None else timeout_s
        retry = self.retry(budget_s + wait_s)
        pointed_to, redirected = "", False
        while True:
            target = pointed_to or self._choice.first(self._known())
            limit_s = retry.left_s if pointed_to else self._limit_s(retry, wait_s)
            try:
                return await self.attempt(target, header, timeout_s=limit_s)
            except NotHostedError as error:
                pointed_to, at_once = error.address, bool(error.address) and not redirected
                redirected = redirected or at_once
                delay_s = retry.after(error, at_once=at_once, retriable=True)
            except MemqError as error:
                # While tokens are replaced one broker may refuse what the others accept.
                refused = isinstance(error, UnauthorizedError)
                if not pointed_to and (error.retriable or refused):
                    self._choice.failed(target)
                others = not pointed_to and any(map(self._choice.awake, self._known()))
                pointed_to = ""  # whom another broker pointed to may be gone
                delay_s = retry.after(error, at_once=others, retriable=(refused and others) or None)
            await self._sleep(delay_s)

    async def attempt(
        self,
        address: str,
        header: Struct,
        body: Body = b"",
        *,
        body_crc: int | None = None,
        timeout_s: float,
    ) -> tuple[Struct, memoryview]:
        """Ask a broker once: header and body of the answer.

        Raises:
            NotHostedError: another broker must be asked.
            RequestTimeoutError: no answer in time.
            UnavailableError: the broker cannot be reached.
            MemqError: the typed error that the broker named.
        """
        started_s = self._clock()
        try:
            connection = await self._connected(address, timeout_s)
            left_s = max(0.0, timeout_s - (self._clock() - started_s))
            answer = await connection.request(header, body, body_crc=body_crc, timeout_s=left_s)
        except (UnavailableError, RequestTimeoutError):
            self._choice.failed(address)
            raise
        self._choice.answered(address)
        return answer

    async def status(self, address: str, *, timeout_s: float) -> DescribeClusterAnswer:
        """Ask a broker for its status, and which others it sees.

        It is asked on a connection of its own: one with Messages is not read while they wait.

        Raises:
            as `attempt`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect(address)
                try:
                    request = DescribeCluster(own=True)
                    answer, _ = await connection.request(request, timeout_s=timeout_s)
                finally:
                    await connection.close()
        except TimeoutError as exc:
            self._choice.failed(address)
            raise RequestTimeoutError(f"no answer within {timeout_s:.3g} s") from exc
        assert isinstance(answer, DescribeClusterAnswer)  # noqa: S101 - the wire checked the type
        return answer

    async def close(self) -> None:
        """Close every connection. May be called again."""
        self._closed = True
        connections, self._connections = self._connections, {}
        for opening in connections.values():
            opening.cancel()
        await asyncio.gather(*connections.values(), return_exceptions=True)
        for opening in filter(_is_open, connections.values()):
            await opening.result().close()

    def _known(self) -> list[str]:
        """Return the addresses of all brokers that are known, the seeds first."""
        return list(dict.fromkeys([*self.seeds, *(broker.address for broker in self.brokers)]))

    def _limit_s(self, retry: Retry, wait_s: float) -> float:
        """Return how long the next attempt may take: where others could answer, not all that is
        left.
        """
        left_s = max(0.0, retry.left_s - wait_s)
        others = sum(map(self._choice.awake, self._known())) > 1
        limit_s = min(left_s / 2 if others else left_s, ANY_BROKER_ATTEMPT_S)
        return min(retry.left_s, limit_s + wait_s)

    async def _connected(self, address: str, limit_s: float) -> BrokerConnection:
        try:
            async with asyncio.timeout(limit_s):
                return await self.connection(address)
        except TimeoutError as exc:
            raise RequestTimeoutError(
                f"broker {address} could not be reached within {limit_s:.3g} s"
            ) from exc

    def new_producer_id(self) -> str:
        """Make up a producer id that nobody else has.

        Brokers that know who this client is let nobody else use an id that ends as its do.
        """
        suffix = producer_suffix(self.principal) if self.principal else ""
        return self.runtime.token_hex((ID_DIGITS - len(suffix)) // 2) + suffix

    def _throttled(self, wait_ms: int) -> None:
        self.throttled_ms += wait_ms

    async def _connect(self, address: str) -> BrokerConnection:
        connection = await BrokerConnection.open(
            address,
            client=self._client,
            token=self._token,
            security=self._security,
            zone=self._zone,
            group=self._group,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            on_throttled=self._throttled,
        )
        self.principal = connection.principal
        return connection


def _is_open(opening: asyncio.Task[BrokerConnection]) -> bool:
    """Return whether an attempt to connect has given a connection that is open."""
    done = opening.done() and not opening.cancelled()
    # Its error, looked at here, goes to those who wait: where they all gave up, to nobody.
    return done and opening.exception() is None and not opening.result().closed
