"""Each page from the facts: which are gathered, and for whom. A page is data, and its JSON.

A user sees what Airflow's own pages would show him, by Airflow's auth manager.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import HTTPException, status

from airflow_provider_memq.planning.ledger import processed_ahead
from airflow_provider_memq.planning.ranges import parse_key, range_key
from airflow_provider_memq.plugins import queries
from airflow_provider_memq.plugins.hours import Audit, audit_of
from airflow_provider_memq.plugins.outside import in_a_line, look_outside
from airflow_provider_memq.plugins.progress import Missing, Partition, Progress, Range
from memq.core.ranges import offsets_in_words
from memq.core.units import counted
from memq.errors import ConfigError, MemqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from sqlalchemy.orm import Session

    from airflow_provider_memq.plugins.queries import Pipeline, Planned, Run, Source

MAX_SHOWN = 50  # ranges of a page, and what is missing
MAX_FIELDS = 50  # of what a task has returned
RUNS, RESULTS = DagAccessEntity.RUN, DagAccessEntity.XCOM


@dataclass(frozen=True, kw_only=True)
class TopicsPage:
    """The list of topics.

    Attributes:
        topics: that are planned or audited.
        notes: what could not be told, a line each.
    """

    topics: list[Source]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class TopicPage:
    """The page of a topic.

    Attributes:
        topic: the topic.
        at: when it was looked at.
        notes: what could not be seen, a line each.
        audit: verdicts by hour; None where nobody audits.
        incarnation: of the topic that is planned; empty where nobody plans, as all that follows.
        dags: that plan and process.
        tables: that ranges are put into.
        removed: offsets that retention removed before they were planned.
        partitions: how far each is.
        missing: what is not where it should be; the first of `missing_count`.
        since: missing is told of what was planned since then; None for all.
        ranges: the newest of `ranges_count`, the newest first.
    """

    topic: str
    at: datetime
    notes: list[str]
    audit: Audit | None
    incarnation: str = ""
    dags: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    removed: int = 0
    partitions: list[Partition] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    missing_count: int = 0
    since: datetime | None = None
    ranges: list[Range] = field(default_factory=list)
    ranges_count: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run has returned: what the manifest of its range says, without names of files.

    Attributes:
        run: the run.
        task: that returned it.
        fields: it, as text; "manifest" is the path.
    """

    run: Run
    task: str
    fields: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RangePage:
    """The page of a range.

    Attributes:
        topic: the topic.
        range: the range.
        results: what its runs returned, the oldest first.
        tables: that ranges are put into.
        notes: what could not be seen, a line each.
    """

    topic: str
    range: Range
    results: list[Result]
    tables: tuple[str, ...]
    notes: list[str]


def topics_page(user: BaseUser) -> TopicsPage:
    """Gather the topics that a user may see."""
    with create_session(scoped=False) as session:
        found, notes = queries.sources(session)
    topics = [each for each in found if any(_may_read(user, dag_id) for dag_id in each.dags)]
    return TopicsPage(topics=topics, notes=[in_a_line(each) for each in notes])


def topic_page(user: BaseUser, topic: str, ranges: str) -> TopicPage:
    """Gather how far a topic is; `ranges` names the asset of its ranges, where it is its own."""
    now = datetime.now(UTC)
    notes: list[str] = []
    with create_session(scoped=False) as session:
        pipeline = _pipeline(session, user, topic, ranges)
        planned = queries.planned_of(session, pipeline) if pipeline else None
        audit = _audit(session, user, topic, now, notes)
    if pipeline is None and audit is None:
        raise _unknown(topic)
    page = TopicPage(topic=topic, at=now, notes=notes, audit=audit)
    if pipeline is None or planned is None:
        return page
    progress = _progress(pipeline, planned, notes, now)
    missing = progress.missing()
    return replace(
        page,
        incarnation=planned.ledger.incarnation,
        dags=(pipeline.plan_dag, *pipeline.process_dags),
        tables=pipeline.tables,
        removed=sum(each.size for each in planned.ledger.gaps),
        partitions=progress.partitions(),
        missing=missing[:MAX_SHOWN],
        missing_count=len(missing),
        since=planned.plans[0].at if planned.older else None,
        ranges=progress.newest(MAX_SHOWN),
        ranges_count=len(planned.planned_at),
    )


def range_page(user: BaseUser, topic: str, key: str, ranges: str) -> RangePage:
    """Gather a range of a topic, with its runs, its manifest and its snapshots."""
    try:
        offsets = parse_key(key)
    except ConfigError as exc:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(exc)) from exc
    notes: list[str] = []
    with create_session(scoped=False) as session:
        pipeline = _pipeline(session, user, topic, ranges)
        if pipeline is None:
            raise _unknown(topic)
        planned = queries.planned_range(session, pipeline, offsets)
        if planned is None:
            raise _not_planned(f"range {key}", topic)
        results = [
            Result(run=run, task=task, fields=_text_of(value))
            for run in (*planned.runs.get(key, ()), *planned.others.get(key, ()))
            if _may_read(user, run.dag_id, RESULTS)
            for task, value in queries.manifests_of(session, run)
        ]
    progress = _progress(pipeline, planned, notes, datetime.now(UTC))
    return RangePage(
        topic=topic,
        range=progress.range(offsets),
        results=results,
        tables=pipeline.tables,
        notes=notes,
    )


def find_range(user: BaseUser, topic: str, partition: int, offset: int, ranges: str) -> str:
    """Find the key of the range that an offset was planned in."""
    with create_session(scoped=False) as session:
        pipeline = _pipeline(session, user, topic, ranges)
        if pipeline is None:
            raise _unknown(topic)
        found = queries.range_with(session, pipeline, partition, offset)
    if found is None:
        words = f"partition {partition}, {offsets_in_words(offset, offset + 1)}"
        raise _not_planned(words, topic)
    return range_key(found)


# -- parts of them --------------------------------------------------------------------------


def _pipeline(session: Session, user: BaseUser, topic: str, ranges: str) -> Pipeline | None:
    """The pipeline of a topic, as far as the user may read it; None where there is none."""
    source = queries.source_of(session, ranges or queries.RANGES_PREFIX + topic)
    if source is None or source.topic != topic or not _may_read(user, source.dags[0]):
        return None
    pipeline = queries.pipeline_of(session, source)
    readable = tuple(each for each in pipeline.process_dags if _may_read(user, each))
    hidden = len(pipeline.process_dags) - len(readable)
    return pipeline._replace(process_dags=readable, hidden_dags=hidden)


def _may_read(user: BaseUser, dag_id: str, entity: DagAccessEntity = RUNS) -> bool:
    """Whether a user may read the runs of a DAG, or the results of its tasks."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="GET", access_entity=entity, details=details, user=user
    )


def _audit(
    session: Session, user: BaseUser, topic: str, now: datetime, notes: list[str]
) -> Audit | None:
    try:
        audits = queries.audits_of(session, topic, lambda dag: _may_read(user, dag, RESULTS))
    except MemqError as exc:
        notes.append(f"the audit: {in_a_line(exc)}")
        return None
    return audit_of(audits, now) if audits else None


def _progress(pipeline: Pipeline, planned: Planned, notes: list[str], now: datetime) -> Progress:
    """What became of the ranges, with what is told from outside."""
    brokers, tables = look_outside(pipeline, planned, notes)
    if pipeline.hidden_dags:
        notes.append(
            f"{counted(pipeline.hidden_dags, 'DAG')} that you may not read: runs of ranges are "
            "missing here"
        )
    if brokers and brokers.state.incarnation != planned.ledger.incarnation:
        notes.append(
            f"the topic was deleted and recreated: it is of incarnation "
            f"{brokers.state.incarnation}, and {planned.ledger.incarnation} is planned"
        )
        brokers = None  # what they say is about another topic
    if brokers and (ahead := processed_ahead(planned.ledger, brokers.stored, ())):
        notes.append(f"more is processed than Airflow knows to be planned: {ahead}")
    return Progress(pipeline, planned, brokers, tables, now)


def _text_of(value: Mapping[str, Any]) -> dict[str, str]:
    """What a task has returned, which may be anything, as text."""
    return {str(name): in_a_line(each) for name, each in list(value.items())[:MAX_FIELDS]}


def _unknown(topic: str) -> HTTPException:
    return HTTPException(
        status.HTTP_404_NOT_FOUND,
        f"nothing is planned or audited of topic {topic!r}, as far as you may see; the list of "
        "topics links to ranges that have a name of their own",
    )


def _not_planned(what: str, topic: str) -> HTTPException:
    return HTTPException(
        status.HTTP_404_NOT_FOUND,
        f"{what}: in none of the newest {queries.MAX_LOOKED} plans of topic {topic}",
    )
