"""Reading the reports about a topic from the audit topic.

A report of a kind that this reader does not know is left out: a later version made it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from memq.client.audit.objects import ObjectReader
from memq.client.notifications import entries_of, map_ahead, stretches_between
from memq.client.source import Place, decode, name_of
from memq.core.audit.coverage import StoredConsumed
from memq.core.audit.reports import ConsumedReport, consumed_key, decode_report, report_key
from memq.core.notification.notification import decode_notification
from memq.errors import CorruptDataError, InvalidRequestError, ObjectNotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor

    from memq.client.audit.damage import Damage
    from memq.client.topic import TopicClient
    from memq.core.audit.reports import ProducedReport, Report
    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry

MAX_REPORTS = 1_000_000  # in memory at a time, about 1 KB each
IN_FLIGHT = 16  # objects read at a time; they are small, and storage answers slowly


class StoredReport(NamedTuple):
    """A report, and when the Batch that holds it was published, by the brokers' clock."""

    report: ProducedReport
    stored_ms: int


class Reports(NamedTuple):
    """The reports that were read."""

    produced: list[StoredReport]
    consumed: list[StoredConsumed]


class ReportReader:
    """Reads reports about one topic.

    Args:
        queue: of the audit topic.
        topic: the topic.
        executor: whose threads read and decode.
        damage: told of what cannot be read.
    """

    def __init__(
        self,
        queue: TopicClient,
        topic: str,
        executor: Executor,
        damage: Damage,
    ) -> None:
        self._queue = queue
        self._topic = topic
        self._keys = [topic.encode(), consumed_key(topic)]
        self._objects = ObjectReader(queue, asyncio.get_running_loop())
        self._executor = executor
        self._damage = damage

    async def read(self, start_ms: int | None, produced_end_ms: int | None) -> Reports:
        """The reports that were stored from a time on.

        Args:
            start_ms: milliseconds since 1970 UTC; None for all that is held.
            produced_end_ms: those of producers that were stored later are left out; None for none.

        Raises:
            InvalidRequestError: they are more than `MAX_REPORTS`.
            MemqError: the broker failed until the deadline.
        """
        found = Reports([], [])
        stretches = await stretches_between(self._queue, start_ms, None)
        work = partial(self._read_batch, produced_end_ms)
        batches = map_ahead(work, entries_of(self._queue, stretches), IN_FLIGHT)
        async with aclosing(batches):
            async for entry, reports in batches:
                for report in reports:
                    if isinstance(report, ConsumedReport):
                        found.consumed.append(StoredConsumed(report, entry.timestamp_ms))
                    else:
                        found.produced.append(StoredReport(report, entry.timestamp_ms))
                if len(found.produced) + len(found.consumed) > MAX_REPORTS:
                    raise InvalidRequestError(
                        f"there are more than {MAX_REPORTS} reports about {self._topic!r} in this "
                        "window; choose a shorter one"
                    )
        return found

    async def _read_batch(
        self, produced_end_ms: int | None, entry: NotificationEntry
    ) -> list[Report]:
        place = Place(entry.partition, entry.offset)
        try:
            notification = decode_notification(entry.payload)
        except CorruptDataError as exc:
            self._damage.add(f"{self._queue.topic}/{place.partition} offset {place.offset}: {exc}")
            return []
        loop = asyncio.get_running_loop()
        try:
            late = produced_end_ms is not None and entry.timestamp_ms >= produced_end_ms
            keys = self._keys[1:] if late else self._keys
            values = await loop.run_in_executor(
                self._executor, self._values, notification, place, keys
            )
        except ObjectNotFoundError as exc:
            if place.offset >= (await self._queue.starts())[place.partition]:
                self._damage.add(_unknown(notification, place, exc))
            return []
        except (CorruptDataError, StorageError) as exc:
            self._damage.add(_unknown(notification, place, exc))
            return []
        return [
            report
            for key, value in values
            if (report := self._decode(key, value, notification, place))
        ]

    def _values(
        self, notification: Notification, place: Place, keys: list[bytes]
    ) -> Iterable[tuple[bytes, bytes | None]]:
        """Key and value of what stands in the Batch about the topic."""
        data = self._objects.get_range(notification.uri, 0, notification.size_bytes)
        table = decode(data, notification, place, "none").batch.to_arrow()
        about = table.filter(pc.is_in(table["key"], pa.array(keys, pa.binary())))
        return zip(about["key"].to_pylist(), about["value"].to_pylist(), strict=True)

    def _decode(
        self, key: bytes, value: bytes | None, notification: Notification, place: Place
    ) -> Report | None:
        try:
            report = decode_report(value or b"")
        except CorruptDataError as exc:
            self._damage.add(f"{name_of(notification, place)}: {exc}")
            return None
        if report is not None and report_key(report) != key:
            self._damage.add(
                f"{name_of(notification, place)}: audit report about {report.topic!r} under the "
                f"name of {key.decode()!r}"
            )
            return None
        return report


def _unknown(notification: Notification, place: Place, error: Exception) -> str:
    return (
        f"{name_of(notification, place)} held reports that cannot be read, so what they name "
        f"cannot be judged: {error}"
    )
