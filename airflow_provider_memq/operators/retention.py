"""`MemqRetentionOperator`: warn before retention removes what was not processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_memq.emitted import last_ledger
from airflow_provider_memq.ledger import check_same_topic, settled
from airflow_provider_memq.operators.base import MemqTopicOperator, now_ms
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.values import duration_ms_or
from memq.core.units import format_duration_ms
from memq.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.ledger import Ledger, Topic
    from memq.client.cluster import Cluster

DEFAULT_PART = 0.5  # of the retention: half of it is left to do something about it


class Standing(NamedTuple):
    """How one read partition stands against retention.

    Attributes:
        partition: read partition.
        held_start: first offset that is held.
        held_end: one past the last.
        planned: one past the last planned offset.
        settled: where there may be something left to process: the next offset of the group, or the
            planned one where no group is watched, and behind what is left out on purpose.
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


class MemqRetentionOperator(MemqTopicOperator):
    """Compares what a topic holds with what is planned and processed.

    Fails, so that the DAG's callbacks tell somebody, when retention has removed Batches that were
    not processed, or will within `warn_before`. What the planner left out on purpose is not missed:
    what lies before its first plan, and what it skipped. Before the first plan that is what was
    removed by then.

    Args:
        ranges: the asset that the planner emits to.
        group: a consumer group that follows what is processed, as `MemqCommitOperator` makes it;
            without one, planned counts as processed (templated).
        warn_before: such as "1d" (templated); by default half of the topic's retention.
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).

    Returns:
        `{"topic", "retention", "partitions": [{…}, …]}`, one row per read partition.

    Raises:
        DataLossError: Batches were removed unprocessed, or soon will be; the message names them.
        TopicRecreatedError: the topic was made again since it was planned.
    """

    template_fields: Sequence[str] = (*MemqTopicOperator.template_fields, "group", "warn_before")

    def __init__(
        self,
        *,
        ranges: Asset,
        group: str | None = None,
        warn_before: str | None = None,
        **kwargs: Any,
    ) -> None:
        inlets = kwargs.pop("inlets", None) or []
        super().__init__(inlets=[*inlets, plan_asset(ranges)], **kwargs)
        self.ranges = ranges
        self.group = group
        self.warn_before = warn_before

    def execute(self, context: Context) -> dict[str, Any]:
        """Look, tell, and fail when something is about to be lost."""
        ledger = last_ledger(context["inlet_events"], plan_asset(self.ranges))
        retention_ms, standings = self.ask(lambda cluster: self._look(cluster, ledger))
        result = {
            "topic": self.topic,
            "retention": format_duration_ms(retention_ms),
            "partitions": [each._asdict() for each in standings],
        }
        for each in standings:
            self.log.info("%s", each)
        context["ti"].xcom_push("return_value", result)
        margin_ms = duration_ms_or(int(retention_ms * DEFAULT_PART), self.warn_before)
        alarms = [text for each in standings if (text := _alarm(each, margin_ms))]
        if any(each.removed for each in standings):
            alarms.append(self._way_out())
        if alarms:
            raise DataLossError(f"topic {self.topic!r}: " + "; ".join(alarms))
        return result

    def _way_out(self) -> str:
        """How to go on behind what is gone."""
        plan = "what was never planned is gone for good, and a plan with on_removed='skip' says so"
        if not self._watched:
            return plan
        return (
            f"{plan}; behind what was planned, move the group on with: memq group reset-offsets "
            f"{self._watched} {self.topic} --to-earliest --partition N --execute"
        )

    @property
    def _watched(self) -> str:
        return (self.group or "").strip()

    async def _look(self, cluster: Cluster, ledger: Ledger | None) -> tuple[int, list[Standing]]:
        from airflow_provider_memq import published  # noqa: PLC0415 - DAGs parse sooner

        info, topic = await published.look_up(cluster, self.topic)
        if ledger is not None:
            check_same_topic(ledger, topic)
        planned = {} if ledger is None else ledger.ends
        stored: Mapping[int, int] = planned
        if self._watched:
            stored = await published.committed(cluster, topic, self._watched)
        standings = []
        for partition, done in _done(topic, ledger, stored).items():
            held = topic.held[partition]
            at = max(done, held.start)
            oldest_ms = await published.oldest_ms(cluster, topic, partition, at)
            left_ms = None
            if oldest_ms is not None:
                left_ms = oldest_ms + info.config.retention_ms - now_ms()
            standings.append(
                Standing(
                    partition,
                    held.start,
                    held.end,
                    planned.get(partition, 0),
                    done,
                    max(0, held.start - done),
                    left_ms,
                )
            )
        return info.config.retention_ms, standings


def _done(topic: Topic, ledger: Ledger | None, stored: Mapping[int, int]) -> dict[int, int]:
    """Up to where nothing is left to process, by read partition of the topic."""
    if ledger is None:  # the first plan will begin with what is held then
        return {p: stored.get(p, held.start) for p, held in topic.held.items()}
    known = settled(ledger, stored)
    return {p: known.get(p, stored.get(p, 0)) for p in topic.held}


def _alarm(standing: Standing, margin_ms: int) -> str | None:
    """What is wrong with a read partition; None when nothing is."""
    first = max(standing.settled, standing.held_start)
    if standing.removed:
        return (
            f"partition {standing.partition} [{standing.settled}, {standing.held_start}) was "
            "removed before it was processed"
        )
    if standing.left_ms is not None and standing.left_ms < margin_ms:
        return (
            f"partition {standing.partition} [{first}, {standing.held_end}) is not processed, and "
            f"retention reaches it in {max(0, standing.left_ms) // 1000} s"
        )
    return None
