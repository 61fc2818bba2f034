"""Where `memq consume` begins and ends, and which LogMessages between it prints.

All that is asked for becomes one `BatchSelection`: offsets to begin at, offsets to end at, and what
is left out of the Batches between. It is made before the first Batch is read, from what is retained
by then and from the notifications.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from memq.core.ranges import OffsetRange
from memq.errors import InvalidRequestError
from memq.reading.log import check_retained
from memq.reading.plan import EventTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from memq.client.topic import SyncTopicClient
    from memq.core.notification import PublishedBatch
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.batch import Batch

_TAIL_PAGE = 100  # offsets looked at a time, from the end of a partition on


class BatchSelection(NamedTuple):
    """What is printed.

    Attributes:
        start: offset to begin at by partition; None where the consumer or its group decides.
        stop: offset to end before by partition; None for no end.
        skipped: LogMessages at the beginning of some Batches, by partition and offset, that are
            left out.
        times: of the LogMessages that are printed; None for all.
    """

    start: dict[int, int] | None = None
    stop: dict[int, int] | None = None
    skipped: dict[tuple[int, int], int] = {}  # noqa: RUF012 - never changed
    times: EventTimes | None = None

    def of(self, batch: Batch) -> Batch:
        """Select what is printed of a Batch."""
        skipped = self.skipped.get((batch.partition, batch.offset), 0)
        if skipped:
            batch = batch.slice(skipped, len(batch))
        return batch if self.times is None else batch.where(self.times.wanted)


class Asked(NamedTuple):
    """What was asked for.

    Attributes:
        wanted: a range; None for none.
        partitions: only these; none for all.
        tail: so many LogMessages from the end; None for no such beginning.
        since: times to begin with; None for no such beginning.
        until: times to end before; None for no such end.
        from_beginning: begin with what is retained.
        exit_at_end: end with what there is now.
        offset: of each read partition, to begin at; None for no such beginning.
    """

    wanted: OffsetRange | None
    partitions: tuple[int, ...]
    tail: int | None
    since: datetime | None
    until: datetime | None
    from_beginning: bool
    exit_at_end: bool
    offset: int | None = None

    @property
    def ends(self) -> bool:
        """Whether it ends by itself, with all read that there is now."""
        return self.exit_at_end or self.wanted is not None or self.until is not None


def select(client: SyncTopicClient, topic: str, asked: Asked) -> BatchSelection:
    """Find out where that begins and ends.

    Raises:
        InvalidRequestError: there is no such partition, the times are none, or LogMessages of the
            topic have no time.
        OffsetOutOfRangeError: the range, or the offset, is not retained.
        MemqError: the brokers failed.
    """
    retained = client.offsets()
    if asked.wanted is not None:
        check_retained(topic, asked.wanted, retained)
        number, first, end, _ = asked.wanted
        return BatchSelection({number: first}, {number: end})
    chosen = _chosen(topic, asked.partitions, retained)
    ends = {each.partition: each.end for each in chosen}
    stop = ends if asked.ends else None
    if asked.offset is not None:
        for number, end in ends.items():
            beyond = asked.offset > end
            wanted = OffsetRange(number, asked.offset, max(asked.offset, end) + beyond)
            check_retained(topic, wanted, retained)
        return BatchSelection(dict.fromkeys(ends, asked.offset), stop)
    if asked.tail is not None:
        start, skipped = tail_of(_newest(client, chosen, asked.tail), ends, asked.tail)
        return BatchSelection(start, stop, skipped)
    if (times := EventTimes.between(asked.since, asked.until)) is not None:
        times = times.of_topic(client.info())
        return BatchSelection(ends | _first_at(client, chosen, times), stop, times=times)
    if asked.partitions:
        begin = {each.partition: each.start for each in chosen}
        return BatchSelection(begin if asked.from_beginning else ends, stop)
    return BatchSelection(stop=stop)


def _chosen(
    topic: str, partitions: tuple[int, ...], retained: Sequence[PartitionOffsets]
) -> list[PartitionOffsets]:
    for number in partitions:
        if number >= len(retained):
            raise InvalidRequestError(
                f"topic {topic!r} has no partition {number}; it has 0 to {len(retained) - 1}"
            )
    return [each for each in retained if not partitions or each.partition in partitions]


def _first_at(
    client: SyncTopicClient, retained: Iterable[PartitionOffsets], times: EventTimes
) -> dict[int, int]:
    """Find the first Batch of each partition that may have one of the times, where there is one.

    All notifications are looked at: a LogMessage may be published long after its time.
    """
    first: dict[int, int] = {}
    for each in retained:
        for batch in client.batches([OffsetRange(each.partition, each.start, each.end)]):
            if times.may_be_in(batch.notification):
                first[each.partition] = batch.offset
                break
    return first


def _newest(
    client: SyncTopicClient, retained: Iterable[PartitionOffsets], count: int
) -> list[PublishedBatch]:
    """Find the last Batches of each partition, with at least so many LogMessages."""
    newest: list[PublishedBatch] = []
    for each in retained:
        end, missing = each.end, count
        while missing > 0 and end > each.start:
            start = max(each.start, end - _TAIL_PAGE)
            found = list(client.batches([OffsetRange(each.partition, start, end)]))
            missing -= sum(batch.notification.records for batch in found)
            newest += found
            end = start
    return newest


def tail_of(
    batches: Iterable[PublishedBatch], ends: dict[int, int], count: int
) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Find where the last LogMessages of some Batches begin, by the times of publication.

    Args:
        batches: the last ones of each partition.
        ends: of the partitions.
        count: LogMessages wanted.

    Returns:
        The first offset by partition, and how many LogMessages of the oldest Batch are left out.
    """
    start, missing = dict(ends), count
    for batch in sorted(batches, key=attrgetter("timestamp_ms", "offset"), reverse=True):
        if missing <= 0:
            break
        start[batch.partition] = min(start[batch.partition], batch.offset)
        missing -= batch.notification.records
        if missing < 0:
            return start, {(batch.partition, batch.offset): -missing}
    return start, {}
