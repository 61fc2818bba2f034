"""Which sequences of which producers are published: the window that keeps out duplicates.

Theory of operation
-------------------
A Message is named by (topic, write partition, producer id, epoch, sequence). Its producer sends the
very same bytes under that name until it is acked or given up, always to the same write partition,
so one `DeduplicationWindow` per write partition sees every duplicate.

Rule 1. A sequence is *published* once its Batch's notification is in the queue. Published sequences
    are kept per producer as a set of intervals: a well-behaved producer costs one interval,
    whatever it has sent.
Rule 2. The window is rebuilt from the notifications of the last `dedup_window`, after the previous
    owner was fenced. What this misses is older than any producer's delivery deadline. Those of
    several read partitions come in any order; a Batch's id tells which was opened first, so what is
    remembered does not depend on it.
Rule 3. A producer that published nothing for longer than the window is forgotten. Times are running
    time (`memq.core.clock`), in the process and across restarts: a wall clock that steps makes
    nothing forgotten.
Rule 4. A higher epoch of a producer id starts from nothing; a lower one is fenced from the moment
    the first Message of the higher one is accepted.
Rule 5. Memory is bounded. A producer with too many intervals (it leaves gaps: Messages given up)
    has its first one folded into a floor: sequences up to the floor are refused with
    `SequenceConflictError`, for they may be published or not; they are never accepted again. With
    too many producers the one idle longest goes, if it has been idle for `MIN_IDLE_MS`; otherwise a
    new producer is turned away, retriably.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

from memq.core.ranges import IntervalSet
from memq.errors import ProducerFencedError, SequenceConflictError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.format.batch import ProducerRun

MAX_PRODUCERS = 100_000  # per write partition; about 1 KiB each
MAX_INTERVALS = 1_024  # per producer; each is a Message that was given up
MAX_RECENT = 64  # Batches per producer that are remembered, to answer duplicates in full
MIN_IDLE_MS = 600_000  # no producer retries for longer than this by default


class BatchRef(NamedTuple):
    """The Batch that a Message was published in.

    Attributes:
        partition: read partition.
        offset: of the Batch's notification.
        batch_id: of the Batch; of two in one write partition the greater one was opened later.
    """

    partition: int
    offset: int
    batch_id: str


class _Producer:
    """What is known of one producer's current epoch."""

    __slots__ = ("epoch", "floor", "next_sequence", "published", "recent", "touched_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.published = IntervalSet()
        self.floor = -1  # every sequence up to here is settled, published or not
        self.next_sequence: int | None = None  # that an ordered topic accepts; None when not known
        self.recent: deque[tuple[int, int, BatchRef]] = deque(maxlen=MAX_RECENT)
        self.touched_ms = 0

    def add(self, first: int, last: int) -> None:
        """Note that a run is published."""
        self.published.add(first, last + 1)
        if len(self.published) > MAX_INTERVALS:
            self.floor = max(self.floor, self.published.pop_first().end - 1)

    def remember(self, first: int, last: int, batch: BatchRef) -> None:
        """Keep the Batch of a run, if it is among the last ones of this producer."""
        recent, new = self.recent, (first, last, batch)
        if not recent or recent[-1][2].batch_id <= batch.batch_id:
            recent.append(new)
        else:
            ordered = sorted([*recent, new], key=_batch_and_run)
            recent.clear()
            recent.extend(ordered)


def _batch_and_run(recent: tuple[int, int, BatchRef]) -> tuple[str, int]:
    return recent[2].batch_id, recent[0]


class DeduplicationWindow:
    """Published sequences of one write partition.

    Args:
        window_ms: how long a producer that publishes nothing is remembered.
    """

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._producers: OrderedDict[str, _Producer] = OrderedDict()  # idle longest first
        self._newest_ms = 0
        self._in_order = True  # False while times that came late have mixed up the producers

    def __repr__(self) -> str:
        return f"<DeduplicationWindow [{len(self._producers)} producers | {self.window_ms} ms]>"

    def admit(self, producer_id: str, epoch: int, sequence: int, now_ms: int) -> None:
        """Note that a Message was accepted; lower epochs of its producer are fenced."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch < epoch:
            producer = self._producers[producer_id] = _Producer(epoch)
            producer.touched_ms = now_ms
            self._producers.move_to_end(producer_id)
        producer.next_sequence = sequence + 1

    def rewind(self, producer_id: str, epoch: int, sequence: int) -> None:
        """Note that an accepted Message failed: an ordered topic wants it, or less, next."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer.epoch == epoch:
            known = producer.next_sequence
            producer.next_sequence = sequence if known is None else min(known, sequence)

    def is_published(self, producer_id: str, epoch: int, sequence: int) -> bool:
        """Whether the Message was published already.

        Raises:
            ProducerFencedError: a newer epoch of this producer id is writing.
            SequenceConflictError: the sequence is too old to tell.
            UnavailableError: the producer is new and there are too many.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            if len(self._producers) >= MAX_PRODUCERS:
                self._check_room()
            return False
        if epoch != producer.epoch:
            if epoch < producer.epoch:
                raise ProducerFencedError(
                    f"epoch {epoch} of producer {producer_id!r} is fenced by epoch "
                    f"{producer.epoch}; a newer process has taken over this id"
                )
            return False
        if sequence in producer.published:
            return True
        if sequence <= producer.floor:
            raise SequenceConflictError(
                f"sequence {sequence} of producer {producer_id!r} is not above {producer.floor}, "
                "below which everything is settled; use a new producer id or epoch"
            )
        return False

    def batch_of(self, producer_id: str, epoch: int, sequence: int) -> BatchRef | None:
        """The Batch of a published Message, while that is still remembered."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return None
        for first, last, batch in producer.recent:
            if first <= sequence <= last:
                return batch
        return None

    def next_sequence(self, producer_id: str, epoch: int) -> int | None:
        """The sequence that an ordered topic accepts next; None when the producer is not known."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return None
        return producer.next_sequence

    def publish(self, runs: Iterable[ProducerRun], batch: BatchRef, now_ms: int) -> None:
        """Note that a Batch with these runs is in the queue, since `now_ms`."""
        if now_ms >= self._newest_ms:
            self._newest_ms = now_ms
        else:
            self._in_order = False
        for run in runs:
            producer = self._producers.get(run.producer_id)
            if producer is None or run.epoch > producer.epoch:
                producer = self._producers[run.producer_id] = _Producer(run.epoch)
            elif run.epoch < producer.epoch:
                continue  # fenced since; its duplicates are refused by epoch
            producer.add(run.first, run.last)
            producer.next_sequence = max(producer.next_sequence or 0, run.last + 1)
            producer.remember(run.first, run.last, batch)
            producer.touched_ms = max(producer.touched_ms, now_ms)
            self._producers.move_to_end(run.producer_id)

    def expire(self, now_ms: int) -> int:
        """Forget producers that published nothing for longer than the window; returns how many."""
        limit_ms = now_ms - self.window_ms
        expired = 0
        while self._producers:
            oldest = self._idle_longest()
            if self._producers[oldest].touched_ms >= limit_ms:
                break
            del self._producers[oldest]
            expired += 1
        return expired

    def _idle_longest(self) -> str:
        if not self._in_order:
            for name in sorted(self._producers, key=lambda name: self._producers[name].touched_ms):
                self._producers.move_to_end(name)
            self._in_order = True
        return next(iter(self._producers))

    def _check_room(self) -> None:
        oldest_id = self._idle_longest()
        newest_ms = self._producers[next(reversed(self._producers))].touched_ms
        if newest_ms - self._producers[oldest_id].touched_ms < MIN_IDLE_MS:
            raise UnavailableError(
                f"this write partition knows {MAX_PRODUCERS} active producers, its limit; "
                "use fewer producer ids, or more write partitions"
            )
        del self._producers[oldest_id]
