"""How far a topic is processed: `MemqCommitOperator` and `MemqRetentionOperator`."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_memq.base import FailsAtOnce, MemqTopicOperator, now_ms
from airflow_provider_memq.planning.ledger import (
    check_same_topic,
    last_ledger,
    settled,
    unstored_ranges,
)
from airflow_provider_memq.planning.topics import read_state
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.values import duration_ms_or
from memq.core.ranges import offsets_in_words
from memq.core.units import format_duration_ms
from memq.errors import ConfigError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.planning.ledger import PlanLedger
    from airflow_provider_memq.planning.topics import TopicState
    from memq.client.topic import SyncTopicClient
    from memq.core.ranges import OffsetRange

DEFAULT_MARGIN = 0.5  # of the retention: half of it is left to do something about it


class MemqCommitOperator(MemqTopicOperator):
    """Commits a group's offsets as far as every range is processed.

    A task whose success means that a range is processed has the asset `done` among its outlets:
    Airflow stores the range's key as an event with that success. This task comes after it, reads
    those events, and moves each read partition's offset over the ranges that meet, from where it
    stands. A range that is still missing holds the offset back, however many after it are done,
    so nothing is ever committed that was not processed. Offsets never move back. Keys of
    ranges name the topic id, so that those of one that was deleted and recreated
    do not count; a key that somebody wrote without it counts for whichever there is.

    It reads back to the plan of the oldest range that is missing: while one stays unprocessed, each
    commit takes longer.

    One such task runs at a time (`max_active_tis_per_dag=1` is set), so the last one sees all.

    Args:
        ranges: the asset that the planner emits to; says where planning began.
        done: the asset of processed ranges. Schedule no DAG on it (see `plan_asset`); give the
            task that processes an outlet of your own for that.
        group: the consumer group; it must have no live members.
        topic: the topic.
        memq_conn_id: connection to the brokers.

    Returns:
        `{"group", "committed": {read partition: next offset}}`, with what was moved; the task is
        skipped when nothing is to be moved.

    Raises:
        TopicRecreatedError: the topic was recreated since it was planned.
        ConfigError: nothing was planned yet.
    """

    def __init__(self, *, ranges: Asset, done: Asset, group: str, **kwargs: Any) -> None:
        self._take(locals())
        kwargs.setdefault("max_active_tis_per_dag", 1)
        inlets = kwargs.pop("inlets", None) or []
        super().__init__(inlets=[*inlets, plan_asset(ranges), done], **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Find how far is processed, and commit it."""
        events, plan = context["inlet_events"], plan_asset(self.ranges)
        ledger = last_ledger(events, plan)
        if ledger is None:
            raise ConfigError(f"nothing was planned yet to asset {self.ranges.name!r}")
        with self.hook.topic(self.topic) as client:
            check_same_topic(ledger, read_state(self.topic, client))
            stored = client.committed(self.group)
            done = unstored_ranges(events, plan, self.done, ledger, stored)
            moved = moved_ends(ledger, stored, done)
            result = {"group": self.group, "committed": {str(p): end for p, end in moved.items()}}
            if not moved:
                context["ti"].xcom_push("return_value", result)
                raise AirflowSkipException(why_not_moved(ledger, stored))
            # With a name and a number an attempt that was given up changes nothing when it comes
            # late.
            client.commit(self.group, "", moved, committer=token_hex(8), sequence=1)
        self.log.info("group %s: next offsets %s", self.group, moved)
        return result


def moved_ends(
    ledger: PlanLedger, stored: Mapping[int, int], done: Iterable[OffsetRange]
) -> dict[int, int]:
    """Next offsets of the read partitions that may move on."""
    return {
        partition: end
        for partition, end in settled(ledger, stored, done).items()
        if end > max(ledger.origins[partition], stored.get(partition, 0))
    }


def why_not_moved(ledger: PlanLedger, stored: Mapping[int, int]) -> str:
    """Say what a group waits for that does not move."""
    held = [
        f"offset {stored.get(partition, origin)} of read partition {partition}"
        for partition, origin in sorted(ledger.origins.items())
        if stored.get(partition, origin) < ledger.ends[partition]
    ]
    if not held:
        return "all that was planned is committed"
    return f"no event says that the range is processed that begins at {' or at '.join(held)}"


class PartitionProgress(NamedTuple):
    """How far a read partition is processed, and when retention gets there: a row of the result.

    Attributes:
        partition: read partition.
        held_start: first offset that is retained.
        held_end: one past the last.
        planned: one past the last planned offset.
        settled: where there may be something left to process: the next offset of the group, or the
            planned one where no group is watched, and after what is left out on purpose.
        removed: offsets that retention removed before they were processed.
        left_ms: until retention reaches the first unprocessed Batch; None when there is none.
    """

    partition: int
    held_start: int
    held_end: int
    planned: int
    settled: int
    removed: int
    left_ms: int | None

    def alarm(self, margin_ms: int) -> str | None:
        """Say what is wrong; None when nothing is."""
        if self.removed:
            return (
                f"partition {self.partition}, {offsets_in_words(self.settled, self.held_start)}: "
                "removed before being processed"
            )
        if self.left_ms is not None and self.left_ms < margin_ms:
            first = max(self.settled, self.held_start)
            return (
                f"partition {self.partition}, {offsets_in_words(first, self.held_end)}: not "
                f"processed, and retention reaches it in {max(0, self.left_ms) // 1000} s"
            )
        return None


class MemqRetentionOperator(MemqTopicOperator):
    """Compares what a topic retains with what is planned and processed.

    Fails, so that the DAG's callbacks tell somebody, when retention has removed Batches that were
    not processed, or will within `warn_before`. What the planner left out on purpose is not missed:
    what lies before its first plan, and what it skipped. Before the first plan that is what was
    removed by then.

    Args:
        ranges: the asset that the planner emits to.
        group: a consumer group that follows what is processed, as `MemqCommitOperator` makes it;
            without one, planned counts as processed.
        warn_before: such as "1d"; by default half of the topic's retention.
        topic: the topic.
        memq_conn_id: connection to the brokers.

    Returns:
        `{"topic", "retention", "partitions": [{…}, …]}`, one row per read partition.

    Raises:
        DataLossError: Batches were removed unprocessed, or soon will be; the message names them.
        TopicRecreatedError: the topic was recreated since it was planned.
    """

    permanent = FailsAtOnce.permanent | {DataLossError.code}

    def __init__(
        self,
        *,
        ranges: Asset,
        group: str | None = None,
        warn_before: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        inlets = kwargs.pop("inlets", None) or []
        super().__init__(inlets=[*inlets, plan_asset(ranges)], **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Look, tell, and fail when something is about to be lost."""
        ledger = last_ledger(context["inlet_events"], plan_asset(self.ranges))
        with self.hook.topic(self.topic) as client:
            retention_ms = client.info().config.retention_ms
            partitions = self._progress(client, ledger, retention_ms)
        result = {
            "topic": self.topic,
            "retention": format_duration_ms(retention_ms),
            "partitions": [each._asdict() for each in partitions],
        }
        for each in partitions:
            self.log.info("%s", each)
        context["ti"].xcom_push("return_value", result)
        margin_ms = duration_ms_or(int(retention_ms * DEFAULT_MARGIN), self.warn_before)
        alarms = [text for each in partitions if (text := each.alarm(margin_ms))]
        if any(each.removed for each in partitions):
            alarms.append(self._way_out())
        if alarms:
            raise DataLossError(f"topic {self.topic!r}: " + "; ".join(alarms))
        return result

    def _way_out(self) -> str:
        """Say how to go on after what is gone."""
        plan = "what was never planned is gone for good, and a plan with on_removed='skip' says so"
        if not self._watched:
            return plan
        return (
            f"{plan}; after what was planned, move the group on with `memq group reset-offsets "
            f"{self._watched} {self.topic} --to-earliest --partition N --execute`"
        )

    @property
    def _watched(self) -> str:
        return (self.group or "").strip()

    def _progress(
        self, client: SyncTopicClient, ledger: PlanLedger | None, retention_ms: int
    ) -> list[PartitionProgress]:
        state = read_state(self.topic, client)
        if ledger is not None:
            check_same_topic(ledger, state)
        planned = {} if ledger is None else ledger.ends
        stored = client.committed(self._watched) if self._watched else planned
        progress = []
        for partition, done in _done(state, ledger, stored).items():
            start = state.starts[partition]
            page = client.page({partition: max(done, start)}, max_entries=1)
            oldest = page.entries[0] if page.entries else None
            progress.append(
                PartitionProgress(
                    partition,
                    start,
                    state.ends[partition],
                    planned.get(partition, 0),
                    done,
                    max(0, start - done),
                    oldest.timestamp_ms + retention_ms - now_ms() if oldest else None,
                )
            )
        return progress


def _done(
    state: TopicState, ledger: PlanLedger | None, stored: Mapping[int, int]
) -> dict[int, int]:
    """Up to where nothing is left to process, by read partition of the topic."""
    if ledger is None:  # the first plan will begin with what is retained then
        return {p: stored.get(p, start) for p, start in state.starts.items()}
    known = settled(ledger, stored)
    return {p: known.get(p, stored.get(p, 0)) for p in state.starts}
