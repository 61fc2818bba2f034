"""The audit of a topic: reports and notifications in, findings out.

What belongs to a window is decided by the brokers' clock alone: a report belongs to the window in
which it was stored. So windows that meet hold each report exactly once, however producers' clocks
go. The Messages that a report names were stored before it, or a little later. Notifications are
read from around the window, and when a Message is still missing then, all others as well, before it
is called lost.

Whatever is held is judged, in every read partition. What cannot be judged is counted and named, and
the audit is not clean then: reports that are not closed yet, Messages of which nothing is left and
which retention may have removed, and what of the window is not held or not over.

What consumers reported is compared with the Batches that were published in the window; their
reports are read up to now, since they consume later.

(`memq.core.audit.reports` explains the findings, `memq.core.audit.produced` compares; for what was
consumed `memq.core.audit.consumed` does both.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from memq.client.audit.batches import BatchLook
from memq.client.audit.bounds import Marks, held, marks_past, not_held, not_over
from memq.client.audit.consumption import GRACE_MS, audit_consumed
from memq.client.audit.damage import Damage
from memq.client.audit.reports import ReportReader
from memq.client.cluster import Cluster
from memq.client.notifications import stretches_beside, stretches_between
from memq.client.topic import TopicClient
from memq.core.audit.produced import Reconciliation
from memq.core.audit.result import AuditResult
from memq.core.topic import AUDIT_TOPIC
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memq.client.audit.batches import InspectBatches
    from memq.client.audit.reports import StoredReport
    from memq.core.audit.coverage import StoredConsumed
    from memq.core.audit.reports import ProducedReport
    from memq.core.wire.messages import TopicInfo

THREADS = 16  # as many as reads of indexes at a time
SLACK_MS = 600_000  # how far clocks may be apart, and how late a report may be, beyond retries
EXPIRY_SLACK_MS = 600_000  # how far clocks may be apart where retention has come by

Progress = Callable[[int, int], None]
"""Told how many Batches were looked at, and of how many."""


class Window(NamedTuple):
    """A stretch of time by the brokers' clock, in milliseconds since 1970 UTC; None is no bound."""

    start_ms: int | None
    end_ms: int | None

    def holds(self, time_ms: int) -> bool:
        """Whether a time is in the window."""
        return (self.start_ms is None or self.start_ms <= time_ms) and (
            self.end_ms is None or time_ms < self.end_ms
        )

    def widened(self, slack_ms: int, times_ms: Iterable[int] = ()) -> Window:
        """A window around this one and some times, larger by some slack at both ends."""
        times = list(times_ms)
        return Window(
            None if self.start_ms is None else max(0, min([self.start_ms, *times]) - slack_ms),
            None if self.end_ms is None else max([self.end_ms, *times]) + slack_ms,
        )


class Sorted(NamedTuple):
    """Reports by what can be said about them."""

    judged: list[StoredReport]
    others: list[ProducedReport]
    open_reports: int


async def audit_topic(
    cluster: Cluster | str | None,
    topic: str,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
    deep: bool = False,
    consumers: Sequence[str] = (),
    grace_ms: int = GRACE_MS,
    only_consumed: bool = False,
    token: str = "",
    progress: Progress | None = None,
    inspect_batches: InspectBatches | None = None,
) -> AuditResult:
    """Compare what producers reported with what is stored, and that with what was consumed.

    Args:
        cluster: the brokers, or comma separated `host:port` of some; None for the environment
            variable `MEMQ_BOOTSTRAP`, or else 127.0.0.1:6367.
        topic: the topic.
        start_ms: reports stored at this time or later are judged, milliseconds since 1970 UTC;
            None for all.
        end_ms: reports stored before this time are judged; None for all.
        deep: read every byte of every Batch of the window, in place of the indexes of those that
            reports name.
        consumers: groups and jobs whose reports are judged; all that reported when there are none.
        grace_ms: what a consumer has left out is judged only when it reported something behind it
            so long ago; as long as a job takes where jobs run side by side.
        only_consumed: leave out what producers reported.
        token: credential, where a cluster is not given.
        progress: told how many Batches were looked at, and of how many.
        inspect_batches: looks deep into Batches in another way, such as on a cluster.

    Raises:
        UnknownTopicError: there is no such topic.
        InvalidRequestError: its producers do not report, or the window is none or too large.
        OffsetOutOfRangeError: retention removed Batches of the window meanwhile.
        MemqError: neither storage nor brokers could be asked, so nothing can be said.
    """
    question = _Question(
        topic, Window(start_ms, end_ms), deep, consumers, grace_ms, only_consumed, inspect_batches
    )
    if isinstance(cluster, Cluster):
        return await _audit(cluster, question, progress)
    own = Cluster(cluster, client="memq audit", token=token)
    try:
        return await _audit(own, question, progress)
    finally:
        await own.close()


class _Question(NamedTuple):
    """What `audit_topic` was asked."""

    topic: str
    window: Window
    deep: bool
    consumers: Sequence[str]
    grace_ms: int
    only_consumed: bool
    inspect_batches: InspectBatches | None


async def _audit(cluster: Cluster, question: _Question, progress: Progress | None) -> AuditResult:
    topic, window, deep, consumers, grace_ms, only_consumed, inspect_batches = question
    info = await cluster.topic(topic)
    _check(info, window)
    slack_ms = SLACK_MS + info.config.dedup_window_ms  # repeats and late reports come within
    queue = TopicClient(cluster, topic, info.incarnation)
    audit_queue = TopicClient(cluster, AUDIT_TOPIC)
    damage, report_damage = Damage(), Damage()
    executor = cluster.runtime.threads(THREADS, "memq-audit")
    try:
        marks = await marks_past(queue, audit_queue, window.end_ms)
        everything = await stretches_between(queue, None, None)  # has all that the marks promise
        reader = ReportReader(audit_queue, topic, executor, report_damage)
        found = await reader.read(*window.widened(slack_ms))
        consumed = await audit_consumed(
            queue,
            [stored for stored in found.consumed if _is_about(info, stored)],
            named=consumers,
            start_ms=window.start_ms,
            end_ms=window.end_ms,
            due_ms=marks.reports.stored_through_ms - grace_ms,
        )
        if only_consumed:
            return AuditResult(
                topic,
                producers=[],
                consumers=consumed,
                damage=report_damage.lines(),
                beyond=[
                    *not_held(await held(queue, audit_queue), topic, AUDIT_TOPIC, window.start_ms),
                    *not_over(marks, topic, window.end_ms),
                ],
            )
        produced = [stored for stored in found.produced if _is_about(info, stored)]
        reports = _sort(produced, window, marks)
        judged = [report for report, _ in reports.judged]
        check = Reconciliation(topic, judged, others=reports.others)
        look = BatchLook(
            queue,
            check,
            executor,
            damage,
            holds=window.holds,
            deep=deep,
            progress=progress,
            inspect_batches=inspect_batches,
        )
        near = await stretches_between(queue, *window.widened(slack_ms, _times_ms(reports.judged)))
        await look.at(near)
        if check.any_unseen():
            await look.at(stretches_beside(everything, near))
        # Asked last: what retention has removed while all this was read counts as removed.
        since = await held(queue, audit_queue)
        return check.result(
            consumers=consumed,
            damage=[*damage.lines(), *report_damage.lines()],
            open_reports=reports.open_reports,
            old=_old(produced, since.since_ms, info),
            beyond=[
                *not_held(since, topic, AUDIT_TOPIC, window.start_ms),
                *not_over(marks, topic, window.end_ms),
            ],
        )
    finally:
        # Not waited for: what still runs may be waiting for this event loop.
        executor.shutdown(wait=False, cancel_futures=True)


def _check(info: TopicInfo, window: Window) -> None:
    name = info.config.name
    if not info.config.audited:
        raise InvalidRequestError(
            f"producers do not report about topic {name!r}, so nothing can be said about it; let "
            f"them with: memq topic alter {name} --audited"
        )
    start_ms, end_ms = window
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise InvalidRequestError(f"the window ends at {end_ms} ms, but starts at {start_ms} ms")


# -- reports --------------------------------------------------------------------------------


def _sort(reports: Iterable[StoredReport], window: Window, marks: Marks) -> Sorted:
    """Reports by what can be said about them."""
    result = Sorted([], [], 0)
    open_reports = 0
    for stored in reports:
        report, stored_ms = stored
        if not window.holds(stored_ms):
            result.others.append(report)
        elif stored_ms > _stored_through_ms(marks, report.write_partition):
            open_reports += 1
            result.others.append(report)
        else:
            result.judged.append(stored)
    return result._replace(open_reports=open_reports)


def _old(reports: Iterable[StoredReport], since_ms: float, info: TopicInfo) -> list[ProducedReport]:
    """Reports about Messages that may have been published before all was held."""
    slack_ms = min(EXPIRY_SLACK_MS, info.config.retention_ms // 10)
    return [
        stored.report
        for stored in reports
        if _began_ms(stored, info.config.dedup_window_ms) < since_ms + slack_ms
    ]


def _began_ms(stored: StoredReport, dedup_window_ms: int) -> int:
    """When the first Message that a report names may have been published, by the brokers' clock.

    The producer's clock may be ahead; but the report was stored after its window.
    """
    report, stored_ms = stored
    length_ms = max(0, report.window_end_ms - report.window_start_ms)
    began_ms = min(report.window_start_ms, stored_ms - length_ms)
    return began_ms - dedup_window_ms if report.repeats else began_ms


def _is_about(info: TopicInfo, stored: StoredReport | StoredConsumed) -> bool:
    """Whether a report is about this incarnation of the topic, and not about an earlier one.

    Where a report cannot tell, one that was stored before the topic was created is not.
    """
    incarnation = stored.report.incarnation
    if incarnation:
        return incarnation == info.incarnation
    return stored.stored_ms >= info.created_ms


def _stored_through_ms(marks: Marks, write_partition: int) -> int:
    if 0 <= write_partition < len(marks.topic.write_partitions):
        return marks.topic.write_partitions[write_partition]
    return marks.topic.stored_through_ms


def _times_ms(reports: Iterable[StoredReport]) -> Iterator[int]:
    """Between which times the Messages of some reports were stored, but for clocks that differ."""
    for report, stored_ms in reports:
        yield report.window_start_ms
        yield stored_ms
