"""Going through the notifications of a window for what consumers reported about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.client.notifications import Stretch, entries_of, stretches_between
from memq.core.audit.consumed import Consumption
from memq.core.notification.notification import decode_notification
from memq.core.spans import Offsets
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from memq.client.topic import TopicClient
    from memq.core.audit.consumed_findings import ConsumerAudit
    from memq.core.audit.coverage import StoredConsumed
    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import NotificationEntry

GRACE_MS = 60_000  # six rounds of reports; jobs that run side by side need as long as one runs


async def audit_consumed(
    queue: TopicClient,
    reports: Sequence[StoredConsumed],
    *,
    named: Sequence[str],
    start_ms: int | None,
    end_ms: int | None,
    due_ms: int,
) -> list[ConsumerAudit]:
    """Compare what consumers reported with what was published from one time up to another one.

    Args:
        queue: of the topic.
        reports: of its consumers.
        named: consumers that are asked about; all that have reported when there are none.
        start_ms: milliseconds since 1970 UTC; None for all that is held.
        end_ms: likewise; None for all that is published by now.
        due_ms: what consumers went past before this time is due.

    Raises:
        OffsetOutOfRangeError: retention removed some of it meanwhile.
        MemqError: the broker failed until the deadline.
    """
    if not reports and not named:
        return []
    held = _by_partition(await stretches_between(queue, None, None))
    window = _by_partition(await stretches_between(queue, start_ms, end_ms))
    check = Consumption(queue.topic, reports, named=named, held=held, due_ms=due_ms)

    def in_window(entry: NotificationEntry) -> bool:
        begins = start_ms is None or start_ms <= entry.timestamp_ms
        return begins and (end_ms is None or entry.timestamp_ms < end_ms)

    async for entry, notification in _notifications(queue, check.stretches(window)):
        if notification is None:
            check.unreadable(entry.partition, entry.offset)
        else:
            check.seen(entry.partition, entry.offset, notification, in_window=in_window(entry))
    async for entry, notification in _notifications(queue, check.doubtful()):
        if notification is not None and in_window(entry):
            check.seen_again(entry.partition, entry.offset, notification)
    return check.result()


async def _notifications(
    queue: TopicClient, parts: Mapping[int, Sequence[Offsets]]
) -> AsyncIterator[tuple[NotificationEntry, Notification | None]]:
    """The notifications of some offsets; None for one that cannot be read."""
    stretches = [Stretch(partition, *span) for partition, spans in parts.items() for span in spans]
    async for entry in entries_of(queue, stretches):
        try:
            notification = decode_notification(entry.payload)
        except CorruptDataError:  # named by the other half of the audit, which reads it as well
            notification = None
        yield entry, notification


def _by_partition(stretches: Sequence[Stretch]) -> dict[int, Offsets]:
    return {stretch.partition: Offsets(stretch.start, stretch.end) for stretch in stretches}
