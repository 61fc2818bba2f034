"""Telling the audit what a job has consumed.

A job that has read a range of offsets, and has put the result where it belongs, reports the range:
then `memq audit` can say whether everything that is stored was consumed. (A consumer of a group
does so by itself, for what it commits.) Reporting the same range again does no harm: the audit
counts that it was consumed again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.client.audit.backlog import ReportBacklog
from memq.client.audit.sender import ReportSender
from memq.client.backoff import full_jitter_s
from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread
from memq.core.audit.reports import ConsumedReport, check_consumed
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memq.client.audit.backlog import Outgoing
    from memq.client.topic import TopicClient

MAX_MESSAGE_BYTES = 512 << 10  # of reports in one Message; the topic takes 4 MiB
TIMEOUT_S = 30.0  # long enough to ride out the restart of a broker


def report_consumed(
    bootstrap: str | None,
    reports: Sequence[ConsumedReport],
    *,
    token: str = "",
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Report what was consumed; it returns when the reports are stored.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for the environment variable
            `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        reports: what was consumed. Those about topics that are not audited are left out.
        token: credential; empty where the brokers ask for none.
        timeout_s: seconds that all of it may take.

    Raises:
        InvalidRequestError: the numbers of a report make no sense.
        UnknownTopicError: there is no such topic.
        MemqError: the reports could not be stored by the deadline; reporting again does no harm.
    """
    loop = EventLoopThread("memq-report-consumed")
    try:
        loop.run(report_consumed_async(bootstrap, reports, token=token, timeout_s=timeout_s))
    finally:
        loop.close()


async def report_consumed_async(
    bootstrap: str | None,
    reports: Sequence[ConsumedReport],
    *,
    token: str = "",
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Report what was consumed, from an event loop; see `report_consumed`."""
    for report in reports:
        check_consumed(report)
    cluster = Cluster(bootstrap, client="memq report", token=token, request_timeout_s=timeout_s)
    try:
        await _report(cluster, reports, timeout_s)
    finally:
        await cluster.close()


async def report_skipped(
    queue: TopicClient, group: str, moves: Mapping[int, tuple[int, int]]
) -> None:
    """Report that somebody moved a group: where it went forward it has not read what lies between.

    Args:
        queue: of the topic.
        group: the group.
        moves: next offset before and after, by read partition.

    Raises:
        MemqError: the reports could not be stored within the cluster's request timeout.
    """
    cluster = queue.cluster
    now_ms = cluster.runtime.wall_ms()
    reports = [
        ConsumedReport(
            topic=queue.topic,
            incarnation=queue.incarnation,
            consumer=group,
            partition=partition,
            start=new,
            end=new,
            batches=0,
            messages=0,
            records=0,
            crc_sum=0,
            window_start_ms=now_ms,
            window_end_ms=now_ms,
            skipped=new - old,
            final=False,
            client="memq admin",
        )
        for partition, (old, new) in moves.items()
        if old < new
    ]
    await _report(cluster, reports, cluster.request_timeout_s)


async def _report(cluster: Cluster, reports: Sequence[ConsumedReport], timeout_s: float) -> None:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    backlog: ReportBacklog[ConsumedReport] = ReportBacklog()
    backlog.add(await _audited(cluster, reports))
    sender = ReportSender(cluster)
    while waiting := backlog.take(MAX_MESSAGE_BYTES):
        await _deliver(sender, waiting, deadline_s, cluster.runtime.random)


async def _audited(cluster: Cluster, reports: Iterable[ConsumedReport]) -> list[ConsumedReport]:
    """The reports about topics that are audited."""
    return [report for report in reports if (await cluster.topic(report.topic)).config.audited]


async def _deliver(
    sender: ReportSender,
    reports: Sequence[Outgoing[ConsumedReport]],
    deadline_s: float,
    randomness: Callable[[], float],
) -> None:
    """Send until it succeeds. The audit knows a report that it gets twice."""
    clock = asyncio.get_running_loop().time
    attempt = 0
    while True:
        try:
            left_s = max(0.0, deadline_s - clock())
            await sender.send(reports, left_s, refresh=attempt > 0)
        except MemqError as exc:
            delay_s = full_jitter_s(attempt, randomness)
            if not exc.retriable or clock() + delay_s >= deadline_s:
                raise
        else:
            return
        await asyncio.sleep(delay_s)
        attempt += 1
