"""Telling the audit what a client did: what a producer sent, or what a consumer is done with.

Every `interval_s`, more seldom the older a producer is (`STEADY_S`), and once more when the client
closes, the reports that are final are written to the audit topic: as ordinary LogMessages with
acks=all. The value is the JSON of the report, or of several of one producer; the key says what it
is about (`memq.core.audit.reports.report_key`). What a consumer has to say leaves at once, unless
its report before is younger than `interval_s`.

A job reports a range when it has put the result where it belongs (`report_consumed`). Reporting
the same range again does no harm: the audit counts that it was consumed again.

Reporting never fails the client's data. What cannot be delivered waits, merged, for the next
time; the first failure in a row is logged. An ack that was lost leaves a report in the topic twice,
alone and joined to later ones: the audit knows that reports may overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Generic

from memq.client.cluster import Cluster
from memq.client.sync import EventLoopThread
from memq.client.topic import TopicClient
from memq.core.audit.reports import ConsumedReport, R, check_consumed, encode_report, encode_reports
from memq.core.checksum import crc32c
from memq.core.format.message import encode_message, encode_records
from memq.core.topic import AUDIT_TOPIC
from memq.core.units import counted
from memq.core.wire.messages import Write
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Unpack

    from memq.client.cluster import ClusterArguments
    from memq.core.audit.reports import ProducerName, ReaderName, Report

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0  # what a young client that is killed leaves unreported at most, about
STEADY_S = (60, 120, 300, 600)  # between reports of a producer that is six times as old
SPREAD_S = 30.0  # over which those of many producers spread after the full minute
SEND_TIMEOUT_S = 30.0  # of one Message of reports; far less than the audit topic's dedup_window
TIMEOUT_S = 30.0  # of `report_consumed`: long enough to ride out the restart of a broker
CLOSE_TIMEOUT_S = 3.0  # a report takes half a second; nobody should wait long for an audit
MAX_MESSAGE_BYTES = 512 << 10  # of reports in one Message; the topic takes 4 MiB
MAX_WEIGHT = 100_000  # reports and failed runs that wait; about 10 MB
_ACKS_ALL = -1


class ReportBacklog(Generic[R]):
    """Reports of one kind on their way, merged while they wait, so that memory is bounded.

    Reports of one producer and write partition follow each other without a gap, so two that wait
    become one that says the same of both. However long the audit topic cannot be reached, what
    waits is one report per write partition, unless deliveries failed here and there: each such run
    of sequences is kept. A consumer's reports join, too, for as long as it reads on from offset
    to offset. Past `MAX_WEIGHT` the oldest report is dropped, so that the audit sees its Messages
    as unreported.

    Attributes:
        dropped_messages: Messages whose reports were dropped.
    """

    def __init__(self) -> None:
        self.dropped_messages = 0
        self._waiting: deque[R] = deque()

    def __repr__(self) -> str:
        return f"<ReportBacklog [{len(self._waiting)} reports over {self.messages} Messages]>"

    @property
    def messages(self) -> int:
        """Messages that the waiting reports are about."""
        return sum(report.messages for report in self._waiting)

    def add(self, reports: Iterable[R]) -> None:
        """Have new reports wait after the others."""
        self._join(chain(self._waiting, reports))

    def take(self, max_bytes: int) -> list[R]:
        """Take the oldest reports, for one Message of up to so many bytes; empty when none waits.

        A report that is larger alone is dropped: no Message could ever carry it.
        """
        taken: list[R] = []
        left_bytes = max_bytes
        while self._waiting:
            size_bytes = len(encode_report(self._waiting[0]))
            if size_bytes > max_bytes:
                self._drop_first()
            elif size_bytes > left_bytes:
                break
            else:
                left_bytes -= size_bytes
                taken.append(self._waiting.popleft())
        return taken

    def put_back(self, taken: Iterable[R]) -> None:
        """Put back reports that were not delivered, or may not be: they wait again, before all
        others.
        """
        self._join(chain(taken, self._waiting))

    def _join(self, reports: Iterable[R]) -> None:
        """Wait with some reports, joined where they follow each other."""
        by_name: dict[ProducerName | ReaderName, list[R]] = {}
        for report in reports:
            group = by_name.setdefault(report.name, [])
            joined = group[-1].joined(report) if group else None
            if joined is None:
                group.append(report)
            else:
                group[-1] = joined
        self._waiting = deque(chain.from_iterable(by_name.values()))
        weight = sum(report.weight for report in self._waiting)
        while weight > MAX_WEIGHT:
            weight -= self._drop_first().weight

    def _drop_first(self) -> R:
        report = self._waiting.popleft()
        self.dropped_messages += report.messages
        return report


class ReportSender:
    """Sends reports, one Message at a time under a name of its own.

    So it is a producer in its simplest form, and needs nothing of the other; it is not audited
    itself.

    Args:
        cluster: the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._id = ""  # before there is a connection
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<ReportSender {self._id} [{self._sequence} sent]>"

    async def send(self, reports: Sequence[Report], timeout_s: float) -> None:
        """Write one Message; attempts within the call have the same name and bytes.

        Args:
            reports: what it holds.
            timeout_s: deadline of the call.

        Raises:
            UnavailableError: the audit topic has no broker until the deadline.
            MemqError: the broker failed until the deadline.
        """
        retry = self._cluster.retry(timeout_s)
        topic = await self._cluster.topic(AUDIT_TOPIC, timeout_s=timeout_s)
        self._id = self._id or self._cluster.new_producer_id()
        write_partition = crc32c(self._id.encode()) % len(topic.hosts)
        now_us = self._cluster.runtime.wall_us()
        keys, values = zip(*encode_reports(reports), strict=True)
        rows = encode_records(keys, values, None, [now_us] * len(keys))
        header = Write(
            topic=AUDIT_TOPIC,
            write_partition=write_partition,
            producer_id=self._id,
            epoch=0,
            sequence=self._sequence,
            first_unsettled=self._sequence,
            acks=_ACKS_ALL,
            schema_id=topic.schema_id,
            records=len(keys),
            min_timestamp_us=now_us,
            max_timestamp_us=now_us,
        )
        self._sequence += 1
        body = encode_message(rows)
        audit_topic = TopicClient(self._cluster, AUDIT_TOPIC)
        await audit_topic.write(header, body, crc32c(body), timeout_s=retry.left_s)


class AuditReporter(Generic[R]):
    """Reports for one client, on its event loop.

    Args:
        cluster: the brokers, as the client sees them.
        take_reports: hands out the reports that are final, each once.
        woken: set by others when there is something to report that should not wait.
        interval_s: time between reports.
        steady: report more seldom after some minutes, and shortly after full ones: so whatever was
            sent in an hour is reported soon after it, by however many producers.
    """

    def __init__(
        self,
        cluster: Cluster,
        take_reports: Callable[[], list[R]],
        *,
        woken: asyncio.Event | None = None,
        interval_s: float = REPORT_INTERVAL_S,
        steady: bool = False,
    ) -> None:
        self._runtime = cluster.runtime
        self._steps_s = STEADY_S if steady else ()
        self._take_reports: Callable[[], list[R]] = take_reports
        self._interval_s = interval_s
        self._sender = ReportSender(cluster)
        self._backlog: ReportBacklog[R] = ReportBacklog()
        self._failing = False
        self._woken = woken or asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "failing" if self._failing else "reporting"
        return f"<AuditReporter [{state}] {self._sender!r} {self._backlog!r}>"

    @property
    def started(self) -> bool:
        """Whether it reports: not all topics are audited."""
        return self._task is not None

    def start(self) -> None:
        """Report from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_log_bug)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Report what is left, for up to so long, and stop; nothing to do when never started.

        It raises nothing: what could not be reported is logged, and the audit will count it as
        unreported.
        """
        if self._task is None:
            return
        self._closing.set()
        self._woken.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({self._task})
                await self._report_rest(timeout_s)
        self._task.cancel()
        await asyncio.wait({self._task})
        unreported = self._backlog.messages + self._backlog.dropped_messages
        if unreported:
            _log.warning(
                "%s of this client not reported: `memq audit` will count that as unreported, and "
                "cannot tell whether it is complete",
                counted(unreported, "Message"),
            )

    async def report(self, timeout_s: float = SEND_TIMEOUT_S) -> bool:
        """Send the reports that are final, and those that wait.

        Args:
            timeout_s: longest time for each Message of reports.

        Returns:
            False when some could not be delivered; they wait for the next time.
        """
        self._backlog.add(self._take_reports())
        while reports := self._backlog.take(MAX_MESSAGE_BYTES):
            try:
                await self._sender.send(reports, timeout_s)
            except BaseException as exc:
                self._backlog.put_back(reports)
                if not isinstance(exc, MemqError):
                    raise
                if not self._failing:
                    self._failing = True
                    _log.warning("cannot report to the audit, it is tried again later: %s", exc)
                return False
            if self._failing:
                self._failing = False
                _log.info("reports to the audit are delivered again")
        return True

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        born_s = next_s = clock()
        while True:
            await _wait(self._woken, self._pause_s(clock() - born_s))
            self._woken.clear()
            await _wait(self._closing, next_s - clock())
            if self._closing.is_set():
                return  # the last report is that of `close`
            next_s = clock() + self._interval_s
            await self.report()

    def _pause_s(self, age_s: float) -> float:
        """Return how long the next report of a client of some age may wait, in seconds."""
        steps_s = [each for each in self._steps_s if each <= age_s / 6]
        if not steps_s:
            return self._interval_s
        past_s = self._runtime.wall_ms() / 1_000 % steps_s[-1]
        return steps_s[-1] - past_s + self._runtime.random() * SPREAD_S

    async def _report_rest(self, timeout_s: float) -> None:
        try:
            await self.report(timeout_s)
        except Exception:  # noqa: BLE001 - a bug here must not fail the data, whose outcome is known
            _log.exception("the last report to the audit failed")


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _log_bug(task: asyncio.Task[None]) -> None:
    """Log an unexpected error, which ends the reports but not the client."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("reports to the audit have stopped", exc_info=task.exception())


# -- what was consumed, once ---------------------------------------------------------------


def report_consumed(
    bootstrap: str | None,
    reports: Sequence[ConsumedReport],
    *,
    timeout_s: float = TIMEOUT_S,
    **brokers: Unpack[ClusterArguments],
) -> None:
    """Report what was consumed; it returns when the reports are stored.

    Args:
        bootstrap: comma separated `host:port` of some brokers; None for those of `MEMQ_BOOTSTRAP`,
            of the profile, or else 127.0.0.1:6367.
        reports: what was consumed. Those about topics that are not audited are left out.
        timeout_s: seconds that all of it may take.
        **brokers: how they are reached, as for every client: token, security, zone.

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
            **{"client": "memq report", "request_timeout_s": timeout_s} | brokers,
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
            topic_id=topic.topic_id,
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
