"""What running clients did, counted for their audit reports (see `memq.core.audit.reports`)."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.audit.reports import (
    CRC_MODULUS,
    REPORT_VERSION,
    ConsumedReport,
    ProducedReport,
    runs_of,
)
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memq.client.producer.accumulator import SealedMessage
    from memq.client.producer.delivery import StoredAt
    from memq.client.producer.state_machine import NamedMessage, StateMachineOptions
    from memq.core.format.index import IndexEntry

MAX_WAITING = 1_000  # Batches of a partition, about 400 bytes each; a topic has 256 at most


# -- of a producer --------------------------------------------------------------------------


@dataclass(slots=True)
class _ReportWindow:
    """Messages of one write partition; see `ProducedReport` for the fields."""

    first: int
    start_ms: int
    last: int = -1
    end_ms: int | None = None
    open_messages: int = 0
    records: int = 0
    size_bytes: int = 0
    crc_sum: int = 0
    duplicates: int = 0
    failed: list[int] = field(default_factory=list)

    def count(self, message: SealedMessage, sign: int = 1) -> None:
        """Add a Message, or take it out with a negative sign."""
        self.records += sign * message.records
        self.size_bytes += sign * message.size_bytes
        self.crc_sum += sign * message.crc32c


class ProducedCounters:
    """Counts what a producer submits, and what is acked or fails.

    A window collects the Messages that were submitted in it, per write partition. It is closed when
    a report is asked for, and reported once all its Messages are acked or failed, so that it is
    final. The number of windows is bounded by the delivery deadline over the time between reports.

    Args:
        options: of the producer.
        client: how the producer names itself.
        now_ms: milliseconds since 1970 UTC.
    """

    def __init__(
        self, options: StateMachineOptions, client: str, *, now_ms: Callable[[], int]
    ) -> None:
        self._options = options
        self._client = client
        self._now_ms = now_ms
        self._start_ms = now_ms()
        self._windows: defaultdict[int, deque[_ReportWindow]] = defaultdict(deque)

    def __repr__(self) -> str:
        count = sum(len(windows) for windows in self._windows.values())
        return f"<ProducedCounters {self._options.producer_id} [{count} windows not reported]>"

    def submitted(self, message: NamedMessage) -> None:
        """Count a Message that was given its name."""
        windows = self._windows[message.partition.number]
        if not windows or windows[-1].end_ms is not None:
            windows.append(_ReportWindow(message.sequence, self._start_ms))
        window = windows[-1]
        window.last = message.sequence
        window.open_messages += 1
        window.count(message.sealed)

    def settled(self, message: NamedMessage, outcome: StoredAt | MemqError) -> None:
        """Count a Message that was acked, or given up with an error."""
        windows = self._windows[message.partition.number]
        window = next(window for window in windows if message.sequence <= window.last)
        window.open_messages -= 1
        if isinstance(outcome, MemqError):
            window.failed.append(message.sequence)
            window.count(message.sealed, sign=-1)
        else:
            window.duplicates += outcome.duplicate

    def take_reports(self) -> list[ProducedReport]:
        """Close the open windows, and hand out those in which all is acked or failed.

        A write partition's windows come in order: one that is not final keeps later ones back.
        """
        now_ms = self._now_ms()
        reports = []
        for number, windows in self._windows.items():
            if windows and windows[-1].end_ms is None:
                windows[-1].end_ms = now_ms
            while windows and windows[0].open_messages == 0:
                reports.append(self._report(number, windows.popleft()))
        self._start_ms = now_ms
        return reports

    def _report(self, write_partition: int, window: _ReportWindow) -> ProducedReport:
        return ProducedReport(
            version=REPORT_VERSION,
            topic=self._options.topic,
            write_partition=write_partition,
            producer_id=self._options.producer_id,
            epoch=self._options.epoch,
            first=window.first,
            last=window.last,
            records=window.records,
            size_bytes=window.size_bytes,
            crc_sum=window.crc_sum % CRC_MODULUS,
            failed=runs_of(window.failed),
            duplicates=window.duplicates,
            window_start_ms=window.start_ms,
            window_end_ms=window.end_ms or window.start_ms,
            topic_id=self._options.topic_id,
            client=self._client,
        )


# -- of a member of a consumer group --------------------------------------------------------


@dataclass(slots=True)
class _ReadPartition:
    """One partition that is read.

    Attributes:
        reach: where the reader stood last; None as long as nothing ties it to what was before.
        began: where it was last said to have begun, while there is no `reach`.
        waiting: handed out and not committed.
        done: committed and not reported.
    """

    reach: int | None
    began: int | None = None
    waiting: deque[ConsumedReport] = field(default_factory=deque)
    done: list[ConsumedReport] = field(default_factory=list)


class ConsumedCounters:
    """Counts what a member of a group is handed and commits (see `memq.core.audit.consumed`).

    What is handed out waits, Batch by Batch, until a commit goes past it; only then is it consumed.
    The offset at which the reader stood before each Batch is known, so gaps in the numbering of a
    queue belong to the Batch after them, while a jump, by a seek for instance, is counted as
    `skipped`.

    Where a member begins is a report of its own, which covers nothing: when it takes up what the
    group has committed, or commits where the group begins. So the audit knows of a member that is
    killed before it can report what it has committed.

    Only what was stepped over is missing for certain, by reading on elsewhere or by a commit beyond
    what was read. The group may go on after what a member reports, and the next member may be
    killed before its first report. So no report of a member is `final`.

    Up to `MAX_WAITING` Batches of a partition wait one by one; beyond that the oldest are joined
    into one report, which waits for a commit past all of it.

    Args:
        topic: the topic.
        topic_id: of it.
        group: the group.
        client: how the consumer names itself.
        now_ms: milliseconds since 1970 UTC.
        on_report: told when there is something to report.
    """

    def __init__(
        self,
        topic: str,
        topic_id: str,
        group: str,
        client: str,
        *,
        now_ms: Callable[[], int],
        on_report: Callable[[], None] = lambda: None,
    ) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._group = group
        self._client = client
        self._now_ms = now_ms
        self._on_report = on_report
        self._partitions: dict[int, _ReadPartition] = {}
        self._last: list[ConsumedReport] = []  # of partitions that were given up

    def __repr__(self) -> str:
        partitions = list(self._partitions.values())
        waiting = sum(len(each.waiting) for each in partitions)
        return (
            f"<ConsumedCounters {self._group} [{len(partitions)} partitions | {waiting} waiting]>"
        )

    def took_up(self, partition: int, committed: int | None) -> None:
        """Begin to count a partition; the group had committed this next offset, or none.

        A group that has committed none may still `seek`, so that it begins elsewhere.
        """
        read = self._partitions[partition] = _ReadPartition(committed)
        if committed is not None:
            self._say(read, self._report(partition, committed, committed))

    def handed_out(
        self,
        partition: int,
        start: int,
        end: int,
        *,
        records: int,
        entries: Sequence[IndexEntry],
    ) -> None:
        """Count a Batch that was given to the application.

        Args:
            partition: read partition.
            start: where the reader stood before.
            end: one past the offset of the Batch.
            records: LogMessages that were given.
            entries: Messages of the Batch.
        """
        read = self._partitions.setdefault(partition, _ReadPartition(None))
        began = read.reach is None
        skipped = 0 if read.reach is None else max(0, start - read.reach)
        read.reach = end
        read.waiting.append(
            self._report(
                partition,
                start,
                end,
                batches=1,
                messages=len(entries),
                records=records,
                crc_sum=sum([entry.crc32c for entry in entries]) % CRC_MODULUS,
                skipped=skipped,
                began=began,
            )
        )
        if len(read.waiting) > MAX_WAITING:
            oldest = read.waiting.popleft()
            if joined := oldest.joined(read.waiting[0]):  # else it is never reported
                read.waiting[0] = joined

    def committed(self, offsets: Mapping[int, int]) -> None:
        """Record that these next offsets are stored."""
        for partition, offset in offsets.items():
            if (read := self._partitions.get(partition)) is None:
                continue
            while read.waiting and read.waiting[0].end <= offset:
                self._say(read, read.waiting.popleft())
            if read.reach is not None and read.reach < offset:
                unread = offset - read.reach
                self._say(read, self._report(partition, offset, offset, skipped=unread))
                read.reach = offset
            if read.reach is None and read.began != offset:
                read.began = offset
                self._say(read, self._report(partition, offset, offset, began=True))

    def gave_up(self, partitions: Iterable[int]) -> None:
        """Stop counting these partitions. What is not committed was not consumed."""
        for partition in partitions:
            if read := self._partitions.pop(partition, None):
                self._last += self._take_done(read)

    def take_reports(self) -> list[ConsumedReport]:
        """Take what was committed since the last time."""
        reports, self._last = self._last, []
        for read in self._partitions.values():
            reports += self._take_done(read)
        return reports

    def _say(self, read: _ReadPartition, report: ConsumedReport) -> None:
        """Have something reported the next time."""
        joined = read.done[-1].joined(report) if read.done else None
        if joined is None:
            read.done.append(report)
        else:
            read.done[-1] = joined
        self._on_report()

    def _take_done(self, read: _ReadPartition) -> list[ConsumedReport]:
        done, read.done = read.done, []
        now_ms = self._now_ms()
        return [msgspec.structs.replace(report, window_end_ms=now_ms) for report in done]

    def _report(self, partition: int, start: int, end: int, **fields: Any) -> ConsumedReport:
        now_ms = self._now_ms()
        return ConsumedReport(
            topic=self._topic,
            topic_id=self._topic_id,
            consumer=self._group,
            partition=partition,
            start=start,
            end=end,
            window_start_ms=now_ms,
            window_end_ms=now_ms,
            final=False,
            client=self._client,
            **fields,
        )
