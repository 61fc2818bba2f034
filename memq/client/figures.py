"""Figures of all topics and groups of a cluster, and its clients, put together from its brokers.

They are those of the protocol (`TopicFigures`, `GroupFigures`, `ConnectionInfo`), where None is not
known, other than 0. What a silent broker alone knows is not known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.wire import messages as m
from memq.errors import ForbiddenError, MemqError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memq.client.cluster import Cluster

ASK_S = 3.0  # for which each broker is waited for
MAX_PAGES = 20  # of a broker: all its topics and groups, and more clients than it has by default


class Told(NamedTuple):
    """What brokers said.

    Attributes:
        rows: in order.
        silent: why a broker did not tell all, by its id.
    """

    rows: list[Any]
    silent: dict[str, str]


async def ask_each(
    cluster: Cluster, request: m.Struct, following: Callable[[Any], m.Struct | None]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Ask each broker; return the answers of each, and why one does not tell, by broker id.

    Args:
        cluster: the brokers.
        request: for the first page.
        following: gives the request for the page after an answer; None at the end.

    Raises:
        MemqError: no broker answers, or this client may not ask.
    """
    brokers = (await cluster.metadata([])).brokers
    found: dict[str, list[Any]] = {}
    silent: dict[str, str] = {}

    async def ask(broker: m.BrokerInfo) -> None:
        answers: list[Any] = []
        asked: m.Struct | None = request
        try:
            while asked is not None and len(answers) < MAX_PAGES:
                answer, _ = await cluster.attempt(broker.address, asked, timeout_s=ASK_S)
                answers.append(answer)
                asked = following(answer)
        except (ForbiddenError, UnauthorizedError):
            raise
        except MemqError as exc:
            silent[broker.id] = str(exc)
        else:
            found[broker.id] = answers
            if asked is not None:
                silent[broker.id] = f"it has more than the first {MAX_PAGES} pages"

    await asyncio.gather(*map(ask, brokers))
    return dict(sorted(found.items())), silent


async def topic_figures(cluster: Cluster, *, list_groups: bool = False) -> Told:
    """Return the `TopicFigures` of all topics that the client may describe, sorted by name.

    Raises:
        MemqError: as `ask_each`.
    """

    def following(answer: m.DescribeTopicsAnswer) -> m.DescribeTopics | None:
        if not (answer.more and answer.topics):
            return None
        return m.DescribeTopics(after=answer.topics[-1].topic, list_groups=list_groups)

    told, silent = await ask_each(cluster, m.DescribeTopics(list_groups=list_groups), following)
    rows: dict[str, m.TopicFigures] = {}
    for each in (one for pages in told.values() for page in pages for one in page.topics):
        known = rows.get(each.topic)
        whole, part = (each, known) if known is None or each.coordinated else (known, each)
        if part is not None:
            whole.records_in_s = plus([whole.records_in_s, part.records_in_s])
            whole.bytes_in_s = plus([whole.bytes_in_s, part.bytes_in_s])
        rows[each.topic] = whole
    return Told([rows[name] for name in sorted(rows)], silent)


async def group_figures(cluster: Cluster) -> Told:
    """Return the `GroupFigures` of all groups that the client may describe.

    Raises:
        MemqError: as `ask_each`.
    """
    found = await topic_figures(cluster, list_groups=True)
    return found._replace(rows=[group for each in found.rows for group in each.of_groups])


async def connections(cluster: Cluster) -> Told:
    """Return the `ConnectionInfo` of all clients.

    Raises:
        MemqError: as `ask_each`.
    """

    def following(answer: m.ListConnectionsAnswer) -> m.ListConnections | None:
        rows = answer.connections
        return m.ListConnections(after=rows[-1].number) if answer.more and rows else None

    told, silent = await ask_each(cluster, m.ListConnections(), following)
    pages = [page for pages in told.values() for page in pages]
    return Told([each for page in pages for each in page.connections], silent)


async def describe_brokers(cluster: Cluster, lines: int = 0) -> Told:
    """Return the broker id and `DescribeBrokerAnswer` of each, with lines of its access log.

    Raises:
        MemqError: as `ask_each`.
    """
    told, silent = await ask_each(cluster, m.DescribeBroker(lines=lines), lambda _: None)
    return Told([(name, answers[0]) for name, answers in told.items()], silent)


def plus(numbers: Iterable[float | None]) -> float | None:
    """Sum those that are known; None when none is."""
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None
