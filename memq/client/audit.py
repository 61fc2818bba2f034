"""The audit of a topic: reports and notifications in, findings out.

What belongs to a window is decided by the brokers' clock alone: a report belongs to the window in
which it was stored. So windows that meet hold each report exactly once, however producers' clocks
go. The Messages that a report names were stored before it, or a little later. Notifications are
read from around the window, and when a Message is still missing then, all others as well, before it
is called lost.

Reports that cannot be judged are counted: those that are not closed yet, and those whose Messages
retention has removed, or may remove while the audit runs. What they name is not unreported.

What consumers reported is compared with the Batches that were published in the window; their
reports are read up to now, since they consume later.

(`memq.core.audit` explains the findings, `memq.core.reconciliation` compares; for what was consumed
`memq.core.consumption` does both.)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from memq.client.audit_batches import BatchLook
from memq.client.audit_consumed import GRACE_MS, audit_consumed
from memq.client.audit_damage import Damage
from memq.client.audit_reports import ReportReader
from memq.client.cluster import Cluster
from memq.client.held import held_since
from memq.client.notifications import stretches_beside, stretches_between
from memq.client.queue import QueueClient
from memq.core.audit_result import AuditResult
from memq.core.reconciliation import Reconciliation
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire.messages import FetchWatermark
from memq.errors import InvalidRequestError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memq.client.audit_batches import InspectBatches
    from memq.client.audit_reports import StoredReport
    from memq.core.audit import ProducedReport
    from memq.core.coverage import StoredConsumed
    from memq.core.wire.messages import TopicInfo, WatermarkAnswer

THREADS = 16  # as many as reads of indexes at a time
SLACK_MS = 600_000  # how far clocks may be apart, and how late a report may be, beyond retries
EXPIRY_SLACK_MS = 600_000  # an audit may take so long before retention overtakes it

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
    expired_reports: int


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
    queue, audit_queue = QueueClient(cluster, topic), QueueClient(cluster, AUDIT_TOPIC)
    damage, report_damage = Damage(), Damage()
    executor = ThreadPoolExecutor(THREADS, "memq-audit")
    try:
        watermark = await _watermark(queue)
        reported_ms = (await _watermark(audit_queue)).stored_through_ms
        held = await stretches_between(queue, None, None)  # has all that the watermark promises
        reader = ReportReader(audit_queue, topic, executor, report_damage)
        found = await reader.read(*window.widened(slack_ms))
        consumed = await audit_consumed(
            queue,
            _about(found.consumed, info.created_ms),
            named=consumers,
            start_ms=window.start_ms,
            end_ms=window.end_ms,
            due_ms=reported_ms - grace_ms,
        )
        if only_consumed:
            lines = report_damage.lines(await _starts(audit_queue))
            return AuditResult(topic, producers=[], consumers=consumed, damage=lines)
        expiry_ms = await _expiry_ms(queue, info, watermark)
        reports = _sort(found.produced, window, watermark, info.created_ms, expiry_ms)
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
            await look.at(stretches_beside(held, near))
        await _check_not_overtaken(queue, info, watermark, judged)
        lines = damage.lines(await _starts(queue))
        lines += report_damage.lines(await _starts(audit_queue))
        return check.result(
            consumers=consumed,
            damage=lines,
            open_reports=reports.open_reports,
            expired_reports=reports.expired_reports,
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


def _sort(
    reports: Iterable[StoredReport],
    window: Window,
    watermark: WatermarkAnswer,
    created_ms: int,
    expiry_ms: float,
) -> Sorted:
    """Reports by what can be said about them.

    Those from before the topic was created are about one that had its name; it has expired.
    """
    result = Sorted([], [], 0, 0)
    open_reports = expired_reports = 0
    for stored in reports:
        report, stored_ms = stored
        if not window.holds(stored_ms):
            result.others.append(report)
        elif stored_ms < created_ms or report.window_start_ms < expiry_ms:
            expired_reports += 1
            result.others.append(report)
        elif stored_ms > _stored_through_ms(watermark, report.write_partition):
            open_reports += 1
            result.others.append(report)
        else:
            result.judged.append(stored)
    return result._replace(open_reports=open_reports, expired_reports=expired_reports)


def _about(reports: Iterable[StoredConsumed], created_ms: int) -> list[StoredConsumed]:
    """Those that are not about an earlier topic of the same name."""
    return [stored for stored in reports if stored.stored_ms >= created_ms]


def _stored_through_ms(watermark: WatermarkAnswer, write_partition: int) -> int:
    if 0 <= write_partition < len(watermark.write_partitions):
        return watermark.write_partitions[write_partition]
    return watermark.stored_through_ms


def _times_ms(reports: Iterable[StoredReport]) -> Iterator[int]:
    """Between which times the Messages of some reports were stored, but for clocks that differ."""
    for report, stored_ms in reports:
        yield report.window_start_ms
        yield stored_ms


# -- retention ------------------------------------------------------------------------------


async def _watermark(queue: QueueClient) -> WatermarkAnswer:
    answer: WatermarkAnswer
    answer, _ = await queue.ask(FetchWatermark(topic=queue.topic))
    return answer


async def _starts(queue: QueueClient) -> dict[int, int]:
    return {held.partition: held.start for held in await queue.offsets()}


async def _held_since_ms(queue: QueueClient, info: TopicInfo, watermark: WatermarkAnswer) -> float:
    """What was published from this time on is held in full."""
    found = await held_since(queue, info.config.retention_ms, max(watermark.write_partitions))
    return max(each.since_ms for each in found)


async def _expiry_ms(queue: QueueClient, info: TopicInfo, watermark: WatermarkAnswer) -> float:
    """Reports of windows that began before this time cannot be judged."""
    since_ms = await _held_since_ms(queue, info, watermark)
    return since_ms + min(EXPIRY_SLACK_MS, info.config.retention_ms // 10)


async def _check_not_overtaken(
    queue: QueueClient,
    info: TopicInfo,
    watermark: WatermarkAnswer,
    judged: Iterable[ProducedReport],
) -> None:
    """Refuse to call lost what retention has removed while the audit ran."""
    since_ms = await _held_since_ms(queue, info, watermark)
    if any(report.window_start_ms < since_ms for report in judged):
        raise OffsetOutOfRangeError(
            f"retention removed Batches of {queue.topic!r} that this audit was about while it ran; "
            "audit a later window"
        )
