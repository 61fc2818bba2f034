"""`MemqCommitOperator`: a consumer group's offsets follow what was processed without a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_memq.emitted import last_ledger, ranges_behind
from airflow_provider_memq.ledger import check_same_topic
from airflow_provider_memq.operators.base import MemqTopicOperator
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.ranges import contiguous_end
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.ledger import Ledger
    from airflow_provider_memq.ranges import PlannedRange
    from memq.client.cluster import Cluster


class MemqCommitOperator(MemqTopicOperator):
    """Commits a group's offsets as far as every range is processed.

    A task whose success means that a range is processed has the asset `done` among its outlets:
    Airflow stores the range's key as an event with that success. This task comes after it, reads
    those events, and moves each read partition's offset over the ranges that meet, from where it
    stands. A range that is still missing holds the offset back, however many behind it are done,
    so nothing is ever committed that was not processed. Offsets never move back.
    Keys of ranges name the incarnation of the topic, so that those of one that was deleted and made
    again do not count; a key that somebody wrote without it counts for whichever there is.

    It reads back to the plan of the oldest range that is missing: while one stays unprocessed, each
    commit takes longer.

    One such task runs at a time (`max_active_tis_per_dag=1` is set), so the last one sees all.

    Args:
        ranges: the asset that the planner emits to; says where planning began.
        done: the asset of processed ranges. Schedule no DAG on it (see `plan_asset`); give the
            task that processes an outlet of your own for that.
        group: the consumer group (templated); it must have no live members.
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).

    Returns:
        `{"group", "committed": {read partition: next offset}}`, with what was moved; the task is
        skipped when nothing is to be moved.

    Raises:
        TopicRecreatedError: the topic was made again since it was planned.
        ConfigError: nothing was planned yet.
    """

    template_fields: Sequence[str] = (*MemqTopicOperator.template_fields, "group")

    def __init__(self, *, ranges: Asset, done: Asset, group: str, **kwargs: Any) -> None:
        kwargs.setdefault("max_active_tis_per_dag", 1)
        inlets = kwargs.pop("inlets", None) or []
        super().__init__(inlets=[*inlets, plan_asset(ranges), done], **kwargs)
        self.ranges = ranges
        self.done = done
        self.group = group

    def execute(self, context: Context) -> dict[str, Any]:
        """Find how far is processed, and commit it."""
        from airflow_provider_memq.published import commit  # noqa: PLC0415 - DAGs parse sooner

        events, plan = context["inlet_events"], plan_asset(self.ranges)
        ledger = last_ledger(events, plan)
        if ledger is None:
            raise ConfigError(f"nothing was planned yet to asset {self.ranges.name!r}")
        stored = self.ask(lambda cluster: self._stored(cluster, ledger))
        moved = _moved(ledger, stored, ranges_behind(events, plan, self.done, ledger, stored))
        result = {"group": self.group, "committed": {str(p): end for p, end in moved.items()}}
        if not moved:
            context["ti"].xcom_push("return_value", result)
            raise AirflowSkipException("an earlier range is not processed yet, or all is committed")
        self.ask(lambda cluster: commit(cluster, ledger, self.group, moved))
        self.log.info("group %s: next offsets %s", self.group, moved)
        return result

    async def _stored(self, cluster: Cluster, ledger: Ledger) -> Mapping[int, int]:
        """The group's next offsets, if the plan is about the topic that they are of."""
        from airflow_provider_memq import published  # noqa: PLC0415 - DAGs parse sooner

        topic = (await published.look_up(cluster, self.topic)).topic
        check_same_topic(ledger, topic)
        return await published.committed(cluster, topic, self.group)


def _moved(
    ledger: Ledger, stored: Mapping[int, int], done: Collection[PlannedRange]
) -> dict[int, int]:
    """Next offsets of the read partitions that may move on."""
    moved = {}
    for partition, origin in ledger.origins.items():
        start = max(origin, stored.get(partition, 0))
        passed = [each for each in (*done, *ledger.gaps) if each.partition == partition]
        end = contiguous_end(start, passed)
        if end > start:
            moved[partition] = end
    return moved
