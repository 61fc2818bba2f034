"""What Airflow's database knows of topics: who works on them, plans, runs, results and audits.

None of it is configured once more: the event of a plan says which DAG has emitted it, and Airflow
which DAGs are scheduled on its ranges, which assets their tasks emit, and what their last arguments
were. Every query has a limit of rows. The API server reads its database as the routes of Airflow
do: the API of tasks answers tasks alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow._shared.state import AssetScope
from airflow.models.asset import (
    AssetEvent,
    AssetModel,
    DagScheduleAssetReference,
    TaskInletAssetReference,
    TaskOutletAssetReference,
)
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from airflow.sdk import Asset
from airflow.state import get_state_backend
from sqlalchemy import func, select

from airflow_provider_memq.planning.audited import AuditedWindows
from airflow_provider_memq.planning.ledger import (
    CLOCKS_APART,
    INCARNATION_KEY,
    StoredPlan,
    ledger_of,
    newest,
    settled,
)
from airflow_provider_memq.planning.missed import MARK
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.range_assets import (
    audited_asset,
    plan_asset,
    processed_asset,
    ranges_asset,
)
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_provider_memq.planning.ledger import Ledger
    from memq.core.ranges import Interval, OffsetRange

MAX_TOPICS = 200
MAX_DAGS = 10  # of one kind, for one topic
MAX_TASKS = 100  # of them
MAX_EVENTS = 20  # of an asset, of which one is a plan if it is the asset of one
MAX_PLANS = 200  # of the page of a topic
MAX_RANGES = 1_000  # likewise
MAX_LOOKED = 2_000  # plans in which one range is searched
MAX_RETURNED = 10  # results, of one run
MAX_RESULTS = 60  # of a task that audits: two days of hours, and some on demand
MAX_RUNS = 5_000  # of the ranges of a page; as many events say that they are processed
RETURNED = "return_value"
PLAN_SUFFIX = plan_asset(Asset(name="x", uri="x://x")).name.removeprefix("x")
RANGES_PREFIX = ranges_asset("x").name.removesuffix("x")
AUDITED_PREFIX = audited_asset("x").name.removesuffix("x")


@dataclass(frozen=True)
class Source:
    """A topic that is planned or audited.

    Attributes:
        topic: the topic.
        ranges: name of the asset of its ranges; empty where nobody plans.
        dags: the one that has planned last, or else those that audit.
        planned_at: when; None where nobody plans.
    """

    topic: str
    ranges: str
    dags: tuple[str, ...]
    planned_at: datetime | None = None


@dataclass(frozen=True)
class Run:
    """A DAG run of a range, or of an audit.

    Attributes:
        dag_id: of the DAG.
        run_id: of the run.
        state: of the run: "queued", "running", "success" or "failed".
        at: when it was to run; of a run of an audit, when it stored its result.
    """

    dag_id: str
    run_id: str
    state: str
    at: datetime


class Pipeline(NamedTuple):
    """The tasks and assets of a planned topic, as Airflow knows them.

    Attributes:
        topic: the topic.
        ranges: name of the asset of its ranges.
        plan_dag: DAG that plans.
        process_dags: those that are scheduled on the ranges.
        own_dag: which of them processes, as the planner knows it; empty where it does not say.
        all_have_runs: what was planned before has its run, or had it until Airflow's database was
            cleaned; None where that is not known.
        done: names of the assets of processed ranges.
        conn_id: connection to the brokers; empty where no run says.
        group: the consumer group that follows; empty where no run says.
        tables: tables that ranges are put into.
        missed_after: how long after its plan a range has its run, or gets none, as the planner was
            told; empty where no run says.
        hidden_dags: how many DAGs process ranges whose runs are not to be shown.
    """

    topic: str
    ranges: str
    plan_dag: str
    process_dags: tuple[str, ...] = ()
    own_dag: str = ""
    all_have_runs: datetime | None = None
    done: tuple[str, ...] = ()
    conn_id: str = ""
    group: str = ""
    tables: tuple[str, ...] = ()
    missed_after: str = ""
    hidden_dags: int = 0


class Planned(NamedTuple):
    """The newest plans of a topic, and what became of their ranges.

    Attributes:
        ledger: how far is planned.
        plans: those of the topic's incarnation, the oldest first.
        older: there are plans before them.
        runs: of each range by its key, by the DAG that processes; the oldest first.
        others: likewise, by other DAGs.
        done: keys of the ranges of which a task has said that it processed them.
    """

    ledger: Ledger
    plans: list[StoredPlan]
    older: bool = False
    runs: Mapping[str, list[Run]] = {}
    others: Mapping[str, list[Run]] = {}
    done: frozenset[str] = frozenset()

    @property
    def planned_at(self) -> dict[OffsetRange, datetime]:
        """When each range was planned, the oldest first."""
        return {each: plan.at for plan in self.plans for each in plan.ledger.ranges}

    def processed(self, stored: Mapping[int, int]) -> dict[int, int]:
        """Up to where nothing is left to process, by read partition.

        Where no group says what was processed before these plans, that is taken for processed: the
        page says since when it tells what is missing.
        """
        first: dict[int, int] = {}
        for each in self.planned_at:
            first[each.partition] = min(each.start, first.get(each.partition, each.start))
        known = {**(first if self.older else {}), **stored}
        done = (each for each in self.planned_at if range_key(each) in self.done)
        return settled(self.ledger, known, done)


class AuditResult(NamedTuple):
    """What a task that audits has returned.

    Attributes:
        run: its run.
        consumed: it audits what was consumed, and not what was stored.
        value: as it was returned.
    """

    run: Run
    consumed: bool
    value: dict[str, Any]


class Audits(NamedTuple):
    """What was audited of a topic.

    Attributes:
        results: of the tasks that audit it, the newest of each first.
        audited: windows of time of which what was stored was judged, milliseconds since 1970 UTC.
    """

    results: list[AuditResult]
    audited: list[Interval]


# -- topics ---------------------------------------------------------------------------------


def sources(session: Session) -> tuple[list[Source], list[str]]:
    """Find the topics that are planned or audited, `MAX_TOPICS` of each, sorted by name.

    Returns them, and a line about each that could not be told.
    """
    found: list[Source] = []
    notes: list[str] = []
    plans = _asset_names(session, AssetModel.name.endswith(PLAN_SUFFIX, autoescape=True))
    audited = _asset_names(session, AssetModel.name.startswith(AUDITED_PREFIX, autoescape=True))
    for names, what in ((plans, "planned"), (audited, "audited")):
        if len(names) > MAX_TOPICS:
            notes.append(
                f"more than {MAX_TOPICS} topics are {what}: the first by name are listed, and the "
                "pages of the others are at topics/NAME/ too"
            )
    for name in plans[:MAX_TOPICS]:
        try:
            source = source_of(session, name.removesuffix(PLAN_SUFFIX))
        except MemqError as exc:
            notes.append(f"asset {name!r}: {exc}")
        else:
            found += [source] if source else []
    planned = {each.topic for each in found}
    for name in audited[:MAX_TOPICS]:
        topic = name.removeprefix(AUDITED_PREFIX)
        if topic not in planned:
            tasks = _asset_refs(session, TaskInletAssetReference, name)
            found.append(Source(topic, "", tuple({each.dag_id for each in tasks})))
    return sorted(found, key=lambda each: (each.topic, each.ranges)), notes


def source_of(session: Session, ranges: str) -> Source | None:
    """Find the topic that is planned to an asset of ranges; None where nothing was.

    Raises:
        CorruptDataError: its last plan is damaged.
    """
    for event, ledger in _plan_events(session, ranges, MAX_EVENTS):
        return Source(ledger.topic, ranges, (event.source_dag_id or "",), event.timestamp)
    return None


def pipeline_of(session: Session, source: Source) -> Pipeline:
    """Find who processes the ranges of a planned topic, and how."""
    scheduled = _asset_refs(session, DagScheduleAssetReference, source.ranges)
    process_dags = tuple(sorted({each.dag_id for each in scheduled}))
    mark = _kept(session, source.ranges + PLAN_SUFFIX, MARK)
    if not isinstance(mark, dict) or mark.get("dag_id") not in process_dags:
        mark = {}
    own_dag = str(mark.get("dag_id", ""))
    refs = _asset_refs(session, TaskOutletAssetReference, source.ranges + PLAN_SUFFIX)
    planners = {(each.dag_id, each.task_id) for each in refs}
    given = _last_arguments(session, {*process_dags, *(dag_id for dag_id, _ in planners)})
    of_topic = [
        each
        for task, each in given.items()
        if each.get("topic") == source.topic and (task in planners or task[0] in process_dags)
    ]

    def first(name: str) -> str:
        return next((str(each[name]) for each in of_topic if each.get(name)), "")

    return Pipeline(
        source.topic,
        source.ranges,
        source.dags[0],
        process_dags,
        own_dag,
        _all_have_runs(session, process_dags, mark),
        _done_assets(session, source, (own_dag,) if own_dag else process_dags),
        first("memq_conn_id"),
        first("group"),
        tuple(dict.fromkeys(each["output_dir"] for each in of_topic if _is_table(each))),
        first("missed_after"),
    )


def _done_assets(session: Session, source: Source, dags: Sequence[str]) -> tuple[str, ...]:
    """Find the assets by which tasks of DAGs say that a range is processed.

    A task may emit to other assets too, before a gate: what counts is what a commit waits for.
    """
    awaited = (
        select(TaskInletAssetReference.asset_id)
        .where(TaskInletAssetReference.dag_id.in_(dags))
        .scalar_subquery()
    )
    names = session.scalars(
        select(AssetModel.name)
        .join(TaskOutletAssetReference, TaskOutletAssetReference.asset_id == AssetModel.id)
        .where(
            TaskOutletAssetReference.dag_id.in_(dags),
            AssetModel.name != source.ranges,
            AssetModel.name.startswith(processed_asset(source.topic, "").name, autoescape=True)
            | AssetModel.id.in_(awaited),
        )
        .distinct()
        .limit(MAX_DAGS)
    )
    return tuple(names)


def _all_have_runs(
    session: Session, process_dags: Sequence[str], mark: dict[str, Any]
) -> datetime | None:
    """Read what the planner has kept of its last look, or else when the oldest run was."""
    if "until" in mark:
        return datetime.fromisoformat(str(mark["until"]))
    oldest = select(DagRun.run_after).where(DagRun.dag_id.in_(process_dags))
    return session.scalar(oldest.order_by(DagRun.id).limit(1))


def _is_table(arguments: dict[str, Any]) -> bool:
    """Whether a task puts ranges into a table: its output is a name and no folder."""
    output = str(arguments.get("output_dir") or "")
    return "." in output and "/" not in output


def _last_arguments(
    session: Session, dag_ids: Collection[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the arguments that tasks had last, by DAG and task id; templates, without any secret."""
    fields = RenderedTaskInstanceFields
    task = (fields.dag_id, fields.task_id)
    age = func.row_number().over(partition_by=task, order_by=DagRun.id.desc()).label("age")
    every = (
        select(*task, fields.rendered_fields, age)
        .join(DagRun, (DagRun.dag_id == fields.dag_id) & (DagRun.run_id == fields.run_id))
        .where(fields.dag_id.in_(dag_ids))
        .subquery()
    )
    last = select(every).where(every.c.age == 1).order_by(every.c.dag_id, every.c.task_id)
    rows = session.execute(last.limit(MAX_TASKS))
    return {(row.dag_id, row.task_id): dict(row.rendered_fields or {}) for row in rows}


def _asset_names(session: Session, condition: Any) -> list[str]:
    """Read the first names of assets, and one more than is shown where there are more."""
    found = select(AssetModel.name).where(condition, AssetModel.active.has())
    return list(session.scalars(found.order_by(AssetModel.name).limit(MAX_TOPICS + 1)))


def _asset_refs(session: Session, reference: Any, asset: str) -> list[Any]:
    """Read the references of a kind to an asset."""
    found = select(reference).join(AssetModel, AssetModel.id == reference.asset_id)
    return list(session.scalars(found.where(AssetModel.name == asset).limit(MAX_DAGS)))


def _kept(session: Session, asset: str, key: str) -> Any:
    """Read what the state store of an asset has under a key; None for nothing."""
    asset_id = session.scalar(select(AssetModel.id).where(AssetModel.name == asset))
    if asset_id is None:
        return None
    text = get_state_backend().get(AssetScope(asset_id=asset_id), key, session=session)
    return None if text is None else json.loads(text)


# -- plans and runs -------------------------------------------------------------------------


def planned_of(session: Session, pipeline: Pipeline) -> Planned | None:
    """Read the newest plans, with the runs of their ranges; None where nothing is planned.

    Raises:
        CorruptDataError: a plan is damaged.
    """
    found = _plans(session, pipeline.ranges, MAX_PLANS + MAX_EVENTS)
    plans: list[StoredPlan] = []
    count = 0
    for each in found[:MAX_PLANS]:
        count += len(each.ledger.ranges)
        if plans and count > MAX_RANGES:
            break
        plans.append(each)
    ledger = newest(each.ledger for each in plans)
    if ledger is None:
        return None
    own = [each for each in reversed(plans) if each.ledger.incarnation == ledger.incarnation]
    keys = [range_key(each) for plan in own for each in plan.ledger.ranges]
    return _with_runs(session, pipeline, Planned(ledger, own, len(plans) < len(found)), keys)


def planned_range(session: Session, pipeline: Pipeline, offsets: OffsetRange) -> Planned | None:
    """Read the plan of one range, with its runs; None where no plan has it that was looked at.

    Raises:
        CorruptDataError: a plan is damaged.
    """
    for plan in _plans(session, pipeline.ranges, MAX_LOOKED):
        if offsets in plan.ledger.ranges:
            planned = Planned(plan.ledger, [plan], older=True)
            return _with_runs(session, pipeline, planned, [range_key(offsets)])
    return None


def range_with(
    session: Session, pipeline: Pipeline, partition: int, offset: int
) -> OffsetRange | None:
    """Find the range in which an offset was planned; None where no plan has it.

    Plans of a topic of that name that was deleted before are passed over.

    Raises:
        CorruptDataError: a plan is damaged.
    """
    plans = _plans(session, pipeline.ranges, MAX_LOOKED)
    last = newest(each.ledger for each in plans)
    for plan in plans:
        for each in plan.ledger.ranges:
            is_in = each.partition == partition and each.start <= offset < each.end
            if is_in and last is not None and each.incarnation == last.incarnation:
                return each
    return None


def _plans(session: Session, ranges: str, most: int) -> list[StoredPlan]:
    """Read so many plans, the newest first."""
    events = _plan_events(session, ranges, most)
    return [StoredPlan(event.timestamp, ledger) for event, ledger in events]


def _plan_events(session: Session, ranges: str, most: int) -> Iterator[tuple[AssetEvent, Ledger]]:
    """Read events of a plan, the newest first; those that a person created carry no ledger."""
    events = (
        select(AssetEvent)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(AssetModel.name == ranges + PLAN_SUFFIX)
        .order_by(AssetEvent.timestamp.desc())
    )
    for event in session.scalars(events.limit(most)):
        ledger = ledger_of(event.extra)
        if ledger is not None:
            yield event, ledger


def _with_runs(
    session: Session, pipeline: Pipeline, planned: Planned, keys: Sequence[str]
) -> Planned:
    since = planned.plans[0].at - CLOCKS_APART  # a scheduler makes the runs, by its own clock
    runs: dict[str, list[Run]] = {}
    others: dict[str, list[Run]] = {}
    for key, run in _runs(session, pipeline, keys, since):
        is_own = pipeline.own_dag in ("", run.dag_id)
        (runs if is_own else others).setdefault(key, []).append(run)
    return planned._replace(
        runs=runs,
        others=others,
        done=frozenset(_done(session, pipeline, keys, since)),
    )


def _runs(
    session: Session, pipeline: Pipeline, keys: Sequence[str], since: datetime
) -> Iterator[tuple[str, Run]]:
    """Read the runs of ranges, the oldest first."""
    runs = (
        select(DagRun.partition_key, DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.run_after)
        .where(
            DagRun.dag_id.in_(pipeline.process_dags),
            DagRun.partition_key.in_(keys),
            DagRun.run_after >= since,
        )
        .order_by(DagRun.id)
    )
    for key, dag_id, run_id, state, at in session.execute(runs.limit(MAX_RUNS)):
        yield key, Run(dag_id, run_id, str(state), at)


def _done(
    session: Session, pipeline: Pipeline, keys: Sequence[str], since: datetime
) -> Iterator[str]:
    """Read the keys of which a task of the DAG that processes has said so, or one that has compared
    a manifest, as that of a backfill. An event that a person has made says nothing.
    """
    events = (
        select(AssetEvent.partition_key, AssetEvent.source_dag_id, AssetEvent.extra)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(
            AssetModel.name.in_(pipeline.done),
            AssetEvent.partition_key.in_(keys),
            AssetEvent.timestamp >= since,
        )
    )
    for key, dag_id, extra in session.execute(events.limit(MAX_RUNS)):
        if dag_id and (pipeline.own_dag in ("", dag_id) or INCARNATION_KEY in (extra or {})):
            yield key


def manifests_of(session: Session, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read what tasks of a run have returned with a manifest, by their ids."""
    returned = select(XComModel).where(
        XComModel.dag_id == run.dag_id, XComModel.run_id == run.run_id, XComModel.key == RETURNED
    )
    for row in session.scalars(returned.limit(MAX_RETURNED)):
        value = XComModel.deserialize_value(row)
        if isinstance(value, dict) and "manifest" in value:
            yield row.task_id, value


# -- audits ---------------------------------------------------------------------------------


def audits_of(session: Session, topic: str, may_read: Callable[[str], bool]) -> Audits | None:
    """Read what was audited of a topic by the DAGs that one may read; None without any.

    Raises:
        CorruptDataError: the record of what was audited makes no sense.
    """
    asset = AUDITED_PREFIX + topic
    found = _asset_refs(session, TaskInletAssetReference, asset)
    tasks = [(each.dag_id, each.task_id) for each in found if may_read(each.dag_id)]
    if not tasks:
        return None
    store = SimpleNamespace(get=partial(_kept, session, asset))  # as a task has it
    arguments = _last_arguments(session, {dag_id for dag_id, _ in tasks})
    results: list[AuditResult] = []
    for task in tasks:
        consumed = bool(arguments.get(task, {}).get("settled_for"))
        results += (AuditResult(run, consumed, value) for run, value in _results(session, *task))
    return Audits(results, AuditedWindows(store, "audited").read())


def _results(session: Session, dag_id: str, task_id: str) -> Iterator[tuple[Run, dict[str, Any]]]:
    # By when they were stored: a backfill has the times of the interval that it audits again.
    returned = (
        select(XComModel, DagRun.state)
        .join(DagRun, DagRun.id == XComModel.dag_run_id)
        .where(XComModel.dag_id == dag_id, XComModel.task_id == task_id, XComModel.key == RETURNED)
        .order_by(XComModel.timestamp.desc())
        .limit(MAX_RESULTS)
    )
    for xcom, state in session.execute(returned):
        value = XComModel.deserialize_value(xcom)
        if isinstance(value, dict):
            yield Run(dag_id, xcom.run_id, str(state), xcom.timestamp), value
