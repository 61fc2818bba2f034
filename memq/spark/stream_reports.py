"""Telling the audit what the committed micro-batches of a stream have consumed.

Theory of operation
-------------------
Spark asks where the next micro-batch ends only when the one before is committed, so all that lies
before the start that it names is consumed. A task of a stream that reports reads all that it is
given, or fails. So what was consumed is what the notifications of these offsets say.

Rule 1. Nothing is told before Spark asks for what comes after it.
Rule 2. The checkpoint says up to where the audit was told, and the next process reports from
    there: no gap is between reports. The last one before a kill may come twice, which is no fault.
Rule 3. Micro-batches are told together, at most every `REPORT_INTERVAL_S`, or when there is nothing
    new to read. A report that does not get through waits, and is counted again with what follows.
    The stream reads on meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from memq.client.audit.reporter import report_consumed
from memq.core.audit.reports import ConsumedReport
from memq.core.ranges import OffsetRange
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memq.runtime.system import Runtime
    from memq.spark.options import ReadOptions
    from memq.spark.positions import StreamPositions
    from memq.spark.stream_topics import Positions, TopicStream

log = logging.getLogger("memq.spark")

REPORT_INTERVAL_S = 10.0  # as consumers and producers do
TIMEOUT_S = 5.0  # a report takes half a second; a micro-batch should not wait long for an audit


Place = tuple[str, int]
"""A topic, and its read partition."""


class StreamReports:
    """What a stream has told the audit, and what it is to tell.

    Args:
        options: of the read.
        runtime: clocks.
    """

    def __init__(self, options: ReadOptions, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self._told: dict[Place, int] = {}
        self._tried_s: float | None = None
        self._told_ms = runtime.wall_ms()

    def __repr__(self) -> str:
        return f"<StreamReports of {self._options.consumer}>"

    def told(self, name: str, positions: StreamPositions) -> StreamPositions:
        """Return positions with how far the audit was told, for the checkpoint."""
        if self._options.consumer is None:
            return positions
        return {
            partition: replace(each, told=self._told.get((name, partition), each.began))
            for partition, each in positions.items()
        }

    def send(self, committed: Positions, streams: Mapping[str, TopicStream], *, now: bool) -> None:
        """Tell the audit what is committed and was not told, if it is time.

        Args:
            committed: positions up to which all is committed.
            streams: the topics.
            now: do not wait for more.
        """
        if self._options.consumer is None:
            return
        due = {name: self._due(name, positions) for name, positions in committed.items()}
        now_s = self._runtime.mono_s()
        early = self._tried_s is not None and now_s - self._tried_s < REPORT_INTERVAL_S
        if not any(due.values()) or (early and not now):
            return
        self._tried_s = now_s
        try:
            reports = [
                report
                for name, ranges in due.items()
                if ranges
                for report in self._reports(streams[name], ranges)
            ]
            report_consumed(
                self._options.bootstrap,
                reports,
                token=self._options.token,
                security=self._options.security,
                timeout_s=TIMEOUT_S,
            )
        except MemqError as exc:
            log.warning("MemQ %s: audit reports wait: %s", self._options.subject, exc)
            return
        self._told_ms = self._runtime.wall_ms()
        for report in reports:
            self._told[report.topic, report.partition] = report.end

    def _due(self, name: str, positions: StreamPositions) -> list[OffsetRange]:
        """Return what is committed of a topic and was not told."""
        due = []
        for partition, position in positions.items():
            place = name, partition
            known = position.next if position.told is None else position.told
            told = self._told[place] = max(self._told.get(place, 0), known)
            if told < position.next:
                due.append(OffsetRange(partition, told, position.next))
        return due

    def _reports(self, stream: TopicStream, ranges: list[OffsetRange]) -> Iterator[ConsumedReport]:
        """Count what ranges contain; what cannot be counted any more is left out.

        Raises:
            MemqError: the brokers failed.
        """
        try:
            totals = stream.totals(ranges)
        except MemqError as exc:
            if exc.retriable:
                raise
            log.warning("MemQ topic %s: what was read is not reported: %s", stream.name, exc)
            self._told |= {(stream.name, each.partition): each.end for each in ranges}
            return
        for each in ranges:
            counts = totals[each.partition]._asdict()
            del counts["bytes"]
            yield ConsumedReport(
                topic=stream.name,
                consumer=self._options.consumer or "",
                **each._replace(topic_id=stream.topic_id)._asdict(),
                **counts,
                window_start_ms=self._told_ms,
                window_end_ms=self._runtime.wall_ms(),
                client="spark",
            )
