"""`MemqWindowRangesOperator`: the ranges of a window of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_memq.base import MemqTopicOperator
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.planning.topics import check_closed, check_retained_since, contents_of
from airflow_provider_memq.values import iso, skips_removed, time_ms_or_none
from memq.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context


class MemqWindowRangesOperator(MemqTopicOperator):
    """Turns a window of time into one exact range of offsets per read partition.

    By default the window is the run's data interval, so that `airflow backfill create` processes
    past hours: schedule its DAG with `CronDataIntervalTimetable`, for other timetables make
    intervals of no width. A Batch belongs to the window in which it was published. Windows that
    meet hold each Batch exactly once, and a window names the same Batches whenever it is asked,
    as its end must be stored through: put a `MemqWatermarkSensor` before it. One from which
    retention may have removed Batches is refused: what is left of it would be another range, whose
    output is stored in addition to that of the whole one, and holds the same rows.

    Map a `MemqSparkSubmitOperator` over the result:
    `MemqSparkSubmitOperator.partial(…).expand(range_key=window.output)`.

    Args:
        start: where the window begins: a time with a zone or its ISO text; None for
            the start of the data interval.
        end: where it ends, not included; None for the end of the data interval.
        on_removed: "fail", or "skip" to take what retention has left of the window.
        topic: the topic.
        memq_conn_id: connection to the brokers.

    Returns:
        The keys of the ranges, sorted; none for a read partition with nothing in the window.

    Raises:
        UnavailableError: the topic is not stored through the end of the window.
        OffsetOutOfRangeError: retention removed Batches of the window, or may have; the message
            names a read partition, and since when it is retained.
        ConfigError: the run has no data interval and no window was given, or it is none.
    """

    def __init__(
        self, *, start: Any = None, end: Any = None, on_removed: str = "fail", **kwargs: Any
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)

    def execute(self, context: Context) -> list[str]:
        """Ask the brokers for the offsets of the times."""
        start_ms, end_ms = window_of(context, self.start, self.end)
        skip_removed = skips_removed(self.on_removed)
        with self.hook.topic(self.topic) as client:
            check_closed(self.topic, client, end_ms)
            ranges = [each for each in client.ranges_between(start_ms, end_ms) if each.size > 0]
            if not skip_removed:
                check_retained_since(self.topic, client, start_ms, end_ms)
            found = [contents_of(client, each) for each in ranges]
        self.log.info("window %s to %s of %s", iso(start_ms), iso(end_ms), self.topic)
        for each in found:
            self.log.info(
                "%(key)s: batches %(batches)d, records %(records)d, bytes %(bytes)d", each.to_row()
            )
        return [range_key(each.range) for each in found]


def window_of(
    context: Context, start: datetime | str | None, end: datetime | str | None
) -> tuple[int, int]:
    """Return a window in ms since 1970 UTC: the given one, or else the run's data interval.

    Raises:
        ConfigError: there is none, or it does not end after it starts.
    """
    start_ms, end_ms = time_ms_or_none("start", start), time_ms_or_none("end", end)
    if start_ms is None:
        start_ms = time_ms_or_none("data_interval_start", context.get("data_interval_start"))
    if end_ms is None:
        end_ms = time_ms_or_none("data_interval_end", context.get("data_interval_end"))
    if start_ms is None or end_ms is None:
        raise ConfigError("the run has no data interval; give start and end")
    if end_ms <= start_ms:
        raise ConfigError(
            f"the window from {iso(start_ms)} to {iso(end_ms)} is empty. Of the timetables, "
            "CronDataIntervalTimetable makes intervals that have a width"
        )
    return start_ms, end_ms
