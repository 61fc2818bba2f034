"""Administration: topics, offsets and consumer groups; `AdminClient` and `AsyncAdminClient`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.client.audit.reporter import report_moved
from memq.client.cluster import Cluster
from memq.client.lag import group_lag
from memq.client.resets import plan_reset
from memq.client.status import LAG_S, ClusterStatus, cluster_status
from memq.client.sync import EventLoopThread, SyncClient, sync, sync_close
from memq.client.topic import TopicClient
from memq.core.access.users import SALT_BYTES, new_user
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import MemqError, TopicRecreatedError, UnknownTopicError
from memq.reading.start import check_start, resolve, time_ms
from memq.runtime.system import SYSTEM, Runtime

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from typing import Self, Unpack

    import pyarrow as pa

    from memq.client.cluster import ClusterArguments
    from memq.client.lag import GroupLag
    from memq.client.resets import PlannedReset, Target
    from memq.core.access.rules import Operation, ResourceType, Rule
    from memq.reading.start import Start

log = logging.getLogger(__name__)

Schema = Any
"""A `pyarrow.Schema`, or the bytes of one that `serialize_schema` made."""


class Quota(NamedTuple):
    """How much a holder may ask of each broker.

    Attributes:
        holder: `User:NAME`, `client:NAME` or `group:NAME`; `*` for each without one of its own.
        limits: by name (`memq.core.access.quotas.LIMITS`).
        waited_s: for how many seconds each of them has let clients wait, since brokers began.
    """

    holder: str
    limits: dict[str, int]
    waited_s: dict[str, float]


class AsyncAdminClient:
    """Administers a cluster, from one event loop. Use it with `async with`, or `close` it.

    Every call may raise `UnavailableError` or `RequestTimeoutError` when no broker answers within
    the request timeout, and `UnauthorizedError` when the token is refused.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        token: credential; empty where the brokers ask for none.
        zone: where this client runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: as for every client, though no call here reads objects.
        security: what TLS needs, and who logs in, as a table or as "NAME=VALUE,NAME=VALUE"; none
            for those of `MEMQ_SECURITY`, or of the profile.
        client: names this client in the brokers' logs.
        request_timeout_s: how long brokers are tried before a call fails.
        runtime: clocks, chance and threads.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        runtime: Runtime = SYSTEM,
        **cluster: Unpack[ClusterArguments],
    ) -> None:
        self._cluster = Cluster(bootstrap, runtime=runtime, **cluster)

    def __repr__(self) -> str:
        return f"<AsyncAdminClient {self._cluster!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._cluster.close()

    # -- topics -----------------------------------------------------------------------------

    async def create_topic(
        self, /, name: str, *, schema: Schema | None = None, **options: object
    ) -> m.TopicInfo:
        """Create a topic.

        Args:
            name: of the topic.
            schema: of a typed topic; None for the default schema.
            **options: as in `memq topic create`, such as `batch_age="500ms"`.

        Raises:
            TopicExistsError: there is a topic of that name.
            ConfigError: an option is unknown or out of its limits.
            SchemaMismatchError: the schema cannot be stored.
            InvalidRequestError: the name cannot be a topic.
        """
        config = TopicConfig.create(name, schema=_schema_bytes(schema), **options)
        request = m.CreateTopic(config=config, request_id=self._cluster.runtime.token_hex(8))
        answer, _ = await self._cluster.call(request)
        assert isinstance(answer, m.TopicAnswer)  # noqa: S101 - the wire checked the type
        return answer.topic

    async def alter_topic(
        self, /, name: str, *, schema: Schema | None = None, **options: object
    ) -> m.TopicInfo:
        """Change options of a topic, or extend the schema of a typed one.

        Args:
            name: of the topic.
            schema: the old one with more nullable columns at its end; None to keep it.
            **options: as in `memq topic alter`.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: an option is unknown, out of its limits, or may not change that way.
            SchemaMismatchError: the schema does not extend the old one.
        """
        texts = {option: _option_text(value) for option, value in options.items()}
        request = m.AlterTopic(topic=name, options=texts, schema=_schema_bytes(schema))
        answer: m.TopicAnswer
        answer, _ = await self._queue(name).ask(request)
        return answer.topic

    async def delete_topic(self, name: str, *, topic_id: str = "") -> None:
        """Delete a topic with its Batches, notifications and group offsets.

        A topic that somebody makes under this name meanwhile stays.

        Args:
            name: of the topic.
            topic_id: that is to go, from its `TopicInfo`; empty for the one that is there now.

        Raises:
            UnknownTopicError: there is no such topic.
            TopicRecreatedError: the topic is another topic id than the one given.
        """
        if topic_id:
            await self._cluster.call(m.DeleteTopic(topic=name, topic_id=topic_id))
            return
        found = await self.describe_topic(name)
        # It was there: if it is not any more, an attempt whose answer was lost has deleted it.
        with contextlib.suppress(UnknownTopicError, TopicRecreatedError):
            await self.delete_topic(name, topic_id=found.topic_id)

    async def list_topics(self) -> list[m.TopicInfo]:
        """List all topics, sorted by name; those of MemQ itself begin with an underscore."""
        answer = await self._cluster.metadata(None)
        return sorted(answer.topics, key=lambda topic: topic.config.name)

    async def describe_topic(self, name: str) -> m.TopicInfo:
        """Describe a topic: its options, schemas and where it lives.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return await self._cluster.topic(name, refresh=True)

    async def trim_topic(
        self, topic: str, offsets: Mapping[int, int], *, execute: bool = False
    ) -> dict[int, int]:
        """Forget the oldest Batches of a topic; those younger than its `dedup_window` stay.

        Args:
            topic: the topic.
            offsets: the first offset that is to stay, by read partition.
            execute: False only tells what would stay.

        Returns:
            The first offset that stays, by read partition.

        Raises:
            UnknownTopicError: there is no such topic.
            InvalidRequestError: an offset is not published, or there is no such partition.
        """
        wanted = [m.PartitionOffset(*each) for each in offsets.items()]
        trim = m.TrimTopic(topic=topic, offsets=wanted, execute=execute)
        answer, _ = await self._queue(topic).ask(trim)
        return {each.partition: each.offset for each in answer.offsets}

    # -- the cluster ------------------------------------------------------------------------

    async def describe_cluster(self) -> m.DescribeClusterAnswer:
        """Describe the live brokers, what each of them owns, and what is moving.

        Raises:
            InvalidRequestError: the broker governs itself.
        """
        answer, _ = await self._cluster.call(m.DescribeCluster())
        assert isinstance(answer, m.DescribeClusterAnswer)  # noqa: S101 - the wire checked the type
        return answer

    async def status(self, timeout_s: float = 5.0) -> ClusterStatus:
        """Ask every broker for its status and that of its services, and name the silent ones.

        It ends within `timeout_s`, also when brokers are frozen. `problems()` of it says in words
        what is wrong. While something is, the lag of groups is not looked for.

        Raises:
            UnavailableError: no broker answers.
        """
        found = await cluster_status(self._cluster, timeout_s - LAG_S)
        if found.problems():
            return found
        try:
            async with asyncio.timeout(LAG_S):
                lags = [each for each in await self.lag() if each.partitions]
        except (MemqError, TimeoutError):
            return found
        return found._replace(worst_lag=max(lags, key=lambda lag: lag.total.records, default=None))

    async def drain_broker(self, broker_id: str, *, withdraw: bool = False) -> None:
        """Have a broker give away what it owns, and be given nothing; it goes on to live.

        It is answered when the request stands; `describe_cluster` shows how far it is.

        Args:
            broker_id: the broker; it need not live.
            withdraw: take an earlier request back.

        Raises:
            InvalidRequestError: the broker that is asked governs itself, or there is no such one.
        """
        await self._cluster.call(m.DrainBroker(broker_id=broker_id, withdraw=withdraw))

    async def rebalance_cluster(self) -> None:
        """Have the loads of brokers evened out now, rather than at the next interval.

        Raises:
            InvalidRequestError: the broker governs itself.
        """
        await self._cluster.call(m.RebalanceCluster())

    async def finalize_upgrade(self, level: int) -> None:
        """Raise the active feature level, for good: no older version starts afterwards.

        Raises:
            InvalidRequestError: a broker does not know it, or the active one is higher.
        """
        await self._cluster.call(m.FinalizeUpgrade(level=level))

    # -- offsets ----------------------------------------------------------------------------

    async def offsets(self, topic: str, at: datetime | None = None) -> list[m.PartitionOffsets]:
        """Start and end of each read partition; with `at` also the first offset since then.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: `at` has no time zone.
        """
        return await self._queue(topic).offsets(None if at is None else time_ms(at))

    async def watermark(self, topic: str) -> m.WatermarkAnswer:
        """Return how far a topic is stored: what was acked before these times is published.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return await self._queue(topic).watermark()

    # -- groups -----------------------------------------------------------------------------

    async def groups(self, topic: str | None = None) -> list[m.GroupInfo]:
        """List the consumer groups of a topic, or of all, with stored offsets and live members.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        if topic is not None:
            return await self._queue(topic).groups()
        groups: list[m.GroupInfo] = []
        for each in await self.list_topics():
            with contextlib.suppress(UnknownTopicError):  # deleted meanwhile, with its groups
                groups += await self._queue(each.config.name).groups()
        return groups

    async def lag(self, topic: str | None = None, group: str | None = None) -> list[GroupLag]:
        """Return how much consumer groups have not read, in Batches, records, bytes and seconds.

        Args:
            topic: only groups of this topic.
            group: only this group, in every topic that it reads.

        Returns:
            A row for each group and topic, sorted by topic and group; none for a group that has
            neither committed offsets nor live members.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        by_topic: dict[str, list[m.GroupInfo]] = {}
        for info in await self.groups(topic):
            if group is None or info.group == group:
                by_topic.setdefault(info.topic, []).append(info)
        found: list[GroupLag] = []
        for name, infos in by_topic.items():
            try:
                found += await self._lags_of(name, infos)
            except UnknownTopicError:
                if topic is not None:
                    raise
                # Deleted meanwhile, and its groups with it.
        return found

    async def _lags_of(self, topic: str, infos: list[m.GroupInfo]) -> list[GroupLag]:
        """Return the lag of some groups of one topic."""
        queue = self._queue(topic)
        retained = await queue.offsets()
        return [group_lag(info, retained, await queue.lags(info.offsets)) for info in infos]

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """Stored next offsets of a group; partitions without one are absent.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return await self._queue(topic).committed(group)

    async def plan_reset(
        self,
        group: str,
        topic: str,
        target: Target,
        partitions: Collection[int] = (),
        *,
        at: datetime | None = None,
    ) -> list[PlannedReset]:
        """Say where a group would go on; `reset_offsets` makes it do so.

        Args:
            group: the group.
            topic: the topic.
            target: where it is to go.
            partitions: only these; all when none is named.
            at: the time, for the target "datetime".

        Raises:
            InvalidRequestError: there is no such partition, or what has no offset is to be shifted.
            UnknownTopicError: there is no such topic.
        """
        retained, committed = await self.offsets(topic, at), await self.committed(group, topic)
        return plan_reset(topic, target, retained, committed, partitions)

    async def lag_history(self, group: str, topic: str) -> m.FetchLagHistoryAnswer:
        """Return how the lag of a group went in the last six hours, as far as that is kept.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        answer: m.FetchLagHistoryAnswer
        answer, _ = await self._queue(topic).ask(m.FetchLagHistory(topic=topic, group=group))
        return answer

    async def reset_offsets(
        self, group: str, topic: str, to: Start, *, dry_run: bool = False
    ) -> dict[int, int]:
        """Make a group go on elsewhere; it must have no live members.

        The audit is told what it steps over. Where that fails it is a warning in the log.

        Args:
            group: the group; a new name is fine.
            topic: the topic.
            to: "earliest", "latest" or a time, for all partitions; or next offsets by partition,
                for those that are named.
            dry_run: only say what would be stored.

        Returns:
            The next offsets, by partition.

        Raises:
            InvalidRequestError: the group has live members, or there is no such partition.
            OffsetOutOfRangeError: an offset is not retained.
            UnknownTopicError: there is no such topic.
            ConfigError: `to` is none of these.
        """
        check_start(to)
        queue = self._queue(topic)
        partitions = to if isinstance(to, Mapping) else [p.partition for p in await queue.offsets()]
        offsets = await resolve(queue, to, partitions)
        if not dry_run:
            before = await queue.committed(group)
            name = self._cluster.runtime.token_hex(8)
            await queue.commit(group, "", offsets, committer=name, sequence=1)
            await self._tell_audit(queue, group, before, offsets)
        return offsets

    async def delete_group(self, group: str, topic: str) -> None:
        """Forget a group's stored offsets; it must have no live members.

        Raises:
            UnknownGroupError: the topic has no such group.
            InvalidRequestError: the group has live members.
            UnknownTopicError: there is no such topic.
        """
        await self._queue(topic).ask(m.DeleteGroup(group=group, topic=topic))

    # -- users, rules and quotas ------------------------------------------------------------

    async def users(self) -> list[str]:
        """List the names of the users that have a password."""
        answer, _ = await self._cluster.call(m.ListUsers())
        assert isinstance(answer, m.ListUsersAnswer)  # noqa: S101 - the wire checked the type
        return answer.users

    async def create_user(self, name: str, password: str) -> None:
        """Create a user, who may then do what rules allow to `User:NAME`.

        Brokers are given what verifies the password, not the password.

        Raises:
            InvalidRequestError: there is one of that name, or the password is too short.
        """
        await self._put_user(name, password, replace=False)

    async def alter_user(self, name: str, password: str) -> None:
        """Change the password of a user; its connections end.

        Raises:
            InvalidRequestError: there is no such user, or the password is too short.
        """
        await self._put_user(name, password, replace=True)

    async def _put_user(self, name: str, password: str, *, replace: bool) -> None:
        salt = bytes.fromhex(self._cluster.runtime.token_hex(SALT_BYTES))
        user = await asyncio.to_thread(new_user, name, password, salt)
        await self._cluster.call(m.PutUser(user=user, replace=replace))

    async def delete_user(self, name: str) -> None:
        """Delete a user; its connections end. Rules about it stay.

        Raises:
            InvalidRequestError: there is no such user.
        """
        await self._cluster.call(m.DeleteUser(name=name))

    async def rules(self) -> list[Rule]:
        """List all rules."""
        answer, _ = await self._cluster.call(m.ListRules())
        assert isinstance(answer, m.ListRulesAnswer)  # noqa: S101 - the wire checked the type
        return answer.rules

    async def alter_rules(
        self, *, add: Sequence[Rule] = (), remove: Sequence[Rule] = ()
    ) -> m.AlterRulesAnswer:
        """Remove rules, and add others, at once; return how many that were.

        Raises:
            InvalidRequestError: one is about nothing.
            LimitReachedError: there are too many.
        """
        answer, _ = await self._cluster.call(m.AlterRules(add=[*add], remove=[*remove]))
        assert isinstance(answer, m.AlterRulesAnswer)  # noqa: S101 - the wire checked the type
        return answer

    async def check_access(
        self,
        principal: str,
        operation: Operation,
        resource: ResourceType,
        name: str,
        host: str = "",
    ) -> m.CheckAccessAnswer:
        """Say whether a principal may do something, and which rule decides.

        Args:
            principal: such as `User:alice`.
            operation: such as `read`.
            resource: its type, such as `topic`.
            name: of the resource; `cluster` for the cluster.
            host: address of the client; without one, rules that allow only some hosts do not count.
        """
        request = m.CheckAccess(
            principal=principal, host=host, operation=operation, type=resource, name=name
        )
        answer, _ = await self._cluster.call(request)
        assert isinstance(answer, m.CheckAccessAnswer)  # noqa: S101 - the wire checked the type
        return answer

    async def quotas(self) -> list[Quota]:
        """List the quotas, and for how long they have let clients wait.

        Raises:
            UnavailableError: a broker does not answer.
        """
        brokers = (await self._cluster.metadata([])).brokers
        timeout_s = self._cluster.request_timeout_s
        limits: dict[str, dict[str, int]] = {}
        waited: defaultdict[tuple[str, str], float] = defaultdict(float)
        for broker in brokers:
            answer, _ = await self._cluster.attempt(
                broker.address, m.ListQuotas(), timeout_s=timeout_s
            )
            assert isinstance(answer, m.ListQuotasAnswer)  # noqa: S101 - the wire checked the type
            limits = answer.quotas
            for holder, seconds in answer.waited_s.items():
                for limit, waited_s in seconds.items():
                    waited[holder, limit] += waited_s
        return [
            Quota(holder, limits[holder], {each: waited[holder, each] for each in limits[holder]})
            for holder in sorted(limits)
        ]

    async def alter_quota(self, holder: str, limits: Mapping[str, int | None]) -> None:
        """Set limits of a holder, at each broker.

        Args:
            holder: `User:NAME`, `client:NAME` or `group:NAME`; the name `*` is for each that has
                none of its own.
            limits: values by name (`memq.core.access.quotas.LIMITS`); others stay. None takes one
                away, and no limits at all the whole quota.

        Raises:
            InvalidRequestError: there is no such holder or limit.
        """
        await self._cluster.call(m.AlterQuota(holder=holder, limits=dict(limits)))

    @staticmethod
    async def _tell_audit(
        queue: TopicClient, group: str, before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        """Report where a group goes on. Without it the audit calls what it skips unreported."""
        moves = {number: (before.get(number), new) for number, new in after.items()}
        try:
            await report_moved(queue, group, moves)
        except MemqError as exc:
            log.warning(
                "group %s of %s is moved; the audit could not be told what it steps over: %s",
                group,
                queue.topic,
                exc,
            )

    @property
    def cluster(self) -> Cluster:
        """The brokers, for others that look at them with the same login."""
        return self._cluster

    def _queue(self, topic: str) -> TopicClient:
        return TopicClient(self._cluster, topic)


class AdminClient(SyncClient[AsyncAdminClient]):
    """Administers a cluster, from any thread. Use it with `with`, or `close` it.

    Its methods are those of `AsyncAdminClient`, and so are its arguments and errors.
    """

    def __init__(self, bootstrap: str | None = None, **cluster: Unpack[ClusterArguments]) -> None:
        super().__init__(AsyncAdminClient(bootstrap, **cluster), EventLoopThread("memq-admin"))

    close = sync_close(AsyncAdminClient.close)
    finalize_upgrade = sync(AsyncAdminClient.finalize_upgrade)
    create_topic = sync(AsyncAdminClient.create_topic)
    alter_topic = sync(AsyncAdminClient.alter_topic)
    delete_topic = sync(AsyncAdminClient.delete_topic)
    trim_topic = sync(AsyncAdminClient.trim_topic)
    list_topics = sync(AsyncAdminClient.list_topics)
    describe_topic = sync(AsyncAdminClient.describe_topic)
    describe_cluster = sync(AsyncAdminClient.describe_cluster)
    status = sync(AsyncAdminClient.status)
    drain_broker = sync(AsyncAdminClient.drain_broker)
    rebalance_cluster = sync(AsyncAdminClient.rebalance_cluster)
    offsets = sync(AsyncAdminClient.offsets)
    watermark = sync(AsyncAdminClient.watermark)
    groups = sync(AsyncAdminClient.groups)
    lag = sync(AsyncAdminClient.lag)
    committed = sync(AsyncAdminClient.committed)
    plan_reset = sync(AsyncAdminClient.plan_reset)
    lag_history = sync(AsyncAdminClient.lag_history)
    reset_offsets = sync(AsyncAdminClient.reset_offsets)
    delete_group = sync(AsyncAdminClient.delete_group)
    users = sync(AsyncAdminClient.users)
    create_user = sync(AsyncAdminClient.create_user)
    alter_user = sync(AsyncAdminClient.alter_user)
    delete_user = sync(AsyncAdminClient.delete_user)
    rules = sync(AsyncAdminClient.rules)
    alter_rules = sync(AsyncAdminClient.alter_rules)
    check_access = sync(AsyncAdminClient.check_access)
    quotas = sync(AsyncAdminClient.quotas)
    alter_quota = sync(AsyncAdminClient.alter_quota)


def _schema_bytes(schema: pa.Schema | bytes | None) -> bytes | None:
    if schema is None or isinstance(schema, bytes):
        return schema
    from memq.core.format.schema import serialize_schema  # noqa: PLC0415 - slow to load

    return serialize_schema(schema)


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
