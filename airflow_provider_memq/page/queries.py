"""Read what Airflow's database knows of a topic; and ask brokers and tables.

Nothing is configured for the page. The assets of a topic have the names of `range_assets`. The
event of a plan says which DAG emitted it, and Airflow which DAGs are scheduled on the ranges, which
assets their tasks emit, and what their last arguments were. Every query has a limit of rows.

Brokers and tables may fail or hang. So all are asked at once, by threads, and a page waits for them
`BUDGET_S` together: it shows what is known by then, and a line about the rest. A thread that hangs
cannot be ended, and does not hold back the end of the server: there are `MAX_THREADS` of them, and
while all hang nothing else is asked.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.asset import AssetEvent, AssetModel, TaskOutletAssetReference
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from sqlalchemy import select, tuple_

from airflow_provider_memq import range_assets
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.planning.ledger import CLOCKS_APART, ledger_of, newest, settled
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.planning.topics import read_state
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from airflow_provider_memq.values import duration_ms_or
from memq.core.units import iso_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from datetime import datetime

    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from airflow_provider_memq.planning.ledger import PlanLedger
    from memq.client.lag import Lag
    from memq.core.ranges import Interval, OffsetRange

MAX_TOPICS = 400  # assets of plans and audits
MAX_PLANS = 200  # of the page of a topic, or as many as have so many ranges:
MAX_RANGES = 1_000
MAX_LOOKED = 2_000  # plans in which one range is searched
MAX_RESULTS = 150  # of tasks that audit: two days of hours, and some on demand
MAX_ARGUMENTS = 1_000  # of tasks; Airflow keeps those of the last thirty runs of each
MAX_ROWS = 5_000  # runs of the ranges of a page, and events about them
MISSED_AFTER_MS = 300_000  # the planner's default
BUDGET_S = 3.0
MAX_THREADS = 16
MAX_TEXT = 500  # characters of an error in a page

RUNS, RESULTS = DagAccessEntity.RUN, DagAccessEntity.XCOM
AUDITED = range_assets.audited_asset("").name
RANGES = range_assets.ranges_asset("").name
PLAN = range_assets.plan_asset(range_assets.ranges_asset("")).name.removeprefix(RANGES)

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET = re.compile(
    r"((?:password|passwd|secret|token|credential|access[-_.]?key)[\w.-]*['\"]?\s*[=:]\s*)[^\s,;&]+",
    re.IGNORECASE,
)
_free_threads = BoundedSemaphore(MAX_THREADS)


class PageReader(NamedTuple):
    """The reader, and the database: a user sees what Airflow's own pages would show him."""

    session: Session
    user: Any

    def may_read(self, dag_id: str, entity: DagAccessEntity = RUNS) -> bool:
        """Ask Airflow whether the user may read the runs of a DAG, or what its tasks returned."""
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        return get_auth_manager().is_authorized_dag(
            method="GET", access_entity=entity, details=details, user=self.user
        )


@dataclass(frozen=True)
class Run:
    """A DAG run.

    Attributes:
        dag_id: of the DAG.
        run_id: of the run.
        state: of the run: "queued", "running", "success" or "failed".
        at: when it was to run; of a run with a result, when that was stored.
    """

    dag_id: str
    run_id: str
    state: str
    at: datetime


class Pipeline(NamedTuple):
    """The tasks and assets of a planned topic, as Airflow knows them.

    Attributes:
        plan: the asset of plans.
        plan_dag: DAG that plans.
        process_dags: of the DAGs that are scheduled on the ranges the one that the planner names,
            or all where it names none.
        done: ids of the assets of processed ranges.
        conn_id: connection to the brokers.
        group: the consumer group that follows; empty where no run says.
        tables: tables that ranges are put into.
        missed_after_ms: how long after its plan a range has its run, or gets none.
    """

    plan: AssetModel
    plan_dag: str
    process_dags: Collection[str]
    done: Collection[int] = ()
    conn_id: str = DEFAULT_CONN_ID
    group: str = ""
    tables: Collection[str] = ()
    missed_after_ms: int = MISSED_AFTER_MS


class Planned(NamedTuple):
    """The newest plans of a topic, and what became of their ranges.

    Attributes:
        pipeline: who plans and processes.
        ledger: how far is planned.
        since: when the first of these plans was made.
        planned_at: when each of their ranges was planned, the oldest first.
        runs: of each range by its key, the oldest first.
        done: keys of the ranges that a task has said to be processed.
    """

    pipeline: Pipeline
    ledger: PlanLedger
    since: datetime
    planned_at: Mapping[OffsetRange, datetime]
    runs: Mapping[str, list[Run]] = {}
    done: Collection[str] = ()

    def processed(self, stored: Mapping[int, int]) -> dict[int, int]:
        """Up to where nothing is left to process, by read partition.

        Where no group says what was processed before these plans, that is taken for processed: the
        page says since when it tells what is missing.
        """
        first: dict[int, int] = {}
        for each in self.planned_at:
            first.setdefault(each.partition, each.start)
        done = (each for each in self.planned_at if range_key(each) in self.done)
        return settled(self.ledger, first | dict(stored), done)


# -- topics ---------------------------------------------------------------------------------


def topics_of(reader: PageReader) -> list[dict[str, Any]]:
    """Find the topics that are planned or audited, by the names of their assets.

    Each has the `dags` that plan or else audit, and the time when it was `planned_at`, or None.
    """
    name = AssetModel.name
    is_plan = name.startswith(RANGES, autoescape=True) & name.endswith(PLAN, autoescape=True)
    is_audited = name.startswith(AUDITED, autoescape=True)
    assets = select(AssetModel).where(is_plan | is_audited, AssetModel.active.has())
    found: dict[str, dict[str, Any]] = {}
    for asset in reader.session.scalars(assets.order_by(name).limit(MAX_TOPICS)):
        topic = asset.name.removeprefix(AUDITED)
        dags, at = sorted({each.dag_id for each in asset.consuming_tasks}), None
        if topic == asset.name:
            topic = topic.removeprefix(RANGES).removesuffix(PLAN)
            event = reader.session.scalar(_events_of(asset).limit(1))
            dags, at = ([event.source_dag_id], event.timestamp) if event else ([], None)
        if any(map(reader.may_read, dags)):
            found[topic] = {"topic": topic, "planned_at": at, "dags": dags}  # plans come last
    return sorted(found.values(), key=lambda each: each["topic"])


def _pipeline(reader: PageReader, topic: str) -> Pipeline | None:
    """Find who plans and processes a topic; None where nobody does, as far as the user may see."""
    session = reader.session
    ranges, plan = _asset(session, RANGES + topic), _asset(session, RANGES + topic + PLAN)
    last = session.scalar(_events_of(plan).limit(1)) if plan else None
    if not (ranges and plan and last):
        return None
    planners = {(each.dag_id, each.task_id) for each in plan.producing_tasks}
    scheduled = {each.dag_id for each in ranges.scheduled_dags}
    given = _last_arguments(session, {*scheduled, *dict(planners)})
    named = {given.get(each, {}).get("process_dag_id") for each in planners}
    process_dags = (scheduled & named) or scheduled
    if not all(map(reader.may_read, {last.source_dag_id, *process_dags})):
        return None
    of_topic = [
        each
        for task, each in given.items()
        if each.get("topic") == topic and (task in planners or task[0] in process_dags)
    ]

    is_done = AssetModel.name.startswith(
        range_assets.processed_asset(topic, "").name, autoescape=True
    )
    emitted = AssetModel.producing_tasks.any(TaskOutletAssetReference.dag_id.in_(process_dags))
    return Pipeline(
        plan=plan,
        plan_dag=last.source_dag_id,
        process_dags=sorted(process_dags),
        done=session.scalars(select(AssetModel.id).where(is_done, emitted)).all(),
        **_settings_in(of_topic),
    )


def _settings_in(arguments: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Find connection, group, tables and the wait for runs in what some tasks were given."""

    def first(name: str) -> str:
        return next((str(each[name]) for each in arguments if each.get(name)), "")

    outputs = {str(each.get("output_dir") or "") for each in arguments}
    return {
        "conn_id": first("memq_conn_id") or DEFAULT_CONN_ID,
        "group": first("group"),
        "tables": sorted(each for each in outputs if "." in each and "/" not in each),  # no folders
        "missed_after_ms": duration_ms_or(MISSED_AFTER_MS, first("missed_after")),
    }


def _last_arguments(
    session: Session, dag_ids: Collection[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the arguments that tasks had last, by DAG and task id; templates, without any secret."""
    fields = RenderedTaskInstanceFields
    rows = (
        select(fields.dag_id, fields.task_id, fields.rendered_fields)
        .join(DagRun, (DagRun.dag_id == fields.dag_id) & (DagRun.run_id == fields.run_id))
        .where(fields.dag_id.in_(dag_ids))
        .order_by(DagRun.id.desc())
    )
    newest_first = session.execute(rows.limit(MAX_ARGUMENTS)).all()
    return {(dag_id, task_id): given or {} for dag_id, task_id, given in reversed(newest_first)}


def _asset(session: Session, name: str) -> AssetModel | None:
    found = select(AssetModel).where(AssetModel.name == name, AssetModel.active.has())
    return session.scalar(found)


def _events_of(asset: AssetModel) -> Select[Any]:
    """Select the events that tasks emitted, the newest first; those of a person carry no plan."""
    of_tasks = AssetEvent.source_dag_id.is_not(None)
    events = select(AssetEvent).where(AssetEvent.asset_id == asset.id, of_tasks)
    return events.order_by(AssetEvent.timestamp.desc())


# -- plans and runs -------------------------------------------------------------------------


def planned_of(
    reader: PageReader, topic: str, is_wanted: Callable[[OffsetRange], bool] | None = None
) -> Planned | None:
    """Read the newest plans of a topic, or that of one range, with what became of their ranges.

    Args:
        reader: who reads.
        topic: the topic.
        is_wanted: tells the range.

    Returns:
        What is planned; None where nothing is, as far as the user may see.

    Raises:
        CorruptDataError: a plan is damaged.
        ConfigError: the planner was told to wait for runs for what is no time.
    """
    pipeline = _pipeline(reader, topic)
    if pipeline is None:
        return None
    ledgers = []
    planned_at: dict[OffsetRange, datetime] = {}  # the newest first
    events = _events_of(pipeline.plan).limit(MAX_LOOKED if is_wanted else MAX_PLANS)
    for event in reader.session.scalars(events):
        if ledger := ledger_of(event.extra):
            ledgers.append(ledger)
            ranges = filter(is_wanted or bool, reversed(ledger.ranges))
            planned_at |= dict.fromkeys(ranges, event.timestamp)
        if len(planned_at) >= (1 if is_wanted else MAX_RANGES):
            break
    last = newest(ledgers)
    own = [each for each in reversed(planned_at) if last and each.topic_id == last.topic_id]
    if last is None or (is_wanted and not own):
        return None
    of_ranges = {each: planned_at[each] for each in own}
    return _with_runs(reader.session, Planned(pipeline, last, event.timestamp, of_ranges))


def _with_runs(session: Session, planned: Planned) -> Planned:
    """Read the runs of ranges, and which of them a task has said to be processed."""
    keys = [range_key(each) for each in planned.planned_at]
    since = planned.since - CLOCKS_APART  # a scheduler makes the runs, by its own clock
    process_dags = planned.pipeline.process_dags
    made = select(DagRun).where(
        DagRun.dag_id.in_(process_dags),
        DagRun.partition_key.in_(keys),
        DagRun.run_after >= since,
    )
    runs: dict[Any, list[Run]] = defaultdict(list)
    for run in session.scalars(made.order_by(DagRun.id).limit(MAX_ROWS)):
        runs[run.partition_key].append(_run(run, run.run_after))
    said = select(AssetEvent.partition_key).where(
        AssetEvent.asset_id.in_(planned.pipeline.done),
        AssetEvent.partition_key.in_(keys),
        AssetEvent.source_dag_id.is_not(None),  # by a task, and not a person
        AssetEvent.timestamp >= since,
    )
    return planned._replace(runs=runs, done={*session.scalars(said.limit(MAX_ROWS))})


def _run(run: DagRun, at: datetime) -> Run:
    return Run(run.dag_id, run.run_id, str(run.state), at)


# -- results --------------------------------------------------------------------------------


def manifests_of(reader: PageReader, runs: Collection[Run]) -> list[dict[str, Any]]:
    """Read what tasks of runs returned with a manifest: the `run`, the `task`, `fields` as text."""
    ids = [(each.dag_id, each.run_id) for each in runs if reader.may_read(each.dag_id, RESULTS)]
    of_runs = tuple_(XComModel.dag_id, XComModel.run_id).in_(ids)
    return [
        {"run": run, "task": task, "fields": {str(k): in_a_line(v) for k, v in value.items()}}
        for run, task, value in _returned(reader.session, of_runs)
        if "manifest" in value
    ]


def audits_of(reader: PageReader, topic: str) -> dict[str, list[tuple[Run, Any]]]:
    """Read the results of the tasks that audit a topic, the newest first, each with its run.

    Returns:
        Those about what was "stored", and about what was "consumed"; nothing where the user may see
        no audit.
    """
    asset = _asset(reader.session, AUDITED + topic)
    every = asset.consuming_tasks if asset else ()
    tasks = [(each.dag_id, each.task_id) for each in every if reader.may_read(each.dag_id, RESULTS)]
    if not tasks:
        return {}
    arguments = _last_arguments(reader.session, dict(tasks).keys())
    results: dict[str, list[tuple[Run, Any]]] = {"consumed": [], "stored": []}
    of_tasks = tuple_(XComModel.dag_id, XComModel.task_id).in_(tasks)
    for run, task, value in _returned(reader.session, of_tasks):
        is_consumed = arguments.get((run.dag_id, task), {}).get("settled_for")
        results["consumed" if is_consumed else "stored"].append((run, value))
    return results


def _returned(session: Session, condition: Any) -> Iterator[tuple[Run, str, dict[str, Any]]]:
    """Read what tasks returned, the newest first.

    By when it was stored, for a backfill has the times of the interval that it audits again.
    """
    rows = (
        select(XComModel, DagRun)
        .join(DagRun, DagRun.id == XComModel.dag_run_id)
        .where(XComModel.key == "return_value", condition)
        .order_by(XComModel.timestamp.desc())
    )
    for xcom, run in session.execute(rows.limit(MAX_RESULTS)):
        value = XComModel.deserialize_value(xcom)
        if isinstance(value, dict):
            yield _run(run, xcom.timestamp), xcom.task_id, value


# -- brokers and tables ---------------------------------------------------------------------


class Brokers(NamedTuple):
    """What the brokers say of a topic, by read partition; nothing when they are away.

    Attributes:
        starts: first offset retained.
        ends: one past the last offset published.
        stored: next offset of the group that follows.
        lag: what is published and not processed.
    """

    starts: Mapping[int, int] = {}
    ends: Mapping[int, int] = {}
    stored: Mapping[int, int] = {}
    lag: Mapping[int, Lag] = {}


class TableView(NamedTuple):
    """What a table has of one topic id.

    Attributes:
        name: of the table.
        held: offsets that are in, by read partition.
        snapshots: by the range they added, those that have not expired: table, id as text (for
            JavaScript counts to 2**53), time of the commit, records of the range, and job.
    """

    name: str
    held: dict[int, list[Interval]]
    snapshots: dict[OffsetRange, dict[str, Any]]


def ask_outside(planned: Planned) -> tuple[Brokers, list[TableView], list[str]]:
    """Ask the brokers, and read the tables; and say why one could not be, a line each."""
    questions: dict[str, Callable[[], Any]] = {"the brokers": partial(ask_brokers, planned)}
    for name in planned.pipeline.tables:
        questions[f"table {name}"] = partial(read_table, name, planned.ledger)
    answers, troubles = ask(questions)
    brokers = answers.pop("the brokers", Brokers())
    return brokers, list(answers.values()), troubles


def ask(questions: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], list[str]]:
    """Ask several things at once; and say why one has no answer."""
    answers: dict[str, Any] = {}
    errors: dict[str, str] = {}
    deadline_s = time.monotonic() + BUDGET_S
    threads = []
    for each in questions.items():
        if _free_threads.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            threads.append(Thread(target=_ask_one, args=(each, answers, errors), daemon=True))
            threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    answers, late = dict(answers), f"no answer within {BUDGET_S:g} s"
    troubles = [f"{what}: {errors.get(what, late)}" for what in questions if what not in answers]
    return answers, troubles


def _ask_one(
    question: tuple[str, Callable[[], Any]], answers: dict[str, Any], errors: dict[str, str]
) -> None:
    what, ask_it = question
    try:
        answers[what] = ask_it()
    except Exception as exc:  # noqa: BLE001 - a line of the page
        errors[what] = f"{type(exc).__name__}: {in_a_line(exc)}"
    finally:
        _free_threads.release()


def ask_brokers(planned: Planned) -> Brokers:
    """Ask the brokers of the topic that is planned.

    Raises:
        MemqError: they do not answer, or there is no such topic, or it was recreated.
        AirflowNotFoundException: there is no such connection.
    """
    topic, group = planned.ledger.topic, planned.pipeline.group
    hook = MemqHook(planned.pipeline.conn_id)
    with hook.topic(topic, planned.ledger.topic_id) as client:
        state = read_state(topic, client)
        stored = client.committed(group) if group else {}
        reached = {**state.starts, **planned.processed(stored)}
        lag = client.lag({partition: reached[partition] for partition in state.ends})
        return Brokers(state.starts, state.ends, stored, lag)


def read_table(name: str, ledger: PlanLedger) -> TableView:
    """Read what a table has of a topic.

    Raises:
        ConfigError: there is no such table or catalog, or no pyiceberg.
        CorruptDataError: its ledger cannot be told.
        StorageError: the catalog or the storage failed.
    """
    from memq.tables.iceberg import open_table  # noqa: PLC0415 - an extra

    table = open_table(name)
    now = table.look()
    lives = now.ledger.topics.get(ledger.topic, {}).get(ledger.topic_id, {})
    held = {partition: list(each.intervals) for partition, each in lives.items()}
    snapshots = {
        each.range.offsets: {
            "table": name,
            "snapshot_id": str(each.snapshot_id),
            "committed": iso_ms(each.committed_ms),
            "records": each.range.records,
            "job": each.job,
        }
        for each in table.ranges(now.base)
        if each.range.topic == ledger.topic
    }
    return TableView(name, held, snapshots)


def in_a_line(error: object) -> str:
    """Put a text from elsewhere in one line, without credentials that are known by their form."""
    text = " ".join(str(error).split())
    return _SECRET.sub(r"\1***", _USER_INFO.sub("***", text))[:MAX_TEXT]
