"""Reading the reports about a topic from the audit topic."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from memq.client.audit_objects import ObjectReader
from memq.client.notifications import entries_of, map_ahead, stretches_between
from memq.client.source import Place, decode, name_of
from memq.core.audit import decode_report
from memq.core.notification.notification import decode_notification
from memq.errors import CorruptDataError, InvalidRequestError, ObjectNotFoundError, StorageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from memq.client.audit_damage import Damage
    from memq.client.queue import QueueClient
    from memq.core.audit import ProducedReport
    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry

MAX_REPORTS = 1_000_000  # in memory at a time, about 1 KB each
IN_FLIGHT = 16  # objects read at a time; they are small, and storage answers slowly


class StoredReport(NamedTuple):
    """A report, and when the Batch that holds it was published, by the brokers' clock."""

    report: ProducedReport
    stored_ms: int


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
        queue: QueueClient,
        topic: str,
        executor: Executor,
        damage: Damage,
    ) -> None:
        self._queue = queue
        self._topic = topic
        self._objects = ObjectReader(queue, asyncio.get_running_loop())
        self._executor = executor
        self._damage = damage

    async def read(self, start_ms: int | None, end_ms: int | None) -> list[StoredReport]:
        """The reports that were stored from one time up to, not including, another one.

        Raises:
            InvalidRequestError: they are more than `MAX_REPORTS`.
            MemqError: the broker failed until the deadline.
        """
        found: list[StoredReport] = []
        stretches = await stretches_between(self._queue, start_ms, end_ms)
        batches = map_ahead(self._read_batch, entries_of(self._queue, stretches), IN_FLIGHT)
        async with aclosing(batches):
            async for entry, reports in batches:
                found += [StoredReport(report, entry.timestamp_ms) for report in reports]
                if len(found) > MAX_REPORTS:
                    raise InvalidRequestError(
                        f"there are more than {MAX_REPORTS} reports about {self._topic!r} in this "
                        "window; choose a shorter one"
                    )
        return found

    async def _read_batch(self, entry: NotificationEntry) -> list[ProducedReport]:
        place = Place(entry.partition, entry.offset)
        try:
            notification = decode_notification(entry.payload)
        except CorruptDataError as exc:
            self._damage.add(
                place, f"{self._queue.topic}/{place.partition} offset {place.offset}: {exc}"
            )
            return []
        loop = asyncio.get_running_loop()
        try:
            values = await loop.run_in_executor(self._executor, self._values, notification, place)
        except ObjectNotFoundError as exc:
            self._damage.add(place, _unknown(notification, place, exc), gone=True)
            return []
        except (CorruptDataError, StorageError) as exc:
            self._damage.add(place, _unknown(notification, place, exc))
            return []
        return [report for value in values if (report := self._decode(value, notification, place))]

    def _values(self, notification: Notification, place: Place) -> list[bytes | None]:
        """What stands in the Batch about the topic."""
        data = self._objects.get_range(notification.uri, 0, notification.size_bytes)
        table = decode(data, notification, place, "none").batch.to_arrow()
        about = pc.equal(table["key"], self._topic.encode())
        values: list[bytes | None] = table.filter(about)["value"].to_pylist()
        return values

    def _decode(
        self, value: bytes | None, notification: Notification, place: Place
    ) -> ProducedReport | None:
        try:
            report = decode_report(value or b"")
        except CorruptDataError as exc:
            self._damage.add(place, f"{name_of(notification, place)}: {exc}")
            return None
        if report.topic != self._topic:
            self._damage.add(
                place,
                f"{name_of(notification, place)}: audit report about {report.topic!r} under the "
                f"name of {self._topic!r}",
            )
            return None
        return report


def _unknown(notification: Notification, place: Place, error: Exception) -> str:
    return (
        f"{name_of(notification, place)} held reports that cannot be read, so what they name "
        f"cannot be judged: {error}"
    )
