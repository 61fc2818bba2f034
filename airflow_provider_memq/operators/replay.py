"""`MemqReplayOperator`: run ranges that were planned before once more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_memq.emitted import planned_ranges
from airflow_provider_memq.operators.base import MemqTopicOperator
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.ranges import parse_key, touching
from airflow_provider_memq.values import parse_flag, time_ms_or_none
from memq.errors import ConfigError, TopicRecreatedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.published import Expected
    from airflow_provider_memq.ranges import PlannedRange
    from memq.client.cluster import Cluster


class MemqReplayOperator(MemqTopicOperator):
    """Emits planned ranges to their asset again, so that each is processed once more.

    What is wanted may be any offsets or any window of time. What is replayed are the whole ranges
    that touch it, as they were planned: so each run replaces its own output, and no other output
    holds the same rows. What was never planned is not replayed. The plan itself does not move.

    Args:
        ranges: the asset to which the ranges were emitted.
        keys: offsets wanted, as range keys: a list, or its text with commas or as JSON (templated).
        start: or else a window of time: its start, with a time zone (templated). Without one, it
            begins with what is held.
        end: and its end, not included (templated).
        preview: a dry run: only list what would be replayed, and skip (templated). It is the
            default, since a replay costs as much as the first run.
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).

    Returns:
        `{"topic", "ranges": [{"key", "partition", "start", "end", "batches", "records",
        "bytes"}, …], "batches", "bytes", "dry_run"}`.

    Raises:
        TopicRecreatedError: the topic was made again since the ranges were planned.
        OffsetOutOfRangeError: retention removed some of the Batches, or may have removed some of
            the window; the message names a read partition, and since when it is held.
        ConfigError: nothing or too much is asked for, or an argument makes no sense.
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
        found = self.ask(lambda cluster: self._find(cluster, planned))
        rows = [each.to_row() for each in found]
        result = {
            "topic": self.topic,
            "ranges": rows,
            "batches": sum(each.batches for each in found),
            "bytes": sum(each.bytes for each in found),
            "dry_run": dry_run,
        }
        for row in rows:
            self.log.info("%(key)s: %(batches)d Batches, %(bytes)d bytes", row)
        self.log.info("%d Batches, %d bytes in all", result["batches"], result["bytes"])
        if dry_run or not found:
            context["ti"].xcom_push("return_value", result)
            raise AirflowSkipException(
                "a preview emits nothing" if dry_run else "nothing to replay"
            )
        outlet = context["outlet_events"][self.ranges]
        outlet.extra = {"memq_replay": True}
        outlet.add_partitions([each.range.key for each in found])
        return result

    async def _find(self, cluster: Cluster, planned: set[PlannedRange]) -> list[Expected]:
        from airflow_provider_memq import published  # noqa: PLC0415 - DAGs parse sooner

        wanted = keys_of(self.keys)
        start_ms, end_ms = time_ms_or_none("start", self.start), time_ms_or_none("end", self.end)
        timed = start_ms is not None or end_ms is not None
        if timed == bool(wanted):
            raise ConfigError("give either keys of ranges, or a window with start, end or both")
        if timed:
            wanted = await published.between(cluster, self.topic, start_ms, end_ms)
        if start_ms is not None:
            await published.check_held_since(cluster, self.topic, start_ms, end_ms)
        topic = (await published.look_up(cluster, self.topic)).topic
        for each in (*planned, *wanted):
            if each.incarnation not in ("", topic.incarnation):
                raise TopicRecreatedError(
                    f"{each.key} is of another incarnation of {self.topic!r} than "
                    f"{topic.incarnation}, which there is now: its Batches are gone"
                )
        return await published.expect_all(cluster, self.topic, touching(planned, wanted))


def keys_of(keys: Sequence[str] | str | None) -> list[PlannedRange]:
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
