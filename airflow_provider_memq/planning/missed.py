"""Ranges that were planned and got no DAG run.

Theory of operation
-------------------
Airflow makes a run of a range while it stores the event that emits it, or never: it asks at that
moment whether the DAG is paused, and keeps nothing for one that is, nor for one that it has not
parsed yet. So a range that was planned while its DAG was paused would never be processed.

The planner looks for such ranges: it compares what was emitted with the partition keys of the runs
that there are, and emits again what has no run. It does so once for each range:

- A run that is not made yet is not missing. Airflow's scheduler makes the runs of stored events in
  their order, each time it looks for tasks to run. So a range is judged only when it was emitted
  some minutes ago; and while its first event still waits for its run, Airflow joins the second one
  to it.
- What is emitted again also stands in the ledger, stored in the same transaction. A try that
  dies has emitted nothing; after a success it is judged again only when those minutes are over.
- While the DAG is paused nothing is emitted again: it would be lost again.

Up to when everything has its run is kept in the state store of the plan's asset, so that a look
reads only what is newer. That is a shortcut: where it is lost, ranges from before the oldest run
that Airflow remembers are taken for done, since `airflow db clean` removes runs.

It says as well which DAG was looked at. Another one is refused. With `take_over` it is not: from
the first range on that has no run, all get one of the new DAG, and what runs of the DAG before have
not ended is left to a backfill.

And it says that there was a plan. Where the events of all plans are gone, nobody knows how far was
planned. So that is refused rather than guessed, unless the planner is given the offsets to go on
from.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_memq.planning.ledger import CLOCKS_APART, plans_since
from airflow_provider_memq.planning.ranges import range_key
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from airflow.sdk import Asset, Context

    from airflow_provider_memq.planning.ledger import PlanLedger, StoredPlan

MAX_AGAIN = 1_000  # ranges that one plan emits again; the next look goes on
MARK = "all_have_runs"  # key in the state store
UNFINISHED = ["queued", "running"]  # states of runs whose range is still to be processed
NOT_FOUND = 404  # the API server's answer about what there is not
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_RUN_TIME = re.compile(r"__(\d{4}-\d\d-\d\dT[0-9:.]+(?:\+00:00|Z))")


class RangesWithoutRun(NamedTuple):
    """What a look found.

    Attributes:
        again: keys to emit again, in the order in which they were planned.
        waiting: keys without a run that were emitted too short a time ago.
        until: all that was emitted before this time has its run.
    """

    again: list[str]
    waiting: list[str]
    until: datetime | None


def ranges_without_run(
    plans: Iterable[StoredPlan], with_run: Collection[str], settled: datetime
) -> RangesWithoutRun:
    """Find the ranges that have no run.

    Args:
        plans: of one topic, the oldest first.
        with_run: partition keys of the DAG's runs.
        settled: what was emitted before this time has its run, or never gets one.
    """
    first: dict[str, datetime] = {}
    last: dict[str, datetime] = {}
    until = None
    for at, ledger in plans:
        until = at + timedelta(microseconds=1)  # the plan itself included
        for key in (*map(range_key, ledger.ranges), *ledger.again):
            first.setdefault(key, at)
            last[key] = at
    missing = [key for key in first if key not in with_run]
    if missing:
        until = min(first[key] for key in missing) - timedelta(microseconds=1)
    return RangesWithoutRun(
        [key for key in missing if last[key] <= settled][:MAX_AGAIN],
        [key for key in missing if last[key] > settled],
        until,
    )


class MissedRanges:
    """Looks for the ranges of one planner that have no run.

    Args:
        context: of the planner's task.
        plan: asset of the plan.
        dag_id: DAG that runs once for each range.
        after: a range that was emitted so long ago has its run, or never gets one; also the time
            between two looks.
    """

    def __init__(self, context: Context, plan: Asset, dag_id: str, after: timedelta) -> None:
        self._ti: Any = context["ti"]
        self._events = context["inlet_events"]
        self._store = context["asset_state_store"][plan]
        self._plan, self._dag_id, self._after, self._now = plan, dag_id, after, datetime.now(UTC)

    def __repr__(self) -> str:
        return f"<MissedRanges {self._dag_id}>"

    def check_remembered(self, last: PlanLedger | None, *, begins_at_offsets: bool) -> None:
        """Refuse to start over where there was a plan, but for offsets that are given.

        Args:
            last: the last plan; None where there is none.
            begins_at_offsets: whether the first plan begins at offsets that were given.

        Raises:
            ConfigError: there was a plan, and Airflow has forgotten it.
        """
        mark = self._mark()
        if last is None and not begins_at_offsets and _time(mark, "until") > _BEGIN:
            raise ConfigError(
                f"{self._plan.name}: nothing is left of what was planned, though all that was "
                f"planned until {mark['until']} has its runs: its events were deleted, as by "
                "`airflow db clean`, and a new plan would start over and process again what "
                "was processed. Run the planner once with the offsets to go on from as its start, "
                'such as {"0": 5}'
            )

    def look(self, last: PlanLedger | None, *, take_over: bool = False) -> list[str]:
        """Return the keys to emit again; nothing where the last look was a short time ago.

        Args:
            last: the last plan; None where there is none.
            take_over: whether another DAG goes on where the one before was.

        Raises:
            ConfigError: there is no such DAG; or it is another one than before.
        """
        mark = self._mark()
        before = mark.get("dag_id", self._dag_id)
        if last is None:
            if not mark:  # else another try, or a plan that goes on from offsets that were given
                self._keep(_BEGIN, _BEGIN)
            return []
        if before != self._dag_id and not take_over:
            raise ConfigError(
                f"process_dag_id = {self._dag_id!r}: {before} ran for each range before. Let it "
                "run what is planned, then run the planner once with take_over=true: what has no "
                "run gets one of the new DAG, and runs that never end are for a backfill"
            )
        if before == self._dag_id and _time(mark, "looked") > self._now - self._after:
            return []
        since = _time(mark, "until") if mark else None
        runs = {key: at for each in {before, self._dag_id} for key, at in self._runs(each, since)}
        if since is None:
            since = min(runs.values(), default=_BEGIN)
        plans = plans_since(self._events, self._plan, since)
        plans = [each for each in plans if each.ledger.topic_id == last.topic_id]
        found = ranges_without_run(plans, runs, self._now - self._after)
        again = [] if found.again and is_paused(self._ti, self._dag_id) else found.again
        # Looked at again soon where there is more than one plan takes.
        self._keep(_BEGIN if len(again) == MAX_AGAIN else self._now, found.until or since)
        return again

    def _mark(self) -> dict[str, Any]:
        kept: Any = self._store.get(MARK)
        return kept if isinstance(kept, dict) else {}

    def _keep(self, looked: datetime, until: datetime) -> None:
        times = {"looked": looked.isoformat(), "until": until.isoformat()}
        self._store.set(MARK, {"dag_id": self._dag_id, **times})

    def _runs(self, dag_id: str, since: datetime | None) -> Iterator[tuple[str, datetime]]:
        """Give the partition keys of a DAG's runs since a time, and when they were made."""
        for run_id in self._ti.get_task_states(dag_id):
            named = _RUN_TIME.search(run_id)
            if named and since and datetime.fromisoformat(named[1]) < since - CLOCKS_APART:
                continue
            run = _dag_run(dag_id, run_id)
            if run.partition_key:
                yield run.partition_key, run.run_after


def is_paused(ti: Any, dag_id: str) -> bool:
    """Return whether a DAG is paused.

    Args:
        ti: the task that asks.
        dag_id: the DAG.

    Raises:
        ConfigError: there is no such DAG.
    """
    try:
        return bool(ti.get_dag(dag_id).is_paused)
    except AirflowRuntimeError as exc:
        if (exc.error.detail or {}).get("status_code") != NOT_FOUND:
            raise  # an outage: the next try looks again
        raise ConfigError(
            f"process_dag_id = {dag_id!r}: Airflow knows no such DAG ({exc}). Name the "
            "one that is scheduled on the ranges"
        ) from exc


def _time(mark: dict[str, Any], name: str) -> datetime:
    return datetime.fromisoformat(mark[name]) if name in mark else _BEGIN


def _dag_run(dag_id: str, run_id: str) -> Any:
    """Find a DAG run; no public call finds it by its key."""
    from airflow.sdk.execution_time.comms import GetDagRun  # noqa: PLC0415 - only in a task
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS  # noqa: PLC0415 - only in a task

    return SUPERVISOR_COMMS.send(GetDagRun(dag_id=dag_id, run_id=run_id))
