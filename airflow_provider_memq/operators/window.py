"""Ranges of what was published before: `MemqWindowRangesOperator` and `MemqReplayOperator`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_memq.ledger import planned_ranges
from airflow_provider_memq.operators.base import MemqTopicOperator
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.ranges import parse_key, range_key, to_row, touching
from airflow_provider_memq.topics import check_closed, check_retained_since, contents_of
from airflow_provider_memq.values import iso, parse_flag, skips_removed, time_ms_or_none
from memq.core.units import counted
from memq.errors import ConfigError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.ranges import RangeContents
    from memq.core.ranges import OffsetRange


class MemqWindowRangesOperator(MemqTopicOperator):
    """Turns a window of time into one exact range of offsets per read partition.

    By default the window is the run's data interval, so that `airflow backfill create` processes
    past hours: schedule its DAG with `CronDataIntervalTimetable`, for other timetables make
    intervals of no width. A Batch belongs to the window in which it was published. Windows that
    meet hold each Batch exactly once, and a window names the same Batches whenever it is asked,
    as its end must be stored through: put a `MemqWatermarkSensor` before it. One from which
    retention may have removed Batches is refused: what is left of it would be another range, whose
    output stands beside that of the whole one and holds the same rows.

    Map a `MemqSparkSubmitOperator` over the result:
    `MemqSparkSubmitOperator.partial(…).expand(range_key=window.output)`.

    Args:
        start: where the window begins: a time with a zone or its ISO text (templated); None for
            the start of the data interval.
        end: where it ends, not included (templated); None for the end of the data interval.
        on_removed: "fail", or "skip" to take what retention has left of the window (templated).
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).

    Returns:
        The keys of the ranges, sorted; none for a read partition with nothing in the window.

    Raises:
        UnavailableError: the topic is not stored through the end of the window.
        OffsetOutOfRangeError: retention removed Batches of the window, or may have; the message
            names a read partition, and since when it is retained.
        ConfigError: the run has no data interval and no window was given, or it is none.
    """

    template_fields: Sequence[str] = (
        *MemqTopicOperator.template_fields,
        "start",
        "end",
        "on_removed",
    )

    def __init__(
        self, *, start: Any = None, end: Any = None, on_removed: str = "fail", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.end = end
        self.on_removed = on_removed

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
    """A window in milliseconds since 1970 UTC: what is given, or else the run's data interval.

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


class MemqReplayOperator(MemqTopicOperator):
    """Emits planned ranges to their asset again, so that each is processed once more.

    What is wanted may be any offsets or any window of time. What is replayed are the whole ranges
    that touch it, as they were planned: so each run replaces its own output, and no other output
    holds the same rows. What was never planned is not replayed. The plan itself does not move.

    Args:
        ranges: the asset to which the ranges were emitted.
        keys: offsets wanted, as range keys: a list, or its text with commas or as JSON (templated).
        start: or else a window of time: its start, with a time zone (templated). Without one, it
            begins with what is retained.
        end: and its end, not included (templated).
        preview: a dry run: only list what would be replayed, and skip (templated). It is the
            default, since a replay costs as much as the first run.
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).

    Returns:
        `{"topic", "ranges": [{"key", "partition", "start", "end", "batches", "records",
        "bytes"}, …], "batches", "bytes", "dry_run"}`.

    Raises:
        TopicRecreatedError: the topic was recreated since the ranges were planned.
        OffsetOutOfRangeError: retention removed some of the Batches, or may have removed some of
            the window; the message names a read partition, and since when it is retained.
        ConfigError: nothing or too much is asked for, or an argument is wrong.
    """

    template_fields: Sequence[str] = (
        *MemqTopicOperator.template_fields,
        "keys",
        "start",
        "end",
        "preview",
    )

    def __init__(
        self,
        *,
        ranges: Asset,
        keys: Sequence[str] | str | None = None,
        start: Any = None,
        end: Any = None,
        preview: bool | str = True,
        **kwargs: Any,
    ) -> None:
        inlets, outlets = kwargs.pop("inlets", None) or [], kwargs.pop("outlets", None) or []
        super().__init__(inlets=[*inlets, plan_asset(ranges)], outlets=[*outlets, ranges], **kwargs)
        self.ranges = ranges
        self.keys = keys
        self.start = start
        self.end = end
        self.preview = preview

    def execute(self, context: Context) -> dict[str, Any]:
        """Find the ranges, list them, and emit them."""
        dry_run = parse_flag("preview", self.preview)
        planned = planned_ranges(context["inlet_events"], plan_asset(self.ranges))
        found = self._find(planned)
        rows = [each.to_row() | to_row(each.range) for each in found]
        batches = sum(each.batches for each in found)
        result = {
            "topic": self.topic,
            "ranges": rows,
            "batches": batches,
            "bytes": sum(each.size_bytes for each in found),
            "dry_run": dry_run,
        }
        for row in rows:
            self.log.info("%(key)s: batches %(batches)d, bytes %(bytes)d", row)
        self.log.info("in all: %s, %d bytes", counted(batches, "Batch"), result["bytes"])
        if dry_run or not found:
            context["ti"].xcom_push("return_value", result)
            raise AirflowSkipException(
                "a preview emits nothing" if dry_run else "nothing to replay"
            )
        outlet = context["outlet_events"][self.ranges]
        outlet.extra = {"memq_replay": True}
        outlet.add_partitions([range_key(each.range) for each in found])
        return result

    def _find(self, planned: set[OffsetRange]) -> list[RangeContents]:
        """The planned ranges that touch what is asked for, with what they hold."""
        wanted = keys_of(self.keys)
        start_ms, end_ms = time_ms_or_none("start", self.start), time_ms_or_none("end", self.end)
        timed = start_ms is not None or end_ms is not None
        if timed == bool(wanted):
            raise ConfigError("give either keys of ranges, or a window with start, end or both")
        with self.hook.topic(self.topic) as client:
            if timed:
                wanted = [each for each in client.ranges_between(start_ms, end_ms) if each.size > 0]
            if start_ms is not None:
                check_retained_since(self.topic, client, start_ms, end_ms)
            incarnation = client.info().incarnation
            for each in (*planned, *wanted):
                if each.incarnation not in ("", incarnation):
                    raise TopicRecreatedError(
                        f"{range_key(each)} is of another incarnation of {self.topic!r} than "
                        f"{incarnation}, which there is now: its Batches are gone"
                    )
            return [contents_of(client, each) for each in touching(planned, wanted)]


def keys_of(keys: Sequence[str] | str | None) -> list[OffsetRange]:
    """The ranges that a list of keys names, or the text of one.

    Raises:
        ConfigError: one of them names no range.
    """
    if keys is None or (isinstance(keys, str) and keys.strip() in ("", "None")):
        return []
    if isinstance(keys, str):
        text = keys.strip()
        keys = json.loads(text) if text.startswith("[") else text.split(",")
    return [parse_key(key.strip()) for key in keys]
