"""Figures of all topics and groups of a cluster, each from what brokers keep in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from memq.core.wire import messages as m
from memq.errors import ForbiddenError, MemqError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from memq.client.cluster import Cluster

T = TypeVar("T")

ASK_S = 3.0  # for which each broker is waited for
MAX_CLIENTS = 5_000  # connections of a broker that are listed


@dataclass
class TopicRow:
    """A topic; None is unknown, other than 0.

    Attributes:
        topic: its name.
        records_in_s: LogMessages published, per second.
        bytes_in_s: bytes of their Batches, per second.
        records_out_s: LogMessages that groups committed, per second.
        batches: Batches retained.
        records: LogMessages in them.
        size_bytes: bytes of their objects.
        groups: how many groups read it, of those that the client may see.
        worst_group: that of them with the most to read; empty without any.
        lag_records: LogMessages that it has to read.
        lag_s: age of the oldest of them, in seconds.
    """

    topic: str
    records_in_s: float | None = None
    bytes_in_s: float | None = None
    records_out_s: float | None = None
    batches: int | None = None
    records: int | None = None
    size_bytes: int | None = None
    groups: int | None = None
    worst_group: str = ""
    lag_records: int | None = None
    lag_s: float | None = None


@dataclass
class GroupRow:
    """A group of a topic; None is unknown, other than 0."""

    group: str
    topic: str
    members: int
    lag_records: int | None
    lag_s: float | None
    records_out_s: float | None


@dataclass
class Figures:
    """What all brokers know.

    Attributes:
        topics: sorted by name.
        groups: of these, where they were asked for.
        silent: why a broker did not tell, by its id; what it alone knows is unknown.
    """

    topics: list[TopicRow]
    groups: list[GroupRow]
    silent: dict[str, str] = field(default_factory=dict)


async def ask_each(
    cluster: Cluster, ask: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, str]]:
    """Ask each broker; return what each says, and why one does not, by broker id.

    Args:
        cluster: the brokers.
        ask: asks the one at an address.

    Raises:
        MemqError: no broker answers.
    """
    brokers = (await cluster.metadata([])).brokers
    found: dict[str, T] = {}
    silent: dict[str, str] = {}

    async def one(broker: m.BrokerInfo) -> None:
        try:
            found[broker.id] = await ask(broker.address)
        except MemqError as exc:
            if isinstance(exc, ForbiddenError | UnauthorizedError):
                raise
            silent[broker.id] = str(exc)

    await asyncio.gather(*map(one, brokers))
    return dict(sorted(found.items())), silent


async def figures(cluster: Cluster, *, list_groups: bool = False) -> Figures:
    """Ask each broker for the figures of its topics, and put them together.

    Raises:
        MemqError: no broker answers.
    """

    async def ask(address: str) -> list[m.TopicFigures]:
        found: list[m.TopicFigures] = []
        while True:
            request = m.DescribeTopics(
                after=found[-1].topic if found else "", list_groups=list_groups
            )
            answer, _ = await cluster.attempt(address, request, timeout_s=ASK_S)
            assert isinstance(answer, m.DescribeTopicsAnswer)  # noqa: S101 - the wire checked it
            found += answer.topics
            if not (answer.more and answer.topics):
                return found

    told, silent = await ask_each(cluster, ask)
    rows: dict[str, TopicRow] = {}
    groups: list[GroupRow] = []
    for each in (figures for of_broker in told.values() for figures in of_broker):
        _add(rows.setdefault(each.topic, TopicRow(each.topic)), each)
        groups += [_group_row(each.topic, group) for group in each.of_groups]
    return Figures([rows[name] for name in sorted(rows)], groups, silent)


def _add(row: TopicRow, said: m.TopicFigures) -> None:
    row.records_in_s = plus([row.records_in_s, said.records_in_s])
    row.bytes_in_s = plus([row.bytes_in_s, said.bytes_in_s])
    if said.coordinated:
        row.records_out_s, row.groups = said.records_out_s, said.groups
        row.batches, row.records, row.size_bytes = said.batches, said.records, said.size_bytes
        row.worst_group, row.lag_records, row.lag_s = (
            said.worst_group,
            said.lag_records,
            said.lag_s,
        )


def plus(numbers: Iterable[float | None]) -> float | None:
    """Sum those that are known; None when none is."""
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None


def _group_row(topic: str, said: m.GroupFigures) -> GroupRow:
    return GroupRow(
        said.group, topic, said.members, said.lag_records, said.lag_s, said.records_out_s
    )


async def connections(
    cluster: Cluster,
) -> tuple[dict[str, list[m.ConnectionInfo]], dict[str, str]]:
    """List the clients of each broker, up to `MAX_CLIENTS`; and why a broker does not tell.

    Raises:
        MemqError: no broker answers.
    """

    async def ask(address: str) -> list[m.ConnectionInfo]:
        found: list[m.ConnectionInfo] = []
        while True:
            request = m.ListConnections(after=found[-1].number if found else 0)
            answer, _ = await cluster.attempt(address, request, timeout_s=ASK_S)
            assert isinstance(answer, m.ListConnectionsAnswer)  # noqa: S101 - the wire checked it
            found += answer.connections
            if not (answer.more and answer.connections) or len(found) >= MAX_CLIENTS:
                return found[:MAX_CLIENTS]

    return await ask_each(cluster, ask)


async def describe_brokers(
    cluster: Cluster, lines: int
) -> tuple[dict[str, m.DescribeBrokerAnswer], dict[str, str]]:
    """Ask each broker for its options and lines of its access log; and why one does not tell.

    Raises:
        MemqError: no broker answers.
    """

    async def ask(address: str) -> m.DescribeBrokerAnswer:
        answer, _ = await cluster.attempt(address, m.DescribeBroker(lines=lines), timeout_s=ASK_S)
        assert isinstance(answer, m.DescribeBrokerAnswer)  # noqa: S101 - the wire checked it
        return answer

    return await ask_each(cluster, ask)
