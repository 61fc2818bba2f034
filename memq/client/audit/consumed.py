"""Telling the audit what a job has consumed.

A job that has read a range of offsets, and has put the result where it belongs, reports the range:
then `memq audit` can say whether everything that is stored was consumed. (A consumer of a group
does so by itself, for what it commits.) Reporting the same range again does no harm: the audit
counts that it was consumed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.client.audit.reporter import MAX_MESSAGE_BYTES, ReportBacklog, ReportSender
from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread
from memq.core.audit.reports import ConsumedReport, check_consumed
from memq.core.named_values import NO_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.client.topic import TopicClient
    from memq.core.named_values import GivenValues

TIMEOUT_S = 30.0  # long enough to ride out the restart of a broker


def report_consumed(
    bootstrap: str | None,
    reports: Sequence[ConsumedReport],
    *,
    token: str = "",
    zone: str = "",
    storage_options: GivenValues = NO_VALUES,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Report what was consumed; it returns when the reports are stored.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        reports: what was consumed. Those about topics that are not audited are left out.
        token: credential; empty where the brokers ask for none.
        zone: where this client runs; empty for that of `MEMQ_ZONE`, or of the profile.
        storage_options: as for every client, though a report reads no objects.
        timeout_s: seconds that all of it may take.

    Raises:
        InvalidRequestError: the numbers of a report make no sense.
        UnknownTopicError: there is no such topic.
        MemqError: the reports could not be stored by the deadline; reporting again does no harm.
    """
    for report in reports:
        check_consumed(report)

    async def send() -> None:
        cluster = Cluster(
            bootstrap,
            client="memq report",
            token=token,
            zone=zone,
            storage_options=storage_options,
            request_timeout_s=timeout_s,
        )
        try:
            await _report(cluster, reports, timeout_s)
        finally:
            await cluster.close()

    loop = EventLoopThread("memq-report-consumed")
    try:
        loop.run(send())
    finally:
        loop.close()


async def report_moved(
    topic: TopicClient, group: str, moves: Mapping[int, tuple[int | None, int]]
) -> None:
    """Report that somebody moved a group: where it went forward it has not read what lies between.

    Args:
        topic: the topic.
        group: the group.
        moves: next offset before, where there was one, and after, by read partition.

    Raises:
        MemqError: the reports could not be stored within the cluster's request timeout.
    """
    cluster = topic.cluster
    now_ms = cluster.runtime.wall_ms()
    reports = [
        ConsumedReport(
            topic=topic.topic,
            incarnation=topic.incarnation,
            consumer=group,
            partition=partition,
            start=after,
            end=after,
            window_start_ms=now_ms,
            window_end_ms=now_ms,
            skipped=0 if before is None else after - before,
            began=before is None,
            moved=True,
            final=False,
            client="memq admin",
        )
        for partition, (before, after) in moves.items()
        if before is None or before < after
    ]
    await _report(cluster, reports, cluster.request_timeout_s)


async def _report(cluster: Cluster, reports: Sequence[ConsumedReport], timeout_s: float) -> None:
    """Send those about topics that are audited. The audit knows a report that it gets twice."""
    retry = cluster.retry(timeout_s)
    backlog: ReportBacklog[ConsumedReport] = ReportBacklog()
    backlog.add([each for each in reports if (await cluster.topic(each.topic)).config.audited])
    sender = ReportSender(cluster)
    while waiting := backlog.take(MAX_MESSAGE_BYTES):
        await sender.send(waiting, retry.left_s)
