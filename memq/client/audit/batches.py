"""Going through the notifications of a topic and telling the audit what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from memq.client.audit.objects import Inspection, ObjectReader, inspect
from memq.client.notifications import entries_of, map_ahead
from memq.client.source import Place, name_of
from memq.core.audit.reports import ProducerName
from memq.core.notification.notification import decode_notification
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from memq.client.audit.damage import Damage
    from memq.client.notifications import Stretch
    from memq.client.topic import TopicClient
    from memq.core.audit.produced import Reconciliation
    from memq.core.format.batch import ProducerRun
    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry

IN_FLIGHT = 16  # indexes read at a time: small reads, and storage answers slowly
DEEP_IN_FLIGHT = 4  # whole objects read at a time: each is held in memory
MAX_RUNS_SHOWN = 5  # of a Batch that cannot be read, in its sentence


class Seen(NamedTuple):
    """A notification that was read."""

    notification: Notification
    place: Place
    in_window: bool


InspectBatches = Callable[[AsyncIterator[Seen]], AsyncGenerator[tuple[Seen, Inspection], None]]
"""Looks deep into Batches, in their order, wherever that is done."""


class BatchLook:
    """Looks into the Batches that matter.

    Args:
        queue: of the topic.
        reconciliation: told what is there.
        executor: whose threads read objects.
        damage: told what cannot be read.
        holds: whether a time is in the window; only what was published then may be unreported.
        deep: read every byte of every Batch in the window, and not only the indexes of those that
            reports name.
        progress: told how many Batches were looked at, and of how many.
        inspect_batches: looks into the Batches; None for the threads of the executor.
    """

    def __init__(
        self,
        queue: TopicClient,
        reconciliation: Reconciliation,
        executor: Executor,
        damage: Damage,
        *,
        holds: Callable[[int], bool],
        deep: bool,
        progress: Callable[[int, int], None] | None,
        inspect_batches: InspectBatches | None = None,
    ) -> None:
        self._queue = queue
        self._reconciliation = reconciliation
        self._executor = executor
        self._damage = damage
        self._holds = holds
        self._deep = deep
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._objects = ObjectReader(queue, self._loop)
        in_flight = DEEP_IN_FLIGHT if deep else IN_FLIGHT
        self._inspect_batches = inspect_batches or partial(map_ahead, self._inspect, most=in_flight)
        self._done = self._total = 0
        self._starts: dict[int, int] = {}  # first offset that is held, when an object was gone

    async def at(self, stretches: Sequence[Stretch]) -> None:
        """Look at the notifications of some stretches."""
        self._total += sum(stretch.entries for stretch in stretches)
        found = self._inspect_batches(self._needed(stretches))
        async with aclosing(found):
            async for seen, inspection in found:
                if not inspection.gone or not await self._is_removed(seen.place):
                    self._take_in(seen, inspection)

    async def _needed(self, stretches: Sequence[Stretch]) -> AsyncIterator[Seen]:
        """The Batches that must be looked into."""
        async for entry in entries_of(self._queue, stretches):
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)
            seen = self._read(entry)
            if seen is None:
                continue
            runs, write_partition = seen.notification.producers, seen.notification.write_partition
            needs = partial(self._reconciliation.needs, write_partition, in_window=seen.in_window)
            if (self._deep and seen.in_window) or any(map(needs, runs)):
                yield seen

    def _read(self, entry: NotificationEntry) -> Seen | None:
        place = Place(entry.partition, entry.offset)
        try:
            notification = decode_notification(entry.payload)
        except CorruptDataError as exc:
            self._damage.add(f"{self._queue.topic}/{entry.partition} offset {entry.offset}: {exc}")
            return None
        return Seen(notification, place, self._holds(entry.timestamp_ms))

    async def _inspect(self, seen: Seen) -> Inspection:
        get_range = partial(self._objects.get_range, seen.notification.uri)
        work = partial(inspect, seen.notification, get_range, deep=self._deep)
        return await self._loop.run_in_executor(self._executor, work)

    async def _is_removed(self, place: Place) -> bool:
        """Whether retention has removed a Batch meanwhile: its notification goes first."""
        if place.offset >= self._starts.get(place.partition, 0):
            self._starts = await self._queue.starts()
        return place.offset < self._starts[place.partition]

    def _take_in(self, seen: Seen, inspection: Inspection) -> None:
        notification, check = seen.notification, self._reconciliation
        write_partition = notification.write_partition
        for entry in inspection.sound:
            name = ProducerName(write_partition, entry.producer_id, entry.epoch)
            check.stored(
                name, entry.sequence, entry.records, entry.crc32c, in_window=seen.in_window
            )
        unreadable = notification.producers if inspection.gone else inspection.damaged
        for run in unreadable:
            check.unreadable(write_partition, run, gone=inspection.gone, in_window=seen.in_window)
        concerns = f"; it concerns {_shown(unreadable)}" if unreadable else ""
        for finding in inspection.findings:
            line = f"{name_of(notification, seen.place)}: {finding}{concerns}"
            self._damage.add(line)


def _shown(runs: Sequence[ProducerRun]) -> str:
    """Runs of sequences for a sentence."""
    more = [f"{len(runs) - MAX_RUNS_SHOWN} more runs"] if len(runs) > MAX_RUNS_SHOWN else []
    return ", ".join([*map(_shown_run, runs[:MAX_RUNS_SHOWN]), *more])


def _shown_run(run: ProducerRun) -> str:
    several = f"sequences {run.first} to {run.last}"
    sequences = several if run.messages > 1 else f"sequence {run.first}"
    return f"producer {run.producer_id} epoch {run.epoch} {sequences} ({run.records} LogMessages)"
