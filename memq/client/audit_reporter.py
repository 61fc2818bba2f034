"""Telling the audit what a producer sent.

Every `interval_s`, and once more when the producer closes, the reports that are final are written
to the audit topic: ordinary LogMessages with acks=all, whose value is the JSON of the report and
whose key is the topic it is about. They go out one Message at a time under a name of their own, so
this is a producer in its simplest form and needs nothing of the other; it is not audited itself.

Reporting never fails the producer's data. What cannot be delivered waits, merged, for the next
time; the first failure of a row is logged. An ack that was lost leaves a report in the topic twice,
alone and joined to later ones: the audit knows that reports may overlap.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from crc32c import crc32c

from memq.client.audit_backlog import ReportBacklog
from memq.core.format.message import encode_message, encode_records
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire.messages import Write
from memq.errors import MemqError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.audit_backlog import Outgoing
    from memq.client.cluster import Cluster
    from memq.core.audit import ProducedReport

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0  # what a producer that is killed leaves unreported at most, about
SEND_TIMEOUT_S = 30.0  # of one Message of reports; far less than the audit topic's dedup_window
CLOSE_TIMEOUT_S = 3.0  # a report takes half a second; a producer shall not wait long for its audit
MAX_MESSAGE_BYTES = 512 << 10  # of reports in one Message; the topic takes 4 MiB
_ACKS_ALL = -1


def _random_id() -> str:
    return f"audit-{secrets.token_hex(8)}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class AuditReporter:
    """Reports for one producer, on its event loop.

    Args:
        cluster: the brokers, as the producer sees them.
        take_reports: hands out the reports that are final at a time (milliseconds since 1970 UTC),
            each once.
        interval_s: time between reports.
        new_id: makes a producer id that nobody else has.
        wall_ms: milliseconds since 1970 UTC.
    """

    def __init__(
        self,
        cluster: Cluster,
        take_reports: Callable[[int], list[ProducedReport]],
        *,
        interval_s: float = REPORT_INTERVAL_S,
        new_id: Callable[[], str] = _random_id,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._cluster = cluster
        self._take_reports = take_reports
        self._interval_s = interval_s
        self._wall_ms = wall_ms
        self._id = new_id()
        self._sequence = 0
        self._backlog = ReportBacklog()
        self._failing = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "failing" if self._failing else "reporting"
        return f"<AuditReporter {self._id} [{state} | {self._sequence} sent] {self._backlog!r}>"

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
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({self._task})
                await self._report_rest(timeout_s)
        self._task.cancel()
        await asyncio.wait({self._task})
        unreported = self._backlog.messages + self._backlog.dropped_messages
        if unreported:
            _log.warning(
                "%d Messages of this producer are not reported; `memq audit` will count them as "
                "unreported, and cannot tell whether they are complete",
                unreported,
            )

    async def report(self, timeout_s: float = SEND_TIMEOUT_S) -> bool:
        """Send the reports that are final, and those that wait.

        Args:
            timeout_s: longest time for each Message of reports.

        Returns:
            False when some could not be delivered; they wait for the next time.
        """
        self._backlog.add(self._take_reports(self._wall_ms()))
        while reports := self._backlog.take(MAX_MESSAGE_BYTES):
            try:
                await self._send(reports, timeout_s)
            except MemqError as exc:
                self._backlog.put_back(reports)
                if not self._failing:
                    self._failing = True
                    _log.warning("cannot report to the audit, it is tried again later: %s", exc)
                return False
            except BaseException:
                self._backlog.put_back(reports)
                raise
            if self._failing:
                self._failing = False
                _log.info("reports to the audit are delivered again")
        return True

    async def _run(self) -> None:
        while not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._closing.wait()
                    return  # the last report is that of `close`
            await self.report()

    async def _report_rest(self, timeout_s: float) -> None:
        try:
            await self.report(timeout_s)
        except Exception:  # noqa: BLE001 - a bug here must not fail the data, which is settled
            _log.exception("the last report to the audit failed")

    async def _send(self, reports: list[Outgoing], timeout_s: float) -> None:
        """Write one Message; a repeat inside the call has the same name and bytes."""
        topic = await self._cluster.topic(AUDIT_TOPIC, refresh=self._failing, timeout_s=timeout_s)
        write_partition = crc32c(self._id.encode()) % len(topic.hosts)
        host = topic.hosts[write_partition]
        if not host:
            raise UnavailableError(f"{AUDIT_TOPIC}/{write_partition} has no broker now; retry")
        now_us = self._wall_ms() * 1_000
        rows = encode_records(
            [report.topic.encode() for report, _ in reports],
            [value for _, value in reports],
            None,
            [now_us] * len(reports),
        )
        header = Write(
            topic=AUDIT_TOPIC,
            write_partition=write_partition,
            producer_id=self._id,
            epoch=0,
            sequence=self._sequence,
            first_unsettled=self._sequence,
            acks=_ACKS_ALL,
            schema_id=topic.schema_id,
            records=len(reports),
            min_timestamp_us=now_us,
            max_timestamp_us=now_us,
        )
        self._sequence += 1
        body = encode_message(rows)
        await self._cluster.call(host, header, body, body_crc=crc32c(body), timeout_s=timeout_s)


def _log_bug(task: asyncio.Task[None]) -> None:
    """What nothing expected ends the reports, not the producer."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("reports to the audit have stopped", exc_info=task.exception())
