"""The audit of a topic: reports and notifications in, findings out.

What belongs to a window is decided by the brokers' clock alone: a report belongs to the window in
which it was stored. So windows that meet hold each report exactly once, however producers' clocks
go. The Messages that a report names were stored before it, or a little later. Notifications are
read from around the window, and when a Message is still missing then, all others as well, before it
is called lost.

Whatever is retained is judged, in every read partition. What cannot be judged is counted and named,
and the audit is not clean then: reports that are not closed yet, Messages of which nothing is left
and which retention may have removed, and what of the window is not retained or not over.

What consumers reported is compared with the Batches that were published in the window; their
reports are read up to now, since they consume later.

All is read once, and for most producers that is enough (`memq.core.audit.sieve`). For the others it
is read again: only their reports, and the Batches that these name.

(`memq.core.audit.reports` explains the findings, `memq.core.audit.produced` compares; for what was
consumed `memq.core.audit.consumed` does both.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import aclosing, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.client.audit.stored import BatchInspector, Damage, ReportReader
from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.audit.consumed import ConsumedReconciliation
from memq.core.audit.produced import ProducedReconciliation
from memq.core.audit.reports import ConsumedReport, ProducedReport, ReaderName
from memq.core.audit.result import AuditResult
from memq.core.audit.sieve import ProducerSieve
from memq.core.named_values import NO_VALUES
from memq.core.ranges import ranges_without
from memq.core.topic import AUDIT_TOPIC
from memq.core.units import iso_ms
from memq.errors import CorruptDataError, InvalidRequestError
from memq.reading.log import published_batch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from memq.client.audit.stored import InspectBatches
    from memq.core.audit.reports import ProducerName, R, StoredReport
    from memq.core.audit.result import ConsumerAudit
    from memq.core.named_values import GivenValues
    from memq.core.ranges import OffsetRange
    from memq.core.wire.messages import TopicInfo, WatermarkAnswer
    from memq.reading.log import RetainedSince

THREADS = 16  # as many as reads of indexes at a time
SLACK_MS = 1_200_000  # how far clocks may be apart, and how late a report may be, beyond retries
EXPIRY_SLACK_MS = 600_000  # how far clocks may be apart where retention has come by
MAX_REPORTS = 1_000_000  # of consumers, or of suspects; about 1 KB each
GRACE_MS = 60_000  # six rounds of reports; jobs that run side by side need as long as one runs
CLOSING_S = 5.0  # a window up to now is over as soon as the Batches are stored that are open now
LOOK_S = 0.1

Progress = Callable[[int, int], None]
"""Told how many Batches were looked at, and of how many."""


class Window(NamedTuple):
    """A window of time by the brokers' clock, in milliseconds since 1970 UTC; None is no bound."""

    start_ms: int | None
    end_ms: int | None

    def holds(self, time_ms: int) -> bool:
        """Return whether a time is in the window."""
        return (self.start_ms is None or self.start_ms <= time_ms) and (
            self.end_ms is None or time_ms < self.end_ms
        )

    def widened(self, slack_ms: int, times_ms: Iterable[int] = ()) -> Window:
        """Return a window around this one and some times, larger by some slack at both ends."""
        times = list(times_ms)
        return Window(
            None if self.start_ms is None else max(0, min([self.start_ms, *times]) - slack_ms),
            None if self.end_ms is None else max([self.end_ms, *times]) + slack_ms,
        )


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
    storage_options: GivenValues = NO_VALUES,
    security: GivenValues = NO_VALUES,
    progress: Progress | None = None,
    inspect_batches: InspectBatches | None = None,
) -> AuditResult:
    """Compare what producers reported with what is stored, and that with what was consumed.

    Args:
        cluster: the brokers, or comma separated `host:port` of some; None for those
            of `MEMQ_BOOTSTRAP`, of the profile, or else 127.0.0.1:6367.
        topic: the topic.
        start_ms: reports stored at this time or later are judged, milliseconds since 1970 UTC;
            None for all.
        end_ms: reports stored before this time are judged; None for all.
        deep: read every byte of every Batch of the window, in place of the indexes of those that
            reports name.
        consumers: groups and jobs whose reports are judged; all that reported when there are none.
        grace_ms: what a consumer has left out is judged only when it reported something after it
            so long ago; as long as a job takes where jobs run side by side.
        only_consumed: leave out what producers reported.
        token: credential, where a cluster is not given.
        storage_options: of the object store, where a cluster is not given; none for those of
            `MEMQ_STORAGE_OPTIONS`, or of the profile.
        security: what TLS needs, where a cluster is not given; none as above.
        progress: told how many Batches were looked at, and of how many.
        inspect_batches: looks deep into Batches in another way, such as on a cluster.

    Raises:
        UnknownTopicError: there is no such topic.
        InvalidRequestError: its producers do not report, or the window is none or too large.
        OffsetOutOfRangeError: retention removed Batches of the window meanwhile.
        MemqError: neither storage nor brokers could be asked, so nothing can be said.
    """
    window = Window(start_ms, end_ms)
    if isinstance(cluster, Cluster):
        client = cluster
    else:
        client = Cluster(
            cluster,
            client="memq audit",
            token=token,
            storage_options=storage_options,
            security=security,
        )
    executor = client.runtime.threads(THREADS, "memq-audit")
    try:
        info = await client.topic(topic)
        _check(info, window)
        damage = Damage()
        inspector = BatchInspector(
            TopicClient(client, topic, info.topic_id),
            executor,
            damage,
            in_window=window.holds,
            deep=deep,
            progress=progress,
            inspect_batches=inspect_batches,
        )
        reader = ReportReader(TopicClient(client, AUDIT_TOPIC), topic, executor, damage)
        audit = _TopicAudit(info, window, inspector, reader)
        return await audit.run(consumers, grace_ms, only_consumed=only_consumed)
    finally:
        # Not waited for: what still runs may be waiting for this event loop.
        executor.shutdown(wait=False, cancel_futures=True)
        if client is not cluster:
            await client.close()


class _TopicAudit:
    """One audit of one topic.

    Args:
        info: the topic.
        window: what is judged.
        inspector: looks into its Batches.
        reader: reads the reports about it.
    """

    def __init__(
        self, info: TopicInfo, window: Window, inspector: BatchInspector, reader: ReportReader
    ) -> None:
        self._info, self._window = info, window
        self._inspector, self._reader = inspector, reader
        self._topic, self._audit_topic = inspector.topic, reader.audit_topic
        # Duplicates and late reports are within.
        self._slack_ms = SLACK_MS + info.config.dedup_window_ms
        self._watermarks: _Watermarks
        self._told: list[OffsetRange] = []  # where the reports are
        self._consumed: list[StoredReport[ConsumedReport]] = []
        self._times_ms: list[int] = []  # between which Messages of judged reports were stored
        self._open_reports = 0

    async def run(
        self, consumers: Sequence[str], grace_ms: int, *, only_consumed: bool
    ) -> AuditResult:
        """Read, compare, and say what was found; arguments as of `audit_topic`."""
        window, topic = self._window, self._topic
        # Before the reports: what was committed by then is reported by now, or soon will be.
        committed, unread = await _committed(topic, consumers)
        self._watermarks = await _watermarks(topic, self._audit_topic, window.end_ms)
        everything = await topic.ranges_between(None, None)  # all that the watermarks promise
        wide = window.widened(self._slack_ms)
        self._told = await self._audit_topic.ranges_between(wide.start_ms, None)
        sieve = ProducerSieve()
        await self._sift(sieve, consumers, only_consumed=only_consumed)
        due_ms = self._watermarks.reports.stored_through_ms - grace_ms
        found_consumers = await self._audit_consumed(consumers, committed, due_ms)
        near = await topic.ranges_between(*window.widened(self._slack_ms, self._times_ms))
        if not only_consumed:
            await self._inspector.look(near, sieve)
        producers = list(sieve.producers())
        check, since = await self._compare_suspects(sieve.suspects, near, everything)
        reports_since = await self._audit_topic.retained_since()
        return AuditResult(
            topic.topic,
            sorted([*producers, *check.producers()], key=attrgetter("name")),
            damage=self._reader.damage.lines(),
            open_reports=self._open_reports,
            expired_reports=check.expired_reports(),
            consumers=found_consumers,
            beyond=[
                *_not_retained(topic.topic, since, window.start_ms),
                *_not_retained(AUDIT_TOPIC, reports_since, window.start_ms),
                *_not_over(topic.topic, self._watermarks, window.end_ms),
                *unread,
            ],
        )

    async def _reports(self) -> AsyncGenerator[StoredReport[Any], None]:
        """Yield the reports about this topic id, as far as they are retained."""
        ranges = await _still(self._audit_topic, self._told)
        end_ms = self._window.widened(self._slack_ms).end_ms
        async with aclosing(self._reader.read(ranges, end_ms)) as found:
            async for stored in found:
                if _is_about(self._info, stored):
                    yield stored

    def _is_judged(self, stored: StoredReport[ProducedReport]) -> bool:
        closed_ms = self._watermarks.of_reports_about(stored.report)
        return self._window.holds(stored.stored_ms) and stored.stored_ms <= closed_ms

    async def _sift(
        self, sieve: ProducerSieve, named: Sequence[str], *, only_consumed: bool
    ) -> None:
        """Read all reports; those of producers go through the sieve.

        Raises:
            InvalidRequestError: those of consumers are more than `MAX_REPORTS`.
            MemqError: as `ReportReader.read`.
        """
        async with aclosing(self._reports()) as found:
            async for stored in found:
                report, stored_ms = stored
                if isinstance(report, ConsumedReport):
                    if not named or report.consumer in named:
                        self._consumed.append(stored)
                        _check_count(self._consumed, report.topic)
                elif not only_consumed:
                    judged = self._is_judged(stored)
                    sieve.report(report, judged=judged)
                    if judged:
                        times_ms = [*self._times_ms, report.window_start_ms, stored_ms]
                        self._times_ms = [min(times_ms), max(times_ms)]
                    self._open_reports += self._window.holds(stored_ms) and not judged

    async def _audit_consumed(
        self, named: Sequence[str], committed: Mapping[ReaderName, int], due_ms: int
    ) -> list[ConsumerAudit]:
        """Compare what consumers reported with the Batches that were published in the window."""
        if not self._consumed and not named:
            return []
        topic, window = self._topic, self._window
        check = ConsumedReconciliation(
            topic.topic,
            self._consumed,
            named=named,
            retained=await topic.ranges_between(None, None),
            window=await topic.ranges_between(window.start_ms, window.end_ms),
            committed=committed,
            due_ms=due_ms,
        )
        # What cannot be read is named by the other half of the audit, which reads it as well.
        async for entry in topic.entries(check.to_compare()):
            try:
                check.compare(published_batch(topic.topic, entry))
            except CorruptDataError:
                check.cannot_compare(entry.partition, entry.offset)
        async for entry in topic.entries(check.to_judge()):
            with suppress(CorruptDataError):
                if window.holds(entry.timestamp_ms):
                    check.judge(published_batch(topic.topic, entry))
        return check.result()

    async def _compare_suspects(
        self,
        suspects: AbstractSet[ProducerName],
        near: Sequence[OffsetRange],
        everything: Sequence[OffsetRange],
    ) -> tuple[ProducedReconciliation, list[RetainedSince]]:
        """Compare what suspects report Message by Message; first with what is near the window.

        Returns:
            What was found, and since when all of the topic is retained.
        """
        suspected = await self._suspected(suspects)
        check = ProducedReconciliation(
            self._topic.topic,
            [each.report for each in suspected if self._is_judged(each)],
            others=[each.report for each in suspected if not self._is_judged(each)],
            only=suspects,
        )
        if suspects:
            await self._inspector.look(await _still(self._topic, near), check)
        if check.any_unseen():
            rest = ranges_without(everything, near)
            await self._inspector.look(await _still(self._topic, rest), check)
        # Asked last: what retention has removed while all this was read counts as removed.
        since = await self._topic.retained_since()
        certain_ms = _certain_ms(since, self._info)
        dedup_ms = self._info.config.dedup_window_ms
        check.expire(each.report for each in suspected if _began_ms(each, dedup_ms) < certain_ms)
        return check, since

    async def _suspected(
        self, suspects: AbstractSet[ProducerName]
    ) -> list[StoredReport[ProducedReport]]:
        """Return the reports of suspects.

        Raises:
            InvalidRequestError: they are more than `MAX_REPORTS`.
            MemqError: as `ReportReader.read`.
        """
        kept: list[StoredReport[ProducedReport]] = []
        if not suspects:
            return kept
        async with aclosing(self._reports()) as found:
            async for stored in found:
                if isinstance(stored.report, ProducedReport) and stored.report.name in suspects:
                    kept.append(stored)
                    _check_count(kept, self._topic.topic)
        return kept


def _check(info: TopicInfo, window: Window) -> None:
    name = info.config.name
    if name == AUDIT_TOPIC:
        raise InvalidRequestError(
            f"{name} holds the reports, and nobody reports about these; audit the other topics"
        )
    if not info.config.audited:
        raise InvalidRequestError(
            f"producers do not report about topic {name!r}, so nothing can be said about it; let "
            f"them with `memq topic alter {name} --audited`"
        )
    start_ms, end_ms = window
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise InvalidRequestError(
            f"the window ends at {iso_ms(end_ms)}, but starts at {iso_ms(start_ms)}; let it start "
            "first"
        )


# -- what can be judged of a window ---------------------------------------------------------
#
# Its end must have passed: a topic is stored through a time, and before that more may come. Its
# start must still be retained. What lies beyond is named, so that nobody takes it for judged.


class _Watermarks(NamedTuple):
    """How far a topic and the reports about it are stored."""

    topic: WatermarkAnswer
    reports: WatermarkAnswer

    @property
    def stored_through_ms(self) -> int:
        """Both are complete up to here."""
        return min(self.topic.stored_through_ms, self.reports.stored_through_ms)

    def of_reports_about(self, report: ProducedReport) -> int:
        """Whatever a report names that was stored by this time is published."""
        if 0 <= report.write_partition < len(self.topic.write_partitions):
            return self.topic.write_partitions[report.write_partition]
        return self.topic.stored_through_ms


async def _watermarks(
    topic: TopicClient, audit_topic: TopicClient, end_ms: int | None
) -> _Watermarks:
    """Return how far the topic and its reports are stored; wait a little until both are past a
    time.
    """
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + CLOSING_S
    while True:
        found = _Watermarks(await topic.watermark(), await audit_topic.watermark())
        left_s = 0.0 if end_ms is None else (end_ms - found.stored_through_ms) / 1_000
        if left_s <= 0 or clock() + min(left_s, LOOK_S) > deadline_s or left_s > CLOSING_S:
            return found
        await asyncio.sleep(LOOK_S)


def _not_over(topic: str, watermarks: _Watermarks, end_ms: int | None) -> list[str]:
    """Return a sentence when a window is not over."""
    if end_ms is None or end_ms <= watermarks.stored_through_ms:
        return []
    line = (
        f"The window ends at {iso_ms(end_ms)}, and {topic!r} and the reports about it are stored "
        f"through {iso_ms(watermarks.stored_through_ms)} only. Audit again when it is over."
    )
    return [line]


def _not_retained(topic: str, since: Iterable[RetainedSince], start_ms: int | None) -> list[str]:
    """Return a sentence when a topic is not retained since a window began."""
    last = max(since, key=lambda each: each.since_ms)
    if last.since_ms <= (-math.inf if start_ms is None else start_ms):
        return []
    line = (
        f"Retention has removed what was published to read partition {last.partition} of {topic!r} "
        f"before {iso_ms(int(last.since_ms))}; a window that begins then can be judged whole."
    )
    return [line]


# -- reports of producers -------------------------------------------------------------------


def _check_count(reports: Sequence[object], topic: str) -> None:
    if len(reports) > MAX_REPORTS:
        raise InvalidRequestError(
            f"there are more than {MAX_REPORTS} reports about {topic!r} in this window that must "
            "be compared one by one; choose a shorter one"
        )


def _certain_ms(since: Iterable[RetainedSince], info: TopicInfo) -> float:
    """Return the time from which on every Message is known to be retained."""
    slack_ms = min(EXPIRY_SLACK_MS, info.config.retention_ms // 10)
    return max(each.since_ms for each in since) + slack_ms


async def _still(topic: TopicClient, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return what is still retained of some ranges."""
    starts = await topic.starts()
    found = [each._replace(start=max(each.start, starts[each.partition])) for each in ranges]
    return [each for each in found if each.size > 0]


def _began_ms(stored: StoredReport[ProducedReport], dedup_window_ms: int) -> int:
    """Return the earliest time at which a report's first Message may be published, by brokers'
    clocks.

    The producer's clock may be ahead; but the report was stored after its window.
    """
    report, stored_ms = stored
    length_ms = max(0, report.window_end_ms - report.window_start_ms)
    began_ms = min(report.window_start_ms, stored_ms - length_ms)
    return began_ms - dedup_window_ms if report.duplicates else began_ms


def _is_about(info: TopicInfo, stored: StoredReport[R]) -> bool:
    """Return whether a report is about this topic id, and not about an earlier one.

    Where a report cannot tell, one that was stored before the topic was created is not.
    """
    topic_id = stored.report.topic_id
    if topic_id:
        return topic_id == info.topic_id
    return stored.stored_ms >= info.created_ms


# -- reports of consumers -------------------------------------------------------------------


async def _committed(
    topic: TopicClient, consumers: Sequence[str]
) -> tuple[dict[ReaderName, int], list[str]]:
    """Return the next offsets that groups have committed, and why some cannot be known.

    Args:
        topic: the topic.
        consumers: groups and jobs that are asked about; every group when there are none.
    """
    found: dict[ReaderName, int] = {}
    try:
        if not consumers:
            for info in await topic.groups():
                found |= {
                    ReaderName(info.group, each.partition): each.offset for each in info.offsets
                }
        for consumer in consumers:
            offsets = await topic.committed(consumer)
            found |= {ReaderName(consumer, partition): at for partition, at in offsets.items()}
    except CorruptDataError as exc:
        return found, [f"What groups have committed is not known, so it counts as behind: {exc}"]
    return found, []
