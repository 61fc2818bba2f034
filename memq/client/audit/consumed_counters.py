"""What a group member is done with, counted for its audit reports (see `memq.core.audit.consumed`).

What is handed out waits, Batch by Batch, until a commit goes past it; only then is it consumed. The
offset at which the reader stood before each Batch is known, so gaps in the numbering of a queue
belong to the Batch behind them, while a jump, by a seek for instance, is counted as `skipped`.

Only what was stepped over is missing for certain, by reading on elsewhere or by a commit beyond
what was read. The group may go on after what a member reports, and the next member may be killed
before its first report. So no report of a member is `final`.

Up to `MAX_WAITING` Batches of a partition wait one by one; beyond that the oldest become one piece,
which waits for a commit past all of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.audit.reports import CRC_MODULUS, ConsumedReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memq.core.format.index import IndexEntry

MAX_WAITING = 1_000  # Batches of a partition, about 150 bytes each; a topic has 256 at most


@dataclass(slots=True)
class Piece:
    """Batches that were handed out one after the other; see `ConsumedReport` for the fields."""

    start: int
    end: int
    since_ms: int
    batches: int = 1
    messages: int = 0
    records: int = 0
    repeats: int = 0
    crc_sum: int = 0
    skipped: int = 0

    def join(self, following: Piece) -> bool:
        """Take in what was handed out next, if it follows; whether it does."""
        if following.start != self.end or following.skipped:
            return False
        self.end = following.end
        self.batches += following.batches
        self.messages += following.messages
        self.records += following.records
        self.repeats += following.repeats
        self.crc_sum += following.crc_sum
        return True


@dataclass(slots=True)
class _Lane:
    """One partition that is read.

    Attributes:
        reach: where the reader stood last; None as long as nothing ties it to what was before.
        waiting: handed out and not committed.
        done: committed and not reported.
    """

    reach: int | None
    waiting: deque[Piece] = field(default_factory=deque)
    done: list[Piece] = field(default_factory=list)


class ConsumedCounters:
    """Counts what a member of a group is handed and commits.

    Args:
        topic: the topic.
        incarnation: of it.
        group: the group.
        client: how the consumer names itself.
        now_ms: milliseconds since 1970 UTC.
    """

    def __init__(
        self,
        topic: str,
        incarnation: str,
        group: str,
        client: str,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._incarnation = incarnation
        self._group = group
        self._client = client
        self._now_ms = now_ms
        self._lanes: dict[int, _Lane] = {}
        self._last: list[ConsumedReport] = []  # of partitions that were given up

    def __repr__(self) -> str:
        waiting = sum(len(lane.waiting) for lane in list(self._lanes.values()))
        return f"<ConsumedCounters {self._group} [{len(self._lanes)} lanes | {waiting} waiting]>"

    def took_up(self, partition: int, committed: int | None) -> None:
        """A partition is read from now on; the group had committed this next offset, or none."""
        self._lanes[partition] = _Lane(committed)

    def handed_out(
        self,
        partition: int,
        start: int,
        end: int,
        *,
        records: int,
        entries: Sequence[IndexEntry],
        repeats: Sequence[int],
    ) -> None:
        """A Batch was given to the application.

        Args:
            partition: read partition.
            start: where the reader stood before.
            end: one past the offset of the Batch.
            records: LogMessages that were given.
            entries: Messages of the Batch.
            repeats: positions of those that were dropped as repeats.
        """
        lane = self._lanes.setdefault(partition, _Lane(None))
        skipped = 0 if lane.reach is None else max(0, start - lane.reach)
        lane.reach = end
        crc_sum = sum([entry.crc32c for entry in entries])
        crc_sum -= sum(entries[at].crc32c for at in repeats)
        messages = len(entries) - len(repeats)
        piece = Piece(
            start, end, self._now_ms(), 1, messages, records, len(repeats), crc_sum, skipped
        )
        lane.waiting.append(piece)
        if len(lane.waiting) > MAX_WAITING:
            oldest = lane.waiting.popleft()
            if oldest.join(lane.waiting[0]):  # else it is never reported
                lane.waiting[0] = oldest

    def committed(self, offsets: Mapping[int, int]) -> None:
        """These next offsets are stored."""
        for partition, offset in offsets.items():
            lane = self._lanes.get(partition)
            if lane is None:
                continue
            while lane.waiting and lane.waiting[0].end <= offset:
                piece = lane.waiting.popleft()
                if not (lane.done and lane.done[-1].join(piece)):
                    lane.done.append(piece)
            if lane.reach is not None and lane.reach < offset:
                unread = offset - lane.reach
                lane.done.append(Piece(offset, offset, self._now_ms(), batches=0, skipped=unread))
                lane.reach = offset

    def gave_up(self, partitions: Iterable[int]) -> None:
        """These partitions are not read any more. What is not committed was not consumed."""
        for partition in partitions:
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                self._last += self._reports(partition, lane)

    def take_reports(self, now_ms: int) -> list[ConsumedReport]:
        """What was committed since the last time, up to `now_ms`."""
        del now_ms  # it was committed earlier, and pieces know when
        reports, self._last = self._last, []
        for partition, lane in self._lanes.items():
            reports += self._reports(partition, lane)
        return reports

    def _reports(self, partition: int, lane: _Lane) -> list[ConsumedReport]:
        done, lane.done = lane.done, []
        return [self._report(partition, piece) for piece in done]

    def _report(self, partition: int, piece: Piece) -> ConsumedReport:
        return ConsumedReport(
            topic=self._topic,
            incarnation=self._incarnation,
            consumer=self._group,
            partition=partition,
            start=piece.start,
            end=piece.end,
            batches=piece.batches,
            messages=piece.messages,
            records=piece.records,
            repeats=piece.repeats,
            crc_sum=piece.crc_sum % CRC_MODULUS,
            window_start_ms=piece.since_ms,
            window_end_ms=self._now_ms(),
            skipped=piece.skipped,
            final=False,
            client=self._client,
        )
