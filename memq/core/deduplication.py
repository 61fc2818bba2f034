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
Rule 5. Memory is bounded, and nothing is forgotten for it. A producer with too many intervals (it
    leaves gaps: Messages given up) has its first one folded into a floor: sequences up to the floor
    are refused with `SequenceConflictError`, for they may be published or not; they are never
    accepted again. All but the producers that were used last are kept packed, as bytes. When these
    reach `MAX_BYTES`, a producer that is not known is turned away, retriably, until others have
    been forgotten by rule 3; at twice as many bytes every Message that is not published is.
Rule 6. A rebuild has the same bound. What it has no room for it leaves out, and while any of that
    is younger than the window no producer that is not known is accepted: it may be one of those.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.ranges import IntervalSet
from memq.core.units import counted, format_duration_ms
from memq.errors import ProducerFencedError, SequenceConflictError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.format.batch import ProducerRun

MAX_PRODUCERS = 1 << 20  # per write partition: so many of the usual size fit into `MAX_BYTES`
MAX_BYTES = 256 * MAX_PRODUCERS  # of packed producers; one with an id of 36 bytes takes some 230
MAX_UNPACKED = 10_000  # producers that were used last; 2 KiB each, 10 KiB with many Batches
MAX_INTERVALS = 1_024  # per producer; each is a Message that was given up
MAX_RECENT = 64  # Batches per producer that are remembered, to answer duplicates in full
MAX_PACKED_RECENT = 4  # of a packed one; others are looked for in the queue when they are asked for
_ENTRY_BYTES = 64  # of a dict, for each packed producer, with what the allocator rounds up


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
        self.floor = -1  # every sequence up to here is final, published or not
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


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(
    tuple[int, int, int | None, list[int], list[int], list[tuple[int, int, BatchRef]]]
).decode
_TIME_BYTES = 8


def _time(time_ms: int) -> bytes:
    return max(0, time_ms).to_bytes(_TIME_BYTES)


def _packed(producer: _Producer) -> bytes:
    """Pack a producer into bytes that sort by when it was touched."""
    it, published = producer, producer.published
    fields = (it.epoch, it.floor, it.next_sequence, published.starts, published.ends)
    return _time(it.touched_ms) + _pack((*fields, list(it.recent)[-MAX_PACKED_RECENT:]))


def _unpacked(data: bytes) -> _Producer:
    epoch, floor, next_sequence, starts, ends, recent = _unpack(memoryview(data)[_TIME_BYTES:])
    producer = _Producer(epoch)
    producer.floor, producer.next_sequence = floor, next_sequence
    producer.published.starts, producer.published.ends = starts, ends
    producer.recent.extend(recent)
    producer.touched_ms = int.from_bytes(data[:_TIME_BYTES])
    return producer


class DeduplicationWindow:
    """Published sequences of one write partition.

    Args:
        window_ms: how long a producer that publishes nothing is remembered.
    """

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._producers: OrderedDict[str, _Producer] = OrderedDict()  # idle longest first
        self._packed: dict[str, bytes] = {}
        self._packed_bytes = 0
        self._left_out_ms: int | None = None  # the latest of what there was no room for

    def __repr__(self) -> str:
        return f"<DeduplicationWindow [{len(self)} producers | {self.window_ms} ms]>"

    def __len__(self) -> int:
        """Count the known producers."""
        return len(self._producers) + len(self._packed)

    def admit(self, producer_id: str, epoch: int, sequence: int, now_ms: int) -> None:
        """Note that a Message was accepted; lower epochs of its producer are fenced."""
        producer = self._known(producer_id)
        if producer is None or producer.epoch < epoch:
            producer = _Producer(epoch)
            producer.touched_ms = now_ms
            self._keep(producer_id, producer)
        producer.next_sequence = sequence + 1

    def rewind(self, producer_id: str, epoch: int, sequence: int) -> None:
        """Note that an accepted Message failed: an ordered topic wants it, or less, next."""
        producer = self._known(producer_id)
        if producer is not None and producer.epoch == epoch:
            known = producer.next_sequence
            producer.next_sequence = sequence if known is None else min(known, sequence)

    def is_published(self, producer_id: str, epoch: int, sequence: int) -> bool:
        """Return whether the Message was published already.

        Raises:
            ProducerFencedError: a newer epoch of this producer id is writing.
            SequenceConflictError: the sequence is too old to tell.
            UnavailableError: the producer is new, and there is no room to remember it.
        """
        producer = self._known(producer_id)
        if producer is None:
            self._check_room(MAX_BYTES if self._left_out_ms is None else 0)
            return False
        if epoch < producer.epoch:
            raise ProducerFencedError(
                f"epoch {epoch} of producer {producer_id!r} is fenced by epoch "
                f"{producer.epoch}; a newer process has taken over this id"
            )
        if epoch == producer.epoch:
            if sequence in producer.published:
                return True
            if sequence <= producer.floor:
                raise SequenceConflictError(
                    f"sequence {sequence} of producer {producer_id!r} is not above "
                    f"{producer.floor}, below which everything is final; use a new producer id "
                    "or epoch"
                )
        self._check_room(2 * MAX_BYTES)
        return False

    def batch_of(self, producer_id: str, epoch: int, sequence: int) -> BatchRef | None:
        """Return the Batch of a published Message, while that is still remembered."""
        producer = self._known(producer_id)
        if producer is None or producer.epoch != epoch:
            return None
        for first, last, batch in producer.recent:
            if first <= sequence <= last:
                return batch
        return None

    def next_sequence(self, producer_id: str, epoch: int) -> int | None:
        """Return the sequence that an ordered topic accepts next; None when the producer is not
        known.
        """
        producer = self._known(producer_id)
        if producer is None or producer.epoch != epoch:
            return None
        return producer.next_sequence

    def publish(self, runs: Iterable[ProducerRun], batch: BatchRef, now_ms: int) -> None:
        """Note that a Batch with these runs is in the queue, since `now_ms`."""
        for run in runs:
            producer = self._known(run.producer_id)
            if producer is None and self._packed_bytes >= MAX_BYTES:
                self._left_out_ms = max(self._left_out_ms or 0, now_ms)
                continue
            if producer is None or run.epoch > producer.epoch:
                producer = _Producer(run.epoch)
            elif run.epoch < producer.epoch:
                continue  # fenced since; its duplicates are refused by epoch
            producer.add(run.first, run.last)
            producer.next_sequence = max(producer.next_sequence or 0, run.last + 1)
            producer.remember(run.first, run.last, batch)
            producer.touched_ms = max(producer.touched_ms, now_ms)
            self._keep(run.producer_id, producer)

    def expire(self, now_ms: int) -> int:
        """Forget producers that published nothing for longer than the window; returns how many."""
        limit_ms, before = now_ms - self.window_ms, len(self)
        for name in [name for name, it in self._producers.items() if it.touched_ms < limit_ms]:
            del self._producers[name]
        limit = _time(limit_ms)
        for name in [name for name, data in self._packed.items() if data < limit]:
            self._take_packed(name)
        if self._left_out_ms is not None and self._left_out_ms < limit_ms:
            self._left_out_ms = None
        return before - len(self)

    # -- inside -----------------------------------------------------------------------------

    def _known(self, producer_id: str) -> _Producer | None:
        """Return what is known of a producer, unpacked if need be."""
        producer = self._producers.get(producer_id)
        if producer is None and producer_id in self._packed:
            producer = _unpacked(self._take_packed(producer_id))
            self._keep(producer_id, producer)
        return producer

    def _keep(self, producer_id: str, producer: _Producer) -> None:
        """Have a producer as the one that was used last, and pack the one idle longest."""
        self._producers[producer_id] = producer
        self._producers.move_to_end(producer_id)
        if len(self._producers) > MAX_UNPACKED:
            name, idle = self._producers.popitem(last=False)
            data = _packed(idle)
            self._packed[name] = data
            self._packed_bytes += _size_bytes(name, data)

    def _take_packed(self, producer_id: str) -> bytes:
        data = self._packed.pop(producer_id)
        self._packed_bytes -= _size_bytes(producer_id, data)
        return data

    def _check_room(self, max_bytes: int) -> None:
        if self._packed_bytes >= max_bytes:
            raise UnavailableError(
                f"this write partition remembers {counted(len(self), 'producer')} of the last "
                f"{format_duration_ms(self.window_ms)} (dedup_window) in {self._packed_bytes} "
                f"bytes, and {MAX_BYTES} is its limit, so it takes no new one until others are "
                "older; use fewer producer ids, more write partitions or a shorter dedup_window"
            )


def _size_bytes(producer_id: str, data: bytes) -> int:
    return sys.getsizeof(producer_id) + sys.getsizeof(data) + _ENTRY_BYTES
