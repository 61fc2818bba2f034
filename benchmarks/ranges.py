"""DAG runs that an hour of a light load makes: `python -m benchmarks ranges`.

60 KB are published every ten seconds to each of two read partitions; two ranges are processed at a
time, 25 s each, as Spark on one machine takes. The planner's own code decides, in simulated time.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_memq.planning.ranges import Cut, Limits, cut, finish
from memq.core.notification import Notification, PublishedBatch
from memq.core.ranges import OffsetRange

PARTITIONS = 2
EVERY_MS, SIZE_BYTES = 10_000, 60_000
HOUR_MS = 3_600_000
JOB_MS, JOBS = 25_000, 2
HELD_LOOK_MS = 60_000  # as `operators.plan`


class Hour(NamedTuple):
    """What came of an hour.

    Attributes:
        plans: runs of the planner.
        ranges: runs of ranges.
        longest_s: from when a Batch was published until it was processed.
    """

    plans: int
    ranges: int
    longest_s: float


def hour(limits: Limits, max_pending: int) -> Hour:
    """An hour of the load."""
    batches: list[list[PublishedBatch]] = [[] for _ in range(PARTITIONS)]
    ends = [0] * PARTITIONS
    free_ms, ended_ms = [0] * JOBS, []
    plans = ranges = longest_ms = wake_ms = 0
    for now_ms in range(0, HOUR_MS, EVERY_MS):
        for partition, found in enumerate(batches):
            found.append(_published(partition, len(found), now_ms))
        if now_ms < wake_ms:
            continue  # the planner's task is deferred
        held = 0 < max_pending <= sum(ended > now_ms for ended in ended_ms)
        plan = finish(_cut(batches, ends, limits), limits, now_ms, held=held)
        for each in plan.ranges:
            ends[each.range.partition] = each.range.end
            free_ms.sort()
            free_ms[0] = max(free_ms[0], now_ms) + JOB_MS
            ended_ms.append(free_ms[0])
            longest_ms = max(longest_ms, free_ms[0] - each.first_ms)
        waits = bool(plan.waiting) and not plan.ranges
        wake_ms = min(plan.due_ms, now_ms + HELD_LOOK_MS if held else plan.due_ms) if waits else 0
        plans += not waits
        ranges += len(plan.ranges)
    return Hour(plans, ranges, longest_ms / 1000)


def _cut(batches: list[list[PublishedBatch]], ends: list[int], limits: Limits) -> list[Cut]:
    return [
        cut(OffsetRange(partition, ends[partition], len(found)), found[ends[partition] :], limits)
        for partition, found in enumerate(batches)
    ]


def _published(partition: int, offset: int, at_ms: int) -> PublishedBatch:
    notification = Notification(
        version=1,
        topic="t",
        topic_id="0" * 16,
        write_partition=partition,
        batch_id="b",
        uri="file:///b",
        size_bytes=SIZE_BYTES,
        index_offset=0,
        messages=1,
        records=60,
        min_timestamp_us=0,
        max_timestamp_us=0,
        producers=[],
        schema_id="s",
        broker_id="b",
        sealed_ms=0,
        stored_through_ms=0,
    )
    return PublishedBatch(partition, offset, at_ms, notification)


def run() -> list[tuple[str, str, str]]:
    """The figures."""
    settings = [
        ("nothing waits", Limits(), 0),
        ("max_pending_ranges 4, nothing lingers", Limits(), 4),
        ("range_linger 1m", Limits(linger_ms=60_000, min_bytes=64 << 20), 4),
        ("range_linger 5m, the default", Limits(linger_ms=300_000, min_bytes=64 << 20), 4),
    ]
    rows = []
    for name, limits, max_pending in settings:
        found = hour(limits, max_pending)
        rows.append(
            (
                f"an hour of 60 KB every 10 s, two read partitions: {name}",
                f"{found.ranges} ranges, {found.plans} plans",
                f"processed {found.longest_s:.0f} s after it was published at the latest",
            )
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
