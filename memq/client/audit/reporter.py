"""Telling the audit what a client did: what a producer sent, or what a consumer is done with.

Every `interval_s`, and once more when the client closes, the reports that are final are written to
the audit topic (see `memq.client.audit.sender`).

Reporting never fails the client's data. What cannot be delivered waits, merged, for the next
time; the first failure of a row is logged. An ack that was lost leaves a report in the topic twice,
alone and joined to later ones: the audit knows that reports may overlap.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Generic

from memq.client.audit.backlog import R, ReportBacklog
from memq.client.audit.sender import ReportSender
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.cluster import Cluster

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0  # what a client that is killed leaves unreported at most, about
SEND_TIMEOUT_S = 30.0  # of one Message of reports; far less than the audit topic's dedup_window
CLOSE_TIMEOUT_S = 3.0  # a report takes half a second; nobody shall wait long for an audit
MAX_MESSAGE_BYTES = 512 << 10  # of reports in one Message; the topic takes 4 MiB


class AuditReporter(Generic[R]):
    """Reports for one client, on its event loop.

    Args:
        cluster: the brokers, as the client sees them.
        take_reports: hands out the reports that are final at a time (milliseconds since 1970 UTC),
            each once.
        interval_s: time between reports.
    """

    def __init__(
        self,
        cluster: Cluster,
        take_reports: Callable[[int], list[R]],
        *,
        interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        self._take_reports: Callable[[int], list[R]] = take_reports
        self._interval_s = interval_s
        self._now_ms = cluster.runtime.wall_ms
        self._sender = ReportSender(cluster)
        self._backlog: ReportBacklog[R] = ReportBacklog()
        self._failing = False
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
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({self._task})
                await self._report_rest(timeout_s)
        self._task.cancel()
        await asyncio.wait({self._task})
        unreported = self._backlog.messages + self._backlog.dropped_messages
        if unreported:
            _log.warning(
                "%d Messages of this client are not reported; `memq audit` will count them as "
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
        self._backlog.add(self._take_reports(self._now_ms()))
        while reports := self._backlog.take(MAX_MESSAGE_BYTES):
            try:
                await self._sender.send(reports, timeout_s, refresh=self._failing)
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


def _log_bug(task: asyncio.Task[None]) -> None:
    """What nothing expected ends the reports, not the client."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("reports to the audit have stopped", exc_info=task.exception())
