"""Plans, runs and audits of a topic from Airflow's database, by a bounded number of rows.

The API server reads its database as the routes of Airflow do: the API of tasks answers tasks alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetEvent, AssetModel, TaskInletAssetReference
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from sqlalchemy import select

from airflow_provider_memq.audited import AuditedWindows
from airflow_provider_memq.ledger import (
    CLOCKS_APART,
    INCARNATION_KEY,
    StoredPlan,
    last_ledger,
    ledger_of,
)
from airflow_provider_memq.missed import MARK
from airflow_provider_memq.plugins.events import AssetState, StoredEvents
from airflow_provider_memq.plugins.facts import Audits, AuditTask, Pipeline, Planned, Run
from airflow_provider_memq.plugins.sources import arguments_of, asset_refs, plan_of
from airflow_provider_memq.range_assets import audited_asset
from airflow_provider_memq.ranges import range_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sqlalchemy.orm import Session

    from memq.core.ranges import OffsetRange

MAX_PLANS = 200  # of one page
MAX_RANGES = 1_000  # likewise
MAX_TASKS = 10  # that return something, of one run
MAX_RESULTS = 60  # of a task that audits: two days of hours, and some on demand
CHUNK = 200  # keys in one query
RETURNED = "return_value"


def planned_of(
    session: Session, pipeline: Pipeline, before: datetime | None = None
) -> Planned | None:
    """The newest plans before a time, with their runs; None where nothing is planned.

    Raises:
        CorruptDataError: a plan is damaged.
    """
    ledger = last_ledger(StoredEvents(session), plan_of(pipeline.ranges))
    if ledger is None:
        return None
    plans: list[StoredPlan] = []
    count, older = 0, False
    for each in _plans(session, pipeline, before):
        count += len(each.ledger.ranges)
        older = len(plans) == MAX_PLANS or (bool(plans) and count > MAX_RANGES)
        if older:
            break
        if each.ledger.incarnation == ledger.incarnation:
            plans.insert(0, each)
    keys = [range_key(each) for plan in plans for each in plan.ledger.ranges]
    return _with_runs(session, pipeline, Planned(ledger, plans, older, before), keys)


def planned_range(session: Session, pipeline: Pipeline, offsets: OffsetRange) -> Planned | None:
    """The plan of one range, with its runs; None where nothing is planned.

    Where the range is in none of the newest plans, the one that has cut its offsets otherwise is
    there; without any, the ledger is the last one.

    Raises:
        CorruptDataError: a plan is damaged.
    """
    ledger = last_ledger(StoredEvents(session), plan_of(pipeline.ranges))
    if ledger is None:
        return None
    about = [each for each in _plans(session, pipeline) if _is_about(each, offsets)]
    plans = [each for each in about if offsets in each.ledger.ranges][:1] or about[:1]
    planned = Planned(plans[0].ledger if plans else ledger, plans, older=True)
    return _with_runs(session, pipeline, planned, [range_key(offsets)])


def _is_about(plan: StoredPlan, offsets: OffsetRange) -> bool:
    return any(
        each.partition == offsets.partition
        and each.incarnation == offsets.incarnation
        and each.start < offsets.end
        and offsets.start < each.end
        for each in plan.ledger.ranges
    )


def range_with(
    session: Session, pipeline: Pipeline, partition: int, offset: int
) -> OffsetRange | None:
    """The range in which an offset was planned; None where it is in none of the newest plans.

    Plans of a topic of that name that was deleted before are passed over.

    Raises:
        CorruptDataError: a plan is damaged.
    """
    last = last_ledger(StoredEvents(session), plan_of(pipeline.ranges))
    for plan in _plans(session, pipeline):
        if last is None or plan.ledger.incarnation != last.incarnation:
            continue
        for each in plan.ledger.ranges:
            if each.partition == partition and each.start <= offset < each.end:
                return each
    return None


def _plans(
    session: Session, pipeline: Pipeline, before: datetime | None = None
) -> Iterator[StoredPlan]:
    """The plans before a time, the newest first; `MAX_LOOKED` at most."""
    events = StoredEvents(session)[plan_of(pipeline.ranges)].ascending(False)
    for event in events if before is None else events.before(before):
        ledger = ledger_of(event.extra)
        if ledger is not None and event.timestamp != before:
            yield StoredPlan(event.timestamp, ledger)


def _with_runs(
    session: Session, pipeline: Pipeline, planned: Planned, keys: Collection[str]
) -> Planned:
    # A scheduler makes the runs, by its own clock.
    since = planned.plans[0].at - CLOCKS_APART if planned.plans else None
    return planned._replace(
        runs=runs_of(session, pipeline, keys, since),
        done=_done(session, pipeline, keys, since),
        all_have_runs=_all_have_runs(session, pipeline),
        own_dag=pipeline.own_dag,
        is_told=bool(pipeline.done),
    )


def runs_of(
    session: Session, pipeline: Pipeline, keys: Collection[str], since: datetime | None = None
) -> dict[str, list[Run]]:
    """The runs of ranges by key, the oldest first."""
    found: dict[str, list[Run]] = {}
    for some in _chunks(keys):
        runs = select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.run_after).add_columns(
            DagRun.partition_key
        )
        runs = runs.where(DagRun.dag_id.in_(pipeline.process_dags), DagRun.partition_key.in_(some))
        if since is not None:
            runs = runs.where(DagRun.run_after >= since)
        for row in session.execute(runs.order_by(DagRun.id).limit(MAX_RANGES)):
            run = Run(row.dag_id, row.run_id, str(row.state), row.run_after)
            found.setdefault(row.partition_key, []).append(run)
    return found


def _done(
    session: Session, pipeline: Pipeline, keys: Collection[str], since: datetime | None
) -> frozenset[str]:
    """Keys of which a task of the DAG that processes has said so, or one that has compared a
    manifest, as that of a backfill. An event that a person has made says nothing.
    """
    found: set[str] = set()
    for some in _chunks(keys):
        events = (
            select(AssetEvent.partition_key, AssetEvent.source_dag_id, AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetModel.name.in_(pipeline.done), AssetEvent.partition_key.in_(some))
        )
        if since is not None:
            events = events.where(AssetEvent.timestamp >= since)
        for key, dag_id, extra in session.execute(events.limit(MAX_RANGES)):
            if dag_id and (pipeline.own_dag in ("", dag_id) or INCARNATION_KEY in (extra or {})):
                found.add(key)
    return frozenset(found)


def _all_have_runs(session: Session, pipeline: Pipeline) -> datetime | None:
    """What the planner has kept of its last look, or else when the oldest run was."""
    kept = AssetState(session, plan_of(pipeline.ranges).name).get(MARK)
    if isinstance(kept, dict) and kept.get("dag_id") in pipeline.process_dags and "until" in kept:
        return datetime.fromisoformat(str(kept["until"]))
    oldest = select(DagRun.run_after).where(DagRun.dag_id.in_(pipeline.process_dags))
    return session.scalar(oldest.order_by(DagRun.id).limit(1))


def result_of(session: Session, run: Run) -> tuple[str, dict[str, Any]] | None:
    """The task of a run that has returned a manifest, and what it returned."""
    returned = select(XComModel).where(
        XComModel.dag_id == run.dag_id, XComModel.run_id == run.run_id, XComModel.key == RETURNED
    )
    for row in session.scalars(returned.limit(MAX_TASKS)):
        value = XComModel.deserialize_value(row)
        if isinstance(value, dict) and "manifest" in value:
            return row.task_id, value
    return None


def _chunks(keys: Collection[str]) -> Iterator[list[str]]:
    every = list(keys)
    return (every[at : at + CHUNK] for at in range(0, len(every), CHUNK))


# -- audits ---------------------------------------------------------------------------------


def audits_of(session: Session, topic: str) -> Audits | None:
    """What was audited of a topic; None where nobody audits it.

    Raises:
        CorruptDataError: the record of what was audited makes no sense.
    """
    asset = audited_asset(topic).name
    tasks = asset_refs(session, TaskInletAssetReference, asset)
    if not tasks:
        return None
    record = AuditedWindows(AssetState(session, asset), "audited")
    return Audits(
        [
            AuditTask(
                each.dag_id,
                bool(arguments_of(session, each.dag_id, each.task_id).get("settled_for")),
                _audit_runs(session, each.dag_id, each.task_id),
            )
            for each in tasks
        ],
        record.read(),
    )


def _audit_runs(session: Session, dag_id: str, task_id: str) -> list[Run]:
    # By when they were stored: a backfill has the times of the interval that it audits again.
    returned = (
        select(XComModel, DagRun.state)
        .join(DagRun, DagRun.id == XComModel.dag_run_id)
        .where(XComModel.dag_id == dag_id, XComModel.task_id == task_id, XComModel.key == RETURNED)
        .order_by(XComModel.timestamp.desc())
        .limit(MAX_RESULTS)
    )
    found = []
    for xcom, state in session.execute(returned):
        value = XComModel.deserialize_value(xcom)
        if isinstance(value, dict):
            found.append(Run(dag_id, xcom.run_id, str(state), xcom.timestamp, value))
    return found
