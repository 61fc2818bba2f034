"""`MemqPlanRangesOperator`: from what is published to the ranges that come next."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.sdk import conf
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_memq.base import FailsAtOnce, MemqTopicOperator, now_ms
from airflow_provider_memq.launch import files
from airflow_provider_memq.launch.range_job import written_ranges
from airflow_provider_memq.planning.ledger import (
    carried_on,
    first_ledger,
    is_same_topic,
    last_ledger,
    processed_ahead,
    taken_over,
)
from airflow_provider_memq.planning.missed import UNFINISHED, MissedRanges, is_paused
from airflow_provider_memq.planning.ranges import Limits, range_key
from airflow_provider_memq.planning.topics import next_ranges, read_state
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.triggers.memq import MemqRangeDueTrigger
from airflow_provider_memq.values import (
    count_or,
    duration_ms_or,
    parse_flag,
    parse_offsets,
    skips_removed,
)
from memq.core.units import counted
from memq.errors import ConfigError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.planning.ledger import PlanLedger
    from airflow_provider_memq.planning.ranges import Plan
    from airflow_provider_memq.planning.topics import TopicState
    from airflow_provider_memq.values import Offsets
    from memq.core.ranges import OffsetRange

DEFAULT_RANGES = 100  # per read partition and plan; each becomes a DAG run
LONGEST_WAIT = 4  # of the retention, a part: long before `MemqRetentionOperator` warns
HELD_LOOK_MS = 60_000  # between two looks whether runs have ended
LEAST_WAIT_MS = 10_000  # Airflow 3.3 may fail a deferred task that resumes within seconds
PLANNER = "planner"  # key in the plan's state store: who makes its first plan
CLAIM_S = 2.0  # in which another first plan of the same moment is seen; once in a topic's life
TRIGGER_GRACE = timedelta(minutes=10)  # with no triggerer so long after a wait, a worker goes on


class MemqPlanRangesOperator(MemqTopicOperator):
    """Emits the ranges of offsets that come next as partitions of an asset.

    A DAG scheduled with `PartitionedAssetTimetable(assets=ranges)` then runs once per range, with
    the range's key as `dag_run.partition_key`. Ranges of a read partition meet: they go on where
    the last *committed* event of the plan says that planning ended (`plan_asset`), which is stored
    together with the ranges. So a try that crashes has planned nothing, and a plan is never made
    twice.

    Two plans at a time would read the same last event, and plan the same. So one such task runs at
    a time in all runs of the DAG: `max_active_tis_per_dag=1` is set, and nothing else is taken.
    The DAG's own `max_active_runs` cannot do that, for runs of a backfill are counted apart.

    Airflow makes no run of a range that is emitted while its DAG is paused. With `process_dag_id`
    each plan emits the ranges of earlier plans that have no run again, once (see `missed`).

    An asset has one planner, the task that made its last plan; another one is refused. With `group`
    and `output_dir` a planner is refused as well where more is processed than Airflow knows to be
    planned, as after a restore of its database. `take_over` is the way on from both.

    With nothing new the task is skipped, for a successful task always emits.

    Ranges are made large rather than many. What reached no limit waits for `linger`, or until it
    has `min_bytes`; and while `max_pending` runs of `process_dag_id` have not ended, or that DAG is
    paused, it goes on growing up to the limits, for its run would only wait behind them. So a
    backlog becomes ranges as large as they may be. Nothing waits for longer than a quarter of the
    topic's retention, whatever is set: it is planned then, as it is. How far is planned does not
    move while something waits, so a wait can lose and double nothing. With `deferrable` the task
    itself waits, in the triggerer, and plans when the wait is over; without it the task is skipped,
    and what waits is planned by the next run that finds it due.

    Args:
        topic: the topic.
        ranges: the asset; one planner emits to it, for one topic.
        start: where the first plan begins: "earliest", "latest" or offsets by read partition
           . Without meaning once something is planned.
        on_recreated: "fail" when the topic was deleted and recreated, or "begin" to plan the new
            one from its `start` on. Ranges that were planned before are not processed
            any more: their runs fail.
        on_removed: "fail", or "skip" to go on after offsets that retention removed before they
            were planned, which the event's extra and the result record.
        max_offsets: notifications of a range at most.
        max_bytes: bytes of its objects at most, such as "512MiB".
        max_records: LogMessages at most.
        max_age: time between its first and last notification at most, such as "1h".
        linger: last ranges that reached no limit wait for more until one is this old, such as "5m".
        min_bytes: a range of this size does not linger.
        max_pending: runs of `process_dag_id` that have not ended, from which on ranges that reached
            no limit are not planned; 0 for any number.
        deferrable: wait in the triggerer; the default is `[operators] default_deferrable`.
        max_ranges: ranges per read partition and plan at most; the next plan goes on.
        process_dag_id: the DAG that is scheduled on the ranges, so that none of them goes without
            a run. It must be the only one: another one would get a second run.
        missed_after: a range that has no run so long after it was emitted is emitted again, such as
            "5m"; it is looked for as often.
        preview: a dry run: only show the plan, and skip.
        group: consumer group that follows what is processed; what it has committed is not planned
            again.
        output_dir: folder, URI or table of the results, as the task that processes has it: ranges
            with a manifest there are not planned otherwise.
        manifest_dir: folder or URI of the manifests, as that task has it.
        take_over: plan though another planner did before, whose DAG is paused or deleted; and go on
            after what `group` has committed. Ranges beyond that are planned as their manifests have
            them, and run again.
        aws_conn_id: connection by which manifests in S3 are listed.
        memq_conn_id: connection to the brokers.

    Returns:
        `{"topic", "ranges": [{"key", "batches", "bytes", "records"}, …], "again": [keys that were
        emitted again], "waiting": [what is not planned yet, as `ranges`], "skipped", "dry_run"}`.

    Raises:
        TopicRecreatedError: the topic is another one than was planned.
        DataLossError: offsets were removed before they were planned; or the topic went back.
        ConfigError: an argument is wrong; or another planner has the asset; or more is processed
            than is planned.
        StorageError: manifests cannot be listed.
    """

    permanent = FailsAtOnce.permanent | {DataLossError.code}

    def __init__(
        self,
        *,
        ranges: Asset,
        start: Offsets = "earliest",
        on_recreated: str = "fail",
        on_removed: str = "fail",
        max_offsets: int | str | None = None,
        max_bytes: int | str | None = None,
        max_records: int | str | None = None,
        max_age: str | None = None,
        linger: str | None = None,
        min_bytes: int | str | None = None,
        max_pending: int | str = 0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        max_ranges: int | str = DEFAULT_RANGES,
        process_dag_id: str | None = None,
        missed_after: str = "5m",
        preview: bool | str = False,
        group: str | None = None,
        output_dir: str | None = None,
        manifest_dir: str | None = None,
        take_over: bool | str = False,
        aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        plans = kwargs.setdefault("max_active_tis_per_dag", 1)
        if plans != 1:
            raise ConfigError(
                f"max_active_tis_per_dag = {plans!r}: must be 1, for two plans at a time would "
                "plan the same; leave it out"
            )
        inlets, outlets = kwargs.pop("inlets", None) or [], kwargs.pop("outlets", None) or []
        plan = plan_asset(ranges)
        super().__init__(inlets=[*inlets, plan], outlets=[*outlets, ranges, plan], **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, and emit; or wait."""
        return self._plan(context)

    def _plan(self, context: Context) -> dict[str, Any]:
        limits, dry_run = Limits.read(vars(self)), parse_flag("preview", self.preview)
        skips_removed(self.on_removed)
        take_over = parse_flag("take_over", self.take_over)
        held = self._is_held(context)
        last = last_ledger(context["inlet_events"], plan_asset(self.ranges))
        self._check_planner(context, last, take_over=take_over, dry_run=dry_run)
        missed = self._missed(context)
        if missed is not None:
            by_offsets = not isinstance(start_of(self.start), str)
            missed.check_remembered(last, begins_at_offsets=by_offsets)
        begin, plan = self._next(last, limits, take_over=take_over, held=held)
        is_same = last is None or begin.life == last.life
        again = []
        if missed and is_same and not dry_run:
            again = missed.look(last, take_over=take_over)
        for key in again:
            self.log.warning("range %s got no run of %s: emitted again", key, self.process_dag_id)
        if plan.waiting and self.deferrable and not (dry_run or plan.ranges or again):
            self._wait(begin, plan, held=held)
        ledger = begin.advanced((each.range for each in plan.ranges), again)
        result = _result(last, ledger, plan, dry_run=dry_run)
        self.log.info("%s", result)
        is_new = last is None or (ledger.life, ledger.ends) != (last.life, last.ends)
        is_new = is_new or (take_over and last is not None and last.planner != self._name)
        if dry_run or not (is_new or again):
            context["ti"].xcom_push("return_value", result)
            raise AirflowSkipException("a preview emits nothing" if dry_run else "nothing is due")
        if last is None:  # another planner may have made a first plan at the same time
            self._check_planner(context, last, take_over=False, dry_run=False)
        context["outlet_events"][plan_asset(self.ranges)].extra = ledger.to_extra()
        keys = [range_key(each.range) for each in plan.ranges]
        context["outlet_events"][self.ranges].add_partitions([*again, *keys])
        return result

    def _next(
        self, last: PlanLedger | None, limits: Limits, *, take_over: bool, held: bool
    ) -> tuple[PlanLedger, Plan]:
        """Ask the brokers what comes next; gives the ledger that it goes on from, and the plan."""
        with self.hook.topic(self.topic) as client:
            limits = limits._replace(longest_ms=client.info().config.retention_ms // LONGEST_WAIT)
            state = read_state(self.topic, client)
            begin = msgspec.structs.replace(self._begin(last, state), planner=self._name)
            stored = client.committed(self.group) if self.group else {}
            written: list[OffsetRange] = []
            if take_over:
                written = self._written(begin, dict.fromkeys(begin.ends, 0))
                begin, written = taken_over(begin, stored, written)
            plan = next_ranges(
                client, state, begin.ends, limits, now_ms(), held=held, written=written
            )
        if not take_over:
            self._check_ahead(begin, stored, plan)
        return begin, plan

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """After a wait, and when its trigger did not come to an end in time: plan again."""
        failed = next_method == TRIGGER_FAIL_REPR
        if failed and (next_kwargs or {}).get("error") != TriggerFailureReason.TRIGGER_TIMEOUT:
            return super().resume_execution(next_method, next_kwargs, context)
        return self._plan(context)

    @property
    def _name(self) -> str:
        return f"{self.dag_id}.{self.task_id}"

    def _check_planner(
        self, context: Context, last: PlanLedger | None, *, take_over: bool, dry_run: bool
    ) -> None:
        """Refuse to plan along with another planner; before the first plan, claim to be the one."""
        store = context["asset_state_store"][plan_asset(self.ranges)]
        owner = str(last.planner if last else store.get(PLANNER) or "")
        if owner and owner != self._name and not (take_over and self._is_over(context, owner)):
            raise ConfigError(
                f"{self.ranges.name} is planned by {owner}, and two would plan offsets twice. To "
                "go on with this planner, pause or delete that DAG, and run it with take_over=true"
            )
        if last is None and owner != self._name and not dry_run:
            store.set(PLANNER, self._name)
            time.sleep(CLAIM_S)

    def _is_over(self, context: Context, planner: str) -> bool:
        """Return whether another planner is deleted, or paused, and plans no more."""
        ti: Any = context["ti"]
        dag_id, _, task_id = planner.rpartition(".")
        try:
            over = dag_id == self.dag_id or is_paused(ti, dag_id)
        except ConfigError:  # there is no such DAG
            return True
        runs = ti.get_task_states(dag_id, task_ids=[task_id]).values()
        return bool(over) and not any({"queued", "running"} & {*run.values()} for run in runs)

    def _written(self, begin: PlanLedger, starts: Mapping[int, int]) -> list[OffsetRange]:
        """Return the ranges that have manifests, and begin at some offsets or after them."""
        if not self.output_dir:
            return []
        of = self.manifest_dir, self.output_dir, self.topic
        return written_ranges(of, begin.topic_id, starts, self.aws_conn_id)

    def _check_ahead(self, begin: PlanLedger, stored: Mapping[int, int], plan: Plan) -> None:
        """Refuse to plan what is processed already, though Airflow knows of no plan of it."""
        new = {each.range.partition for each in (*plan.ranges, *plan.waiting)}
        written = self._written(begin, {p: begin.ends[p] for p in new})
        if ahead := processed_ahead(begin, stored, written):
            raise ConfigError(
                f"{self.topic!r}: {ahead}. Airflow has forgotten plans, as after a restore of its "
                "database. Let earlier jobs end, then run this planner once with take_over=true: "
                f"it goes on after what group {self.group!r} has committed, and runs ranges beyond "
                "that again as their manifests have them"
            )

    def _is_held(self, context: Context) -> bool:
        """Return whether more runs would only wait behind others."""
        most = count_or(0, "max_pending", self.max_pending)
        if not most:
            return False
        if self.process_dag_id is None:
            raise ConfigError(
                f"max_pending = {most}: give process_dag_id too, the DAG whose runs are counted"
            )
        ti: Any = context["ti"]
        if is_paused(ti, self.process_dag_id):
            self.log.info("%s is paused: ranges grow up to their limits", self.process_dag_id)
            return True
        pending = ti.get_dr_count(self.process_dag_id, states=UNFINISHED)
        self.log.info("%s of %s not ended yet", counted(pending, "run"), self.process_dag_id)
        return bool(pending >= most)

    def _wait(self, begin: PlanLedger, plan: Plan, *, held: bool) -> None:
        """Leave the worker until there is something to plan. Nothing of this try is stored."""
        now = now_ms()
        # Nothing tells a trigger that runs have ended, so that is looked for.
        until_ms = min(plan.due_ms, now + HELD_LOOK_MS) if held else plan.due_ms
        until_ms = max(until_ms, now + LEAST_WAIT_MS)
        self.log.info("waiting for more: %s", [each.to_row() for each in plan.waiting])
        trigger = MemqRangeDueTrigger(
            topic=self.topic,
            topic_id=begin.topic_id,
            since={str(partition): end for partition, end in begin.ends.items()},
            min_bytes=plan.full_bytes,
            until_ms=until_ms,
            memq_conn_id=self.memq_conn_id,
        )
        wait = timedelta(milliseconds=max(0, until_ms - now)) + TRIGGER_GRACE
        self.defer(trigger=trigger, method_name="execute", timeout=wait)

    def _missed(self, context: Context) -> MissedRanges | None:
        if self.process_dag_id is None:
            return None
        after = timedelta(milliseconds=duration_ms_or(0, self.missed_after))
        return MissedRanges(context, plan_asset(self.ranges), self.process_dag_id, after)

    def _begin(self, last: PlanLedger | None, state: TopicState) -> PlanLedger:
        """Load the ledger that this plan goes on from."""
        if last is None:
            return first_ledger(state, start_of(self.start))
        if self._begins_anew() and not is_same_topic(last, state):
            return first_ledger(state, start_of(self.start), last.life + 1)
        return carried_on(last, state, skip_removed=skips_removed(self.on_removed))

    def _begins_anew(self) -> bool:
        if self.on_recreated not in ("fail", "begin"):
            raise ConfigError(f"on_recreated = {self.on_recreated!r}: must be 'fail' or 'begin'")
        return bool(self.on_recreated == "begin")


def start_of(value: Offsets) -> str | dict[int, int]:
    """Parse where to begin: a word, or offsets by read partition (a dict or its JSON text).

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return value
    return parse_offsets("start", value)


def _result(
    last: PlanLedger | None, ledger: PlanLedger, plan: Plan, *, dry_run: bool
) -> dict[str, Any]:
    """Return a plan as plain JSON, with what it skipped itself."""
    earlier = last.skipped if last is not None else []
    return {
        "topic": ledger.topic,
        "ranges": [each.to_row() for each in plan.ranges],
        "again": ledger.again,
        "waiting": [each.to_row() for each in plan.waiting],
        "skipped": [gap for gap in ledger.skipped if gap not in earlier],
        "dry_run": dry_run,
    }
