"""Reading what is stored, for the audit: the Batches of a topic, and the reports about it.

Both are objects of Batches that the notifications of a topic name: for the Messages of the topic an
index alone, or every byte; for reports the LogMessages of the audit topic that are about the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from memq.core.audit.produced import ProducedReconciliation
from memq.core.audit.reports import (
    ProducerName,
    StoredReport,
    consumed_key,
    decode_reports,
    report_key,
)
from memq.core.audit.sieve import ProducerSieve
from memq.core.format.batch import producer_runs
from memq.core.format.index import decode_tail
from memq.core.format.reader import message_from_range, read_index, schema_from_range
from memq.core.format.verify import verify
from memq.core.notification import PublishedBatch
from memq.core.units import counted
from memq.errors import CorruptDataError, MemqError, ObjectNotFoundError, StorageError
from memq.reading.objects import FallbackReader, check_length, decode, differences, map_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Executor

    from memq.client.topic import TopicClient
    from memq.core.audit.reports import Report
    from memq.core.format.batch import ProducerRun
    from memq.core.format.index import BatchIndex, IndexEntry
    from memq.core.notification import Notification
    from memq.core.ranges import OffsetRange

IN_FLIGHT = 16  # indexes, or objects of reports, read at a time: small, and storage answers slowly
DEEP_IN_FLIGHT = 4  # whole objects read at a time: each is in memory
MAX_RUNS_SHOWN = 5  # of a Batch that cannot be read, in its sentence
MAX_DAMAGE = 10_000  # sentences of a few hundred bytes; more is a storage that is gone as a whole
IN_FLIGHT_BYTES = 8 << 20  # of objects of reports; read, they take several times as much
MESSAGES_AT_ONCE = 2_000  # a Batch of more counts for several, in what is in flight

Check = ProducedReconciliation | ProducerSieve
GetRange = Callable[[int, int], Any]
"""The bytes of an object from a start on, of a length; fewer where it ends sooner."""


class Damage:
    """Collects what could not be read: sentences, each once; past `MAX_DAMAGE` it only counts."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._more = 0

    def add(self, line: str) -> None:
        """Keep a sentence about a Batch."""
        if len(self._lines) < MAX_DAMAGE or line in self._lines:
            self._lines[line] = None
        else:
            self._more += 1

    def lines(self) -> list[str]:
        """List what was kept, and how much more there is."""
        more = [f"and {self._more} more objects that could not be read"] if self._more else []
        return [*self._lines, *more]


# -- one Batch ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inspection:
    """What was found in one Batch.

    Attributes:
        sound: Messages that are there, as far as was looked.
        damaged: Messages that cannot be read, as runs.
        findings: what does not hold, in plain sentences.
        gone: the object does not exist.
    """

    sound: Sequence[IndexEntry] = ()
    damaged: Sequence[ProducerRun] = ()
    findings: Sequence[str] = ()
    gone: bool = False


def inspect(notification: Notification, get_range: GetRange, *, deep: bool) -> Inspection:
    """Look into the object that a notification names.

    Args:
        notification: the notification.
        get_range: reads the object.
        deep: check every byte, in place of the index alone.

    Raises:
        MemqError: neither storage nor broker could be asked, so nothing is known.
    """
    look = _look_deep if deep else _look
    try:
        return look(notification, get_range)
    except ObjectNotFoundError:
        return Inspection(findings=["the object does not exist"], gone=True)
    except (CorruptDataError, StorageError) as exc:
        return Inspection(damaged=notification.producers, findings=[str(exc)])


def _look(notification: Notification, get_range: GetRange) -> Inspection:
    index = read_index(get_range, notification.size_bytes)
    return Inspection(index.entries, findings=_differences(notification, index))


def _look_deep(notification: Notification, get_range: GetRange) -> Inspection:
    size = notification.size_bytes
    data = memoryview(get_range(0, size + 1)).cast("B")
    check_length(data, size)
    index = decode_tail(data, size)
    findings = _differences(notification, index)
    report = verify(data)
    if report.ok:
        return Inspection(index.entries, findings=findings)
    schema = schema_from_range(data[: index.schema_length], index)
    sound: list[IndexEntry] = []
    damaged: list[IndexEntry] = []
    for entry in index.entries:
        (sound if _is_sound(data, entry, schema) else damaged).append(entry)
    return Inspection(sound, producer_runs(damaged), [*findings, *report.findings])


def _is_sound(data: memoryview, entry: IndexEntry, schema: pa.Schema) -> bool:
    """Return whether a Message is as it was sent."""
    part = data[max(0, entry.offset) : max(0, entry.offset + entry.length)]
    try:
        message_from_range(part, entry, schema)
    except MemqError:
        return False
    return True


def _differences(notification: Notification, index: BatchIndex) -> list[str]:
    """Return how notification and index contradict each other.

    Raises:
        CorruptDataError: the object is another Batch.
    """
    if index.metadata.batch_id != notification.batch_id:
        raise CorruptDataError(f"the object holds another Batch, {index.metadata.batch_id}")
    return list(differences(notification, index, notification.size_bytes))


# -- the Batches of a topic -----------------------------------------------------------------

InspectBatches = Callable[
    [AsyncIterator[PublishedBatch]], AsyncGenerator[tuple[PublishedBatch, Inspection], None]
]
"""Looks deep into Batches, in their order, wherever that is done."""


class BatchInspector:
    """Looks into the Batches that matter, and tells a reconciliation what is there.

    Args:
        topic: whose Batches they are.
        executor: whose threads read objects.
        damage: told what cannot be read.
        in_window: whether a time is in the window; only what was published then may be unreported.
        deep: read every byte of every Batch in the window, and not only the indexes of those that
            reports name.
        progress: told how many Batches were looked at, and of how many.
        inspect_batches: looks into the Batches; None for the threads of the executor.
    """

    def __init__(
        self,
        topic: TopicClient,
        executor: Executor,
        damage: Damage,
        *,
        in_window: Callable[[int], bool],
        deep: bool,
        progress: Callable[[int, int], None] | None,
        inspect_batches: InspectBatches | None = None,
    ) -> None:
        self.topic = topic
        self._executor = executor
        self._damage = damage
        self._in_window = in_window
        self._deep = deep
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._objects = FallbackReader(topic, self._loop)
        in_flight = DEEP_IN_FLIGHT if deep else IN_FLIGHT
        self._inspect_batches = inspect_batches or partial(
            map_ahead, self._inspect, most=in_flight, weigh=_weight
        )
        self._done = self._total = 0
        self._starts: dict[int, int] = {}  # first offset that is retained, when an object was gone

    async def look(self, ranges: Sequence[OffsetRange], check: Check) -> None:
        """Look at the Batches of some ranges, as far as a reconciliation needs them.

        Raises:
            MemqError: as `TopicClient.pages`.
        """
        self._total += sum(each.size for each in ranges)
        async with (
            aclosing(self._needed(ranges, check)) as needed,
            aclosing(self._inspect_batches(needed)) as found,
        ):
            async for batch, inspection in found:
                if not inspection.gone or not await self._is_removed(batch):
                    self._take_in(batch, inspection, check)

    async def _needed(
        self, ranges: Sequence[OffsetRange], check: Check
    ) -> AsyncGenerator[PublishedBatch, None]:
        """Yield the Batches that must be looked into."""
        async with aclosing(self.topic.batches_by_time(ranges, self._damage.add)) as batches:
            async for batch in batches:
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, self._total)
                if self._needs(batch, check):
                    yield batch

    def _needs(self, batch: PublishedBatch, check: Check) -> bool:
        in_window = self._in_window(batch.timestamp_ms)
        needs = partial(check.needs, batch.notification.write_partition, in_window=in_window)
        everything = self._deep and in_window and isinstance(check, ProducerSieve)
        return everything or any(map(needs, batch.notification.producers))

    async def _inspect(self, batch: PublishedBatch) -> Inspection:
        get_range = partial(self._objects.get_range, batch.notification.uri)
        work = partial(inspect, batch.notification, get_range, deep=self._deep)
        return await self._loop.run_in_executor(self._executor, work)

    async def _is_removed(self, batch: PublishedBatch) -> bool:
        """Return whether retention has removed a Batch meanwhile: its notification goes first."""
        if batch.offset >= self._starts.get(batch.partition, 0):
            self._starts = await self.topic.starts()
        return batch.offset < self._starts[batch.partition]

    def _take_in(self, batch: PublishedBatch, inspection: Inspection, check: Check) -> None:
        in_window = self._in_window(batch.timestamp_ms)
        write_partition = batch.notification.write_partition
        for entry in inspection.sound:
            name = ProducerName(write_partition, entry.producer_id, entry.epoch)
            check.stored(name, entry.sequence, entry.records, entry.crc32c, in_window=in_window)
        unreadable = batch.notification.producers if inspection.gone else inspection.damaged
        for run in unreadable:
            check.unreadable(write_partition, run, gone=inspection.gone, in_window=in_window)
        concerns = f"; it concerns {_shown(unreadable)}" if unreadable else ""
        for finding in inspection.findings:
            self._damage.add(f"{batch}: {finding}{concerns}")


def _weight(batch: PublishedBatch) -> int:
    """Return how much of `IN_FLIGHT` a Batch counts for."""
    return 1 + batch.notification.messages // MESSAGES_AT_ONCE


def _shown(runs: Sequence[ProducerRun]) -> str:
    """Runs of sequences for a sentence."""
    more = [counted(len(runs) - MAX_RUNS_SHOWN, "more run")] if len(runs) > MAX_RUNS_SHOWN else []
    return ", ".join([*map(_shown_run, runs[:MAX_RUNS_SHOWN]), *more])


def _shown_run(run: ProducerRun) -> str:
    several = f"sequences {run.first} to {run.last}"
    sequences = several if run.messages > 1 else f"sequence {run.first}"
    records = counted(run.records, "LogMessage")
    return f"producer {run.producer_id} epoch {run.epoch} {sequences} ({records})"


# -- the reports about a topic --------------------------------------------------------------


class ReportReader:
    """Reads reports about one topic. One of a kind that it does not know is left out.

    Args:
        audit_topic: where they are.
        topic: what they are about.
        executor: whose threads read and decode.
        damage: told of what cannot be read.
    """

    def __init__(
        self, audit_topic: TopicClient, topic: str, executor: Executor, damage: Damage
    ) -> None:
        self.audit_topic = audit_topic
        self._topic = topic
        self._keys = [topic.encode(), consumed_key(topic)]
        self._objects = FallbackReader(audit_topic, asyncio.get_running_loop())
        self._executor = executor
        self.damage = damage

    async def read(
        self, ranges: Sequence[OffsetRange], produced_end_ms: int | None
    ) -> AsyncGenerator[StoredReport[Any], None]:
        """Yield the reports in some ranges, about in the order in which they were stored.

        Args:
            ranges: of the audit topic.
            produced_end_ms: those of producers that were stored later are left out; None for none.

        Raises:
            MemqError: the broker failed until the deadline.
        """
        work = partial(self._read_batch, produced_end_ms)
        async with (
            aclosing(self.audit_topic.batches_by_time(ranges, self.damage.add)) as batches,
            aclosing(
                map_ahead(work, batches, IN_FLIGHT_BYTES, attrgetter("notification.size_bytes"))
            ) as found,
        ):
            async for batch, values in found:
                for key, value in values:
                    for report in self._decode(batch, key, value):
                        yield StoredReport(report, batch.timestamp_ms)

    async def _read_batch(
        self, produced_end_ms: int | None, batch: PublishedBatch
    ) -> Iterable[tuple[bytes, bytes | None]]:
        late = produced_end_ms is not None and batch.timestamp_ms >= produced_end_ms
        keys = self._keys[1:] if late else self._keys
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, self._values, batch, keys
            )
        except (CorruptDataError, StorageError, ObjectNotFoundError) as exc:
            removed = isinstance(exc, ObjectNotFoundError) and (
                batch.offset < (await self.audit_topic.starts())[batch.partition]
            )
            if not removed:
                self.damage.add(
                    f"{batch} held reports that cannot be read, so what they name cannot be "
                    f"judged: {exc}"
                )
            return []

    def _values(
        self, batch: PublishedBatch, keys: list[bytes]
    ) -> Iterable[tuple[bytes, bytes | None]]:
        """Key and value of the LogMessages of the Batch with one of some keys."""
        notification = batch.notification
        data = self._objects.get_range(notification.uri, 0, notification.size_bytes)
        table = decode(data, batch).batch.to_arrow()
        about = table.filter(pc.is_in(table["key"], pa.array(keys, pa.binary())))
        return zip(about["key"].to_pylist(), about["value"].to_pylist(), strict=True)

    def _decode(self, batch: PublishedBatch, key: bytes, value: bytes | None) -> list[Report]:
        try:
            reports = decode_reports(value or b"")
        except CorruptDataError as exc:
            self.damage.add(f"{batch}: {exc}")
            return []
        if reports and report_key(reports[0]) != key:
            self.damage.add(
                f"{batch}: audit report about {reports[0].topic!r} under the name of "
                f"{key.decode()!r}"
            )
            return []
        return reports
