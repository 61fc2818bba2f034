"""Telling the audit what the committed micro-batches of a stream have consumed.

Theory of operation
-------------------
Spark asks where the next micro-batch ends only when the one before is committed, so all that lies
before the start that it names is consumed. What that was is known from the plans: a task of a
stream that reports reads all that it is given, or fails.

Rule 1. Nothing is told before Spark asks for what comes after it.
Rule 2. The offsets of the checkpoint say up to where the audit was told. So what a process that was
    killed had not told is counted again, from the notifications, and told by the next one: there is
    no gap between reports. The last report before a kill may come twice, which is no fault.
Rule 3. Micro-batches that follow each other are told together, at most every `REPORT_INTERVAL_S`,
    or when there is nothing new to read. A report that does not get through waits, and is tried
    again; it takes no more memory however long that is. The data is read on meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.client.audit.consumed import report_consumed
from memq.core.audit.reports import ConsumedReport
from memq.core.manifest import Totals
from memq.core.units import counted
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.runtime.system import Runtime
    from memq.spark.checkpoint import StreamPositions
    from memq.spark.options import ReadOptions
    from memq.spark.plan import Found

log = logging.getLogger("memq.spark")

REPORT_INTERVAL_S = 10.0  # as consumers and producers do
TIMEOUT_S = 5.0  # a report takes half a second; a micro-batch should not wait long for an audit


class Place(NamedTuple):
    """A read partition of a topic."""

    topic: str
    partition: int


class StreamReports:
    """What a stream has told the audit, and what it is to tell.

    Args:
        options: of the read.
        runtime: clocks.
    """

    def __init__(self, options: ReadOptions, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self._planned: dict[Place, ConsumedReport] = {}  # of the latest micro-batch
        self._due: dict[Place, ConsumedReport] = {}  # committed, and not told
        self._told: dict[Place, int] = {}
        self._tried_s: float | None = None

    def __repr__(self) -> str:
        return f"<StreamReports of {self._options.consumer} [{len(self._due)} due]>"

    @property
    def wanted(self) -> bool:
        """Whether the stream reports."""
        return self._options.consumer is not None

    def plan(
        self,
        name: str,
        incarnation: str,
        start: StreamPositions,
        end: StreamPositions,
        found: Found,
    ) -> None:
        """Note what a micro-batch is to read of a topic, from where it was planned."""
        now_ms = self._runtime.wall_ms()
        for partition, position in end.items():
            first = start[partition].next if partition in start else position.began
            there = found.totals.get(partition, Totals())
            self._planned[Place(name, partition)] = ConsumedReport(
                topic=name,
                incarnation=incarnation,
                consumer=self._options.consumer or "",
                partition=partition,
                start=first,
                end=position.next,
                batches=there.batches,
                messages=there.messages,
                records=there.records,
                crc_sum=there.crc_sum,
                window_start_ms=now_ms,
                window_end_ms=now_ms,
                final=False,  # such reports can be joined
                client="spark",
            )

    def commit(self, name: str, positions: StreamPositions) -> StreamPositions | None:
        """Take note that all before some positions is committed.

        Returns:
            Positions from which on what was read must be counted again, with `plan`, before this is
            called once more; None where all of it is known.
        """
        again: StreamPositions = {}
        for partition, position in positions.items():
            place = Place(name, partition)
            known = position.next if position.told is None else position.told
            told = self._told[place] = max(self._told.get(place, 0), known)
            planned, due = self._planned.get(place), self._due.get(place)
            if planned is not None and planned.end == position.next:
                joined = planned if due is None else due.joined(planned)
                if joined is not None and joined.start == told:
                    self._due[place] = joined
                    del self._planned[place]
            due = self._due.get(place)
            if told < position.next and (due is None or due.end != position.next):
                self._due.pop(place, None)
                again[partition] = position._replace(next=told)
        return again or None

    def skip(self, name: str, positions: StreamPositions) -> None:
        """Leave out what cannot be counted any more."""
        for partition, position in positions.items():
            self._told[Place(name, partition)] = position.next
            self._due.pop(Place(name, partition), None)

    def told(self, name: str, positions: StreamPositions) -> StreamPositions:
        """Positions with how far the audit was told, for the checkpoint."""
        if not self.wanted:
            return positions
        return {
            partition: position._replace(
                told=self._told.get(Place(name, partition), position.began)
            )
            for partition, position in positions.items()
        }

    def send(self, *, now: bool) -> None:
        """Tell the audit what is due, if it is time.

        Args:
            now: do not wait for more.
        """
        reports = list(self._reports())
        now_s = self._runtime.mono_s()
        early = self._tried_s is not None and now_s - self._tried_s < REPORT_INTERVAL_S
        if not reports or (early and not now):
            return
        self._tried_s = now_s
        try:
            report_consumed(
                self._options.bootstrap, reports, token=self._options.token, timeout_s=TIMEOUT_S
            )
        except MemqError as exc:
            log.warning(
                "MemQ %s: %s not delivered yet: %s",
                self._options.subject,
                counted(len(reports), "audit report"),
                exc,
            )
            return
        for report in reports:
            self._told[Place(report.topic, report.partition)] = report.end
        self._due.clear()

    def _reports(self) -> Iterator[ConsumedReport]:
        now_ms = self._runtime.wall_ms()
        for report in self._due.values():
            if report.start < report.end:
                yield msgspec.structs.replace(report, final=True, window_end_ms=now_ms)
