"""Each page from the facts: which are gathered, for whom, and within which time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.utils.session import create_session
from fastapi import HTTPException, status

from airflow_provider_memq.ledger import processed_ahead
from airflow_provider_memq.plugins import outside, sources, stored
from airflow_provider_memq.plugins.access import RESULTS
from airflow_provider_memq.plugins.addresses import to_dag, to_range, to_run, to_task, to_topic
from airflow_provider_memq.plugins.events import MAX_LOOKED
from airflow_provider_memq.plugins.facts import Audits
from airflow_provider_memq.plugins.hours import VerdictView, audit_view
from airflow_provider_memq.plugins.looks import Looks, in_a_line
from airflow_provider_memq.plugins.progress import MISSED_AFTER, Progress, done_ranges
from airflow_provider_memq.plugins.view import (
    IndexView,
    RangePageView,
    ResultView,
    TopicRow,
    TopicView,
)
from airflow_provider_memq.range_assets import ranges_asset
from airflow_provider_memq.ranges import parse_key, range_key
from airflow_provider_memq.values import duration_ms_or
from memq.core.ranges import offsets_in_words
from memq.core.units import counted, iso_ms
from memq.errors import ConfigError, MemqError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_provider_memq.plugins.access import Access
    from airflow_provider_memq.plugins.facts import Brokers, Pipeline, Planned, Run
    from airflow_provider_memq.plugins.looks import Look
    from airflow_provider_memq.plugins.sources import Source
    from memq.core.ranges import OffsetRange

MAX_RANGES = 50  # of a page
MAX_MISSING = 50
MAX_FIELDS = 50  # of what a task has returned

_looks = Looks()


# -- topics ---------------------------------------------------------------------------------


def index_page(access: Access) -> IndexView:
    """The topics that a user may see."""
    rows, notes = [], []
    with create_session(scoped=False) as session:
        found = sources.sources(session)
    names = Counter(each.topic for each in found)
    for each in found:
        if each.trouble:
            notes.append(in_a_line(each.trouble))
        elif any(map(access.may_read, each.dags)):
            rows.append(_row(each, by_asset=names[each.topic] > 1))
    return IndexView(topics=rows, notes=notes)


def _row(source: Source, *, by_asset: bool) -> TopicRow:
    return TopicRow(
        topic=source.topic,
        ranges=source.ranges,
        href=to_topic(source.topic, ranges=source.ranges if by_asset else ""),
        planned=source.planned_at.isoformat(timespec="seconds") if source.planned_at else "",
        dags={each: to_dag(each) for each in source.dags},
    )


# -- a topic --------------------------------------------------------------------------------


def topic_page(
    access: Access, topic: str, ranges: str, before: datetime | None, skip: int
) -> TopicView:
    """How far a topic is.

    Args:
        access: of who asks.
        topic: the topic.
        ranges: name of the asset of its ranges, where several plan it; empty for the usual one.
        before: only plans before this time; None for all.
        skip: so many ranges of these, the newest ones.
    """
    now = datetime.now(UTC)
    notes: list[str] = []
    with create_session(scoped=False) as session:
        pipeline = _pipeline(session, access, topic, ranges)
        planned = stored.planned_of(session, pipeline, before) if pipeline else None
        audits = _audits(session, access, topic, notes)
    if pipeline is None and audits is None:
        raise _unknown(topic)
    audit = audit_view(audits, now, to_run) if audits else None
    if pipeline is None or planned is None:
        lost = audit.lost if audit else []
        return TopicView(topic=topic, at=_iso(now), notes=notes, lost=lost, audit=audit)
    progress, brokers = _progress(pipeline, planned, notes, now, ranges)
    missing = progress.missing()
    return TopicView(
        topic=topic,
        at=_iso(now),
        asset=ranges,
        incarnation=planned.ledger.incarnation,
        dags={each: to_dag(each) for each in (pipeline.plan_dag, *pipeline.process_dags)},
        tables=list(pipeline.tables),
        notes=notes,
        lost=[*(audit.lost if audit else ()), *_removed(planned)],
        stored_through=iso_ms(brokers.state.watermark_ms) if brokers else "",
        partitions=[] if before else progress.partitions(),
        missing=missing[:MAX_MISSING],
        more_missing=max(0, len(missing) - MAX_MISSING),
        since=_iso(planned.plans[0].at) if planned.plans and planned.older else "",
        until=_iso(before) if before else "",
        ranges=progress.ranges(MAX_RANGES, skip),
        older=_older(topic, ranges, planned, skip),
        audit=audit,
    )


def _removed(planned: Planned) -> list[VerdictView]:
    """What retention removed before it was planned, in one line."""
    count = sum(each.size for each in planned.ledger.gaps)
    what = f"{counted(count, 'offset')}: removed by retention before being planned"
    return [VerdictView(verdict=what, run="#missing")] if count else []


def _older(topic: str, ranges: str, planned: Planned, skip: int) -> str:
    """The page with the ranges before those of this one; empty for none."""
    after = skip + MAX_RANGES
    if after < len(planned.planned_at):
        before = "" if planned.before is None else planned.before.isoformat()
        return to_topic(topic, ranges=ranges, before=before, skip=str(after))
    return (
        to_topic(topic, ranges=ranges, before=planned.plans[0].at.isoformat())
        if planned.older
        else ""
    )


def _progress(
    pipeline: Pipeline, planned: Planned, notes: list[str], now: datetime, ranges: str
) -> tuple[Progress, Brokers | None]:
    """What became of the ranges, with what is told from outside; and the brokers' part of that."""
    asking = [_ask_brokers(pipeline, planned), *_read_tables(pipeline, planned)]
    answers = [_looks.wait(look) for look in asking]
    notes += [each.trouble for each in answers if each.trouble]
    if pipeline.hidden_dags:
        notes.append(
            f"{counted(pipeline.hidden_dags, 'DAG')} that you may not read: runs of ranges are "
            "missing here"
        )
    brokers: Brokers | None = answers[0].value
    if brokers and brokers.state.incarnation != planned.ledger.incarnation:
        notes.append(
            f"the topic was deleted and recreated: it is of incarnation "
            f"{brokers.state.incarnation}, and {planned.ledger.incarnation} is planned"
        )
    if brokers and (ahead := processed_ahead(planned.ledger, brokers.stored, ())):
        notes.append(f"more is processed than Airflow knows to be planned: {ahead}")
    progress = Progress(
        planned,
        [each.value for each in answers[1:] if each.value is not None],
        brokers,
        now=now,
        missed_after=timedelta(milliseconds=_missed_after_ms(pipeline)),
        sees_runs=not pipeline.hidden_dags,
        to_run=to_run,
        to_range=lambda key: to_range(pipeline.topic, key, ranges),
    )
    return progress, brokers


def _missed_after_ms(pipeline: Pipeline) -> int:
    default = int(MISSED_AFTER / timedelta(milliseconds=1))
    try:
        return duration_ms_or(default, pipeline.missed_after)
    except ConfigError:  # the planner fails by itself, and its run says why
        return default


def _ask_brokers(pipeline: Pipeline, planned: Planned) -> Look:
    # What lags is counted from what these plans say is processed: others count from elsewhere.
    plans = (planned.before, planned.plans[0].at if planned.plans else None)
    key = ("brokers", pipeline, planned.ledger.incarnation, plans, done_ranges(planned))
    return _looks.start(key, "the brokers", lambda: outside.ask_brokers(pipeline, planned))


def _read_tables(pipeline: Pipeline, planned: Planned) -> list[Look]:
    # An answer from before a range was processed would call the range missing from the table.
    topic, incarnation, done = pipeline.topic, planned.ledger.incarnation, done_ranges(planned)
    return [
        _looks.start(
            ("table", name, topic, incarnation, done),
            f"table {name}",
            lambda name=name: outside.read_table(name, topic, incarnation),  # type: ignore[misc]
        )
        for name in pipeline.tables
    ]


# -- a range --------------------------------------------------------------------------------


def range_page(access: Access, topic: str, key: str, ranges: str) -> RangePageView:
    """A range of a topic, with its runs, its manifest and its snapshots."""
    try:
        offsets = parse_key(key)
    except ConfigError as exc:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(exc)) from exc
    now = datetime.now(UTC)
    notes: list[str] = []
    with create_session(scoped=False) as session:
        pipeline = _pipeline(session, access, topic, ranges)
        planned = stored.planned_range(session, pipeline, offsets) if pipeline else None
        if pipeline is None or planned is None:
            raise _unknown(topic)
        results = _results(session, access, planned.runs.get(key, []))
    progress, _ = _progress(pipeline, planned, notes, now, ranges)
    return RangePageView(
        topic=topic,
        topic_href=to_topic(topic, ranges=ranges),
        range=progress.range(offsets),
        results=results,
        tables=list(pipeline.tables),
        notes=notes,
    )


def _results(session: Session, access: Access, runs: list[Run]) -> list[ResultView]:
    """What the tasks of the runs have returned, as far as the user may read it."""
    found = []
    for run in runs:
        if not access.may_read(run.dag_id, RESULTS):
            continue
        returned = stored.result_of(session, run)
        if returned is not None:
            task, value = returned
            found.append(
                ResultView(
                    run_id=run.run_id,
                    task=task,
                    href=to_task(run, task),
                    manifest=in_a_line(value["manifest"]),
                    fields={name: _plain(each) for name, each in list(value.items())[:MAX_FIELDS]},
                )
            )
    return found


def _plain(value: Any) -> str | int | float | bool | None:
    """A value of an XCom, which may be anything, as a cell of a page."""
    is_number = value is None or isinstance(value, bool | int | float)
    return value if is_number else in_a_line(value)


def find_range(access: Access, topic: str, partition: int, offset: int, ranges: str) -> str:
    """The key of the range that an offset was planned in."""
    with create_session(scoped=False) as session:
        pipeline = _pipeline(session, access, topic, ranges)
        if pipeline is None:
            raise _unknown(topic)
        found: OffsetRange | None = stored.range_with(session, pipeline, partition, offset)
    if found is None:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            f"partition {partition}, {offsets_in_words(offset, offset + 1)}: in none of the newest "
            f"{MAX_LOOKED} plans of topic {topic}",
        )
    return range_key(found)


# -- who may see what -----------------------------------------------------------------------


def _pipeline(session: Session, access: Access, topic: str, ranges: str) -> Pipeline | None:
    """The pipeline of a topic, as far as the user may read it; None where there is none."""
    source = sources.source_of(session, ranges or ranges_asset(topic).name)
    if source is None and not ranges:
        planned = (each for each in sources.sources(session) if each.ranges)
        source = next((each for each in planned if each.topic == topic), None)
    if source is None or source.topic != topic or not any(map(access.may_read, source.dags)):
        return None
    pipeline = sources.pipeline_of(session, source)
    readable = access.readable(pipeline.process_dags)
    hidden = len(pipeline.process_dags) - len(readable)
    return pipeline._replace(process_dags=readable, hidden_dags=hidden)


def _audits(session: Session, access: Access, topic: str, notes: list[str]) -> Audits | None:
    try:
        audits = stored.audits_of(session, topic)
    except MemqError as exc:
        notes.append(f"the audit: {in_a_line(exc)}")
        return None
    if audits is None:
        return None
    tasks = [each for each in audits.tasks if access.may_read(each.dag_id, RESULTS)]
    return Audits(tasks, audits.audited) if tasks else None


def _unknown(topic: str) -> HTTPException:
    return HTTPException(
        status.HTTP_404_NOT_FOUND,
        f"nothing is planned or audited of topic {topic!r}, as far as you may see",
    )


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
