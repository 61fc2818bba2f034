"""Which topics there are, and who plans, processes and audits them, by Airflow's database.

None of it is configured once more: the event of a plan says which DAG has emitted it, and Airflow
which DAGs are scheduled on its ranges, which assets their tasks emit, and what their last arguments
were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.asset import (
    AssetModel,
    DagScheduleAssetReference,
    TaskInletAssetReference,
    TaskOutletAssetReference,
)
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.sdk import Asset
from sqlalchemy import select

from airflow_provider_memq.ledger import ledger_of
from airflow_provider_memq.missed import MARK
from airflow_provider_memq.plugins.events import AssetState, StoredEvents
from airflow_provider_memq.plugins.facts import Pipeline
from airflow_provider_memq.range_assets import audited_asset, plan_asset, processed_asset
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from sqlalchemy.orm import Session

MAX_TOPICS = 200
MAX_DAGS = 10  # of one kind, for one topic
MAX_TASKS = 50  # of them
MAX_EVENTS = 20  # of an asset, of which one is a plan if it is the asset of one
PLAN_SUFFIX = plan_asset(Asset(name="x", uri="x://x")).name.removeprefix("x")
AUDITED_PREFIX = audited_asset("x").name.removesuffix("x")


class Source(NamedTuple):
    """A topic that is planned or audited.

    Attributes:
        topic: the topic.
        ranges: name of the asset of its ranges; empty where nobody plans.
        dags: the one that has planned last, or else those that audit.
        planned_at: when; None where nobody plans.
        trouble: why this, or more of them, could not be told; empty otherwise.
    """

    topic: str
    ranges: str = ""
    dags: tuple[str, ...] = ()
    planned_at: datetime | None = None
    trouble: str = ""


def sources(session: Session) -> list[Source]:
    """The topics that are planned or audited, sorted by name; the first `MAX_TOPICS` of each.

    That there are more is a `trouble` of its own.
    """
    found = []
    plans = _asset_names(session, AssetModel.name.endswith(PLAN_SUFFIX, autoescape=True))
    audited = _asset_names(session, AssetModel.name.startswith(AUDITED_PREFIX, autoescape=True))
    for names, what in ((plans, "planned"), (audited, "audited")):
        if len(names) > MAX_TOPICS:
            trouble = (
                f"more than {MAX_TOPICS} topics are {what}: the first by name are listed, and the "
                "pages of the others are at topics/NAME/ too"
            )
            found.append(Source("", trouble=trouble))
    for name in plans[:MAX_TOPICS]:
        ranges = name.removesuffix(PLAN_SUFFIX)
        try:
            source = source_of(session, ranges)
        except MemqError as exc:
            source = Source(ranges, ranges, trouble=f"asset {name!r}: {exc}")
        found += [source] if source else []
    planned = {each.topic for each in found}
    for name in audited[:MAX_TOPICS]:
        topic = name.removeprefix(AUDITED_PREFIX)
        if topic not in planned:
            tasks = asset_refs(session, TaskInletAssetReference, name)
            found.append(Source(topic, dags=tuple({each.dag_id for each in tasks})))
    return sorted(found, key=lambda each: (each.topic, each.ranges))


def source_of(session: Session, ranges: str) -> Source | None:
    """The topic that is planned to an asset of ranges; None where nothing was.

    Raises:
        CorruptDataError: its last plan is damaged.
    """
    for event in StoredEvents(session)[plan_of(ranges)].ascending(False).limit(MAX_EVENTS):
        ledger = ledger_of(event.extra)
        if ledger is not None:
            return Source(ledger.topic, ranges, (event.source_dag_id or "",), event.timestamp)
    return None


def pipeline_of(session: Session, source: Source) -> Pipeline:
    """Who processes the ranges of a planned topic, and how."""
    scheduled = asset_refs(session, DagScheduleAssetReference, source.ranges)
    process_dags = tuple(sorted({each.dag_id for each in scheduled})[:MAX_DAGS])
    tasks = _tasks(session, process_dags)
    # A task may emit to other assets too, before a gate: what counts is what a commit waits for.
    kept: Any = AssetState(session, plan_of(source.ranges).name).get(MARK)
    own = tuple(
        each for each in process_dags if isinstance(kept, dict) and kept.get("dag_id") == each
    )
    awaited = (
        select(TaskInletAssetReference.asset_id)
        .where(TaskInletAssetReference.dag_id.in_(own or process_dags))
        .scalar_subquery()
    )
    done = session.scalars(
        select(AssetModel.name)
        .join(TaskOutletAssetReference, TaskOutletAssetReference.asset_id == AssetModel.id)
        .where(
            TaskOutletAssetReference.dag_id.in_(own or process_dags),
            AssetModel.name != source.ranges,
            AssetModel.name.startswith(processed_asset(source.topic, "").name, autoescape=True)
            | AssetModel.id.in_(awaited),
        )
        .distinct()
        .limit(MAX_DAGS)
    )
    fields = [arguments_of(session, dag_id, task_id) for dag_id, task_id in tasks]
    planners = asset_refs(session, TaskOutletAssetReference, plan_of(source.ranges).name)
    fields += [arguments_of(session, each.dag_id, each.task_id) for each in planners[:MAX_DAGS]]
    of_topic = [each for each in fields if each.get("topic") == source.topic]
    return Pipeline(
        source.topic,
        source.ranges,
        source.dags[0],
        process_dags,
        tuple(done),
        _first(of_topic, "memq_conn_id"),
        _first(of_topic, "group"),
        tuple(dict.fromkeys(each["output_dir"] for each in of_topic if _is_table(each))),
        _first(of_topic, "missed_after"),
        own_dag="".join(own),
    )


def _is_table(arguments: dict[str, Any]) -> bool:
    """Whether a task puts ranges into a table: its output is a name and no folder."""
    output = str(arguments.get("output_dir") or "")
    return "." in output and "/" not in output


def _first(arguments: Iterable[dict[str, Any]], name: str) -> str:
    return next((str(each[name]) for each in arguments if each.get(name)), "")


def arguments_of(session: Session, dag_id: str, task_id: str) -> dict[str, Any]:
    """The arguments that a task had last, as far as they are templates; without any secret."""
    fields = session.scalar(
        select(RenderedTaskInstanceFields.rendered_fields)
        .join(
            DagRun,
            (DagRun.dag_id == RenderedTaskInstanceFields.dag_id)
            & (DagRun.run_id == RenderedTaskInstanceFields.run_id),
        )
        .where(
            RenderedTaskInstanceFields.dag_id == dag_id,
            RenderedTaskInstanceFields.task_id == task_id,
        )
        .order_by(DagRun.id.desc())
        .limit(1)
    )
    return dict(fields or {})


def _tasks(session: Session, dag_ids: Collection[str]) -> list[tuple[str, str]]:
    """The tasks of DAGs that have been given arguments, by DAG and task id."""
    found = select(RenderedTaskInstanceFields.dag_id, RenderedTaskInstanceFields.task_id)
    some = found.where(RenderedTaskInstanceFields.dag_id.in_(dag_ids)).distinct().limit(MAX_TASKS)
    return [(row.dag_id, row.task_id) for row in session.execute(some)]


def _asset_names(session: Session, condition: Any) -> list[str]:
    """The first names of assets, and one more than is shown where there are more."""
    found = select(AssetModel.name).where(condition, AssetModel.active.has())
    return list(session.scalars(found.order_by(AssetModel.name).limit(MAX_TOPICS + 1)))


def asset_refs(session: Session, reference: Any, asset: str) -> list[Any]:
    """The references of a kind to an asset."""
    found = select(reference).join(AssetModel, AssetModel.id == reference.asset_id)
    return list(session.scalars(found.where(AssetModel.name == asset).limit(MAX_DAGS)))


def plan_of(ranges: str) -> Asset:
    """The asset of the plan of some ranges, by the name of theirs."""
    return plan_asset(Asset(name=ranges, uri=f"x://{ranges}"))
