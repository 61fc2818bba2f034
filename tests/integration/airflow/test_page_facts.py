"""What the page of a topic reads from Airflow's database: an own one in memory, with its models."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from airflow.models import import_all_models
from airflow.models.asset import (
    AssetActive,
    AssetEvent,
    AssetModel,
    DagScheduleAssetReference,
    TaskInletAssetReference,
    TaskOutletAssetReference,
)
from airflow.models.asset_state_store import AssetStateStoreModel
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from airflow.sdk import Asset
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from airflow_provider_memq.ledger import Ledger
from airflow_provider_memq.plugins import queries
from airflow_provider_memq.plugins.hours import audit_of
from airflow_provider_memq.plugins.queries import pipeline_of, source_of, sources
from airflow_provider_memq.range_assets import (
    audited_asset,
    plan_asset,
    processed_asset,
    ranges_asset,
)
from airflow_provider_memq.ranges import range_key
from memq.core.ranges import Interval, OffsetRange
from memq.errors import CorruptDataError

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TOPIC, LIFE = "clicks", "a" * 16
RANGES, DONE, AUDITED = ranges_asset(TOPIC), processed_asset(TOPIC, "job"), audited_asset(TOPIC)
PLAN = plan_asset(RANGES)


class Database:
    """Airflow's database, with one topic that is planned, processed and audited."""

    def __init__(self, session):
        self.session, self.ids, self.ends = session, {}, 0
        for asset in (RANGES, DONE, PLAN, AUDITED):
            self.asset(asset)
        for model, asset, dag_id, task_id in [
            (TaskOutletAssetReference, RANGES, "plan", "plan"),
            (TaskOutletAssetReference, PLAN, "plan", "plan"),
            (TaskOutletAssetReference, DONE, "process", "process"),
            (TaskInletAssetReference, AUDITED, "audit", "audit"),
            (TaskInletAssetReference, AUDITED, "audit", "consumed"),
        ]:
            self.add(model, asset_id=self.ids[asset.name], dag_id=dag_id, task_id=task_id)
        self.add(DagScheduleAssetReference, asset_id=self.ids[RANGES.name], dag_id="process")

    def add(self, model, **values):
        return self.session.execute(insert(model).values(**values)).inserted_primary_key[0]

    def asset(self, asset):
        self.ids[asset.name] = self.add(AssetModel, name=asset.name, uri=asset.uri, group="")
        self.add(AssetActive, name=asset.name, uri=asset.uri)

    def event(self, asset, at, extra=None, key=None, source="process"):
        asset_id = self.ids[asset.name]
        source = {"source_dag_id": source, "source_task_id": "task", "source_run_id": "r"}
        values = {"extra": extra or {}, "partition_key": key, "timestamp": at}
        self.add(AssetEvent, asset_id=asset_id, **source, **values)

    def plan(self, minute, *sizes, incarnation=LIFE, life=0):
        """A plan of ranges of such sizes, which go on where the last one ended."""
        start, cuts = self.ends, [self.ends]
        for size in sizes:
            cuts.append(cuts[-1] + size)
        self.ends = cuts[-1]
        ledger = Ledger(
            topic=TOPIC,
            incarnation=incarnation,
            life=life,
            origins={0: 0},
            ends={0: self.ends},
            cuts={0: cuts} if sizes else {},
        )
        self.event(PLAN, BEGIN + timedelta(minutes=minute), ledger.to_extra(), source="plan")
        return start

    def run(self, dag_id, run_id, key=None, state="success", minute=0):
        at = BEGIN + timedelta(minutes=minute)
        times = {"run_after": at, "queued_at": at}
        values = {"run_type": "manual", "_state": state, "partition_key": key, "conf": {}}
        return self.add(DagRun, dag_id=dag_id, run_id=run_id, **times, **values)

    def arguments(self, dag_id, run_id, task_id, **fields):
        names = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
        self.add(RenderedTaskInstanceFields, **names, rendered_fields=fields)

    def returned(self, run, dag_id, run_id, task_id, value, **times):
        names = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, **times}
        self.add(XComModel, dag_run_id=run, key="return_value", value=value, **names)

    def keep(self, asset, key, value):
        self.add(
            AssetStateStoreModel,
            asset_id=self.ids[asset.name],
            key=key,
            value=json.dumps(value),
            updated_at=BEGIN,
        )


@pytest.fixture
def database():
    import_all_models()  # tables refer to each other
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield Database(session)
    engine.dispose()


@pytest.fixture
def pipeline(database):
    """The pipeline of the topic, after its first plan."""
    database.plan(0, 2, 2)
    return pipeline_of(database.session, source_of(database.session, RANGES.name))


def key(start, end):
    return range_key(OffsetRange(0, start, end, LIFE))


def planned(database, pipeline):
    found = queries.planned_of(database.session, pipeline)
    return found, [(each.start, each.end) for each in found.planned_at]


# -- topics ---------------------------------------------------------------------------------


def test_topics_are_those_that_somebody_plans_or_audits(database):
    """By the events of plans and by names of assets; a plan that is damaged is named."""
    other = audited_asset("audited.only")
    database.asset(other)
    database.add(
        TaskInletAssetReference, asset_id=database.ids[other.name], dag_id="a", task_id="t"
    )
    assert [each.topic for each in sources(database.session)[0]] == ["audited.only", TOPIC]
    database.plan(1, 2)
    found = {each.topic: each for each in sources(database.session)[0]}
    assert (found[TOPIC].ranges, found[TOPIC].dags) == (RANGES.name, ("plan",))
    assert found["audited.only"].dags == ("a",)

    database.event(PLAN, BEGIN + timedelta(hours=1), {"memq_plan": {"version": 7}})
    found, (note,) = sources(database.session)
    assert f"asset {PLAN.name!r}: an asset event has a plan that is damaged" in note
    assert {each.topic: each.ranges for each in found} == {"audited.only": "", TOPIC: ""}


def test_who_processes_is_known_by_airflow_itself(database):
    """DAGs by their schedule, assets by tasks' outlets, the rest by the last arguments of tasks."""
    database.plan(0, 2)
    for dag_id, task_id, fields in [
        ("process", "a foreign one", {"topic": "other", "group": "other"}),
        ("plan", "an audit", {"topic": TOPIC, "group": "audited"}),
        ("plan", "plan", {"topic": TOPIC, "memq_conn_id": "memq_prod", "missed_after": "1h"}),
        ("process", "process", {"topic": TOPIC, "output_dir": "prod:lake.clicks"}),
        ("process", "commit", {"topic": TOPIC, "group": "job"}),
        ("process", "parquet", {"topic": TOPIC, "output_dir": "/lake.d/clicks"}),
    ]:
        database.run(dag_id, f"{dag_id}.{task_id}")
        database.arguments(dag_id, f"{dag_id}.{task_id}", task_id, **fields)

    found = pipeline_of(database.session, source_of(database.session, RANGES.name))

    assert found == queries.Pipeline(
        TOPIC,
        RANGES.name,
        "plan",
        ("process",),
        all_have_runs=BEGIN,
        done=(DONE.name,),
        conn_id="memq_prod",
        group="job",
        tables=("prod:lake.clicks",),
        missed_after="1h",
    )


def test_the_last_arguments_of_a_task_count(database):
    """A group that a run before had is not the one that follows now."""
    database.plan(0, 2)
    for run_id, group in (("a", "old"), ("b", "new")):
        database.run("process", run_id)
        database.arguments("process", run_id, "commit", topic=TOPIC, group=group)

    found = pipeline_of(database.session, source_of(database.session, RANGES.name))

    assert found.group == "new"


def test_what_a_gate_comes_after_is_not_done(database):
    """An asset of a user's own says nothing of a range, unless a commit waits for it."""
    mine = Asset(name="clicks_files", uri="x://clicks_files")
    database.asset(mine)
    asset_id = database.ids[mine.name]
    database.add(TaskOutletAssetReference, asset_id=asset_id, dag_id="process", task_id="files")
    database.plan(0, 2)
    source = source_of(database.session, RANGES.name)
    assert pipeline_of(database.session, source).done == (DONE.name,)

    database.add(TaskInletAssetReference, asset_id=asset_id, dag_id="process", task_id="commit")
    assert set(pipeline_of(database.session, source).done) == {DONE.name, mine.name}


def test_topics_that_are_not_listed_are_mentioned(database, monkeypatch):
    """Of many topics the first are there, and a trouble says that there are more."""
    monkeypatch.setattr(queries, "MAX_TOPICS", 2)
    for asset in (plan_asset(ranges_asset("other")), audited_asset("b")):
        database.asset(asset)
    database.plan(0, 2)
    found, notes = sources(database.session)
    assert ([each.topic for each in found], notes) == (["b", TOPIC], [])

    for asset in (plan_asset(ranges_asset("zzz")), audited_asset("zzz")):
        database.asset(asset)
    found, notes = sources(database.session)

    assert [each.topic for each in found] == ["b", TOPIC]
    assert [each.partition(":")[0] for each in notes] == [
        "more than 2 topics are planned", "more than 2 topics are audited",
    ]  # fmt: skip


# -- plans and runs -------------------------------------------------------------------------


def test_plans_come_with_their_runs_and_what_is_done(database, pipeline):
    """A replay adds a run to its range; runs of other DAGs and keys are left out."""
    database.run("process", "first", key(0, 2), "failed")
    database.run("process", "again", key(0, 2), "running", minute=1)
    database.run("other", "x", key(2, 4))
    database.event(DONE, BEGIN, key=key(2, 4))

    found, ranges = planned(database, pipeline)

    assert ranges == [(0, 2), (2, 4)]
    assert {name: [each.state for each in runs] for name, runs in found.runs.items()} == {
        key(0, 2): ["failed", "running"]
    }
    assert found.done == {key(2, 4)}


def test_only_tasks_say_what_is_processed(database, pipeline):
    """Those of the DAG that processes, or with a manifest; no person, and no other DAG's task."""
    other = processed_asset(TOPIC, "other")
    database.asset(other)
    database.add(
        TaskOutletAssetReference, asset_id=database.ids[other.name], dag_id="b", task_id="t"
    )
    database.add(DagScheduleAssetReference, asset_id=database.ids[RANGES.name], dag_id="b")
    database.keep(PLAN, "all_have_runs", {"dag_id": "process", "until": BEGIN.isoformat()})
    database.run("b", "r", key(0, 2))
    pipeline = pipeline_of(database.session, source_of(database.session, RANGES.name))
    assert (pipeline.process_dags, pipeline.done) == (("b", "process"), (DONE.name,))

    def done(asset, **event):
        database.event(asset, BEGIN, **event, key=key(0, 2))
        return planned(database, pipeline)[0].done

    compared = {"memq_incarnation": LIFE}
    assert done(DONE, source=None) == set()  # of a person
    assert done(DONE, source=None, extra=compared) == set()
    assert done(DONE, source="b") == set()
    assert done(other, source="b", extra=compared) == set()
    found, _ = planned(database, pipeline)
    assert (found.runs, [each.dag_id for each in found.others[key(0, 2)]]) == ({}, ["b"])
    assert done(DONE, source="backfill", extra=compared) == {key(0, 2)}


def test_the_dag_that_processes_says_what_is_processed(database, pipeline):
    """Its own event counts, whatever its task has compared."""
    database.keep(PLAN, "all_have_runs", {"dag_id": "process", "until": BEGIN.isoformat()})
    pipeline = pipeline_of(database.session, source_of(database.session, RANGES.name))
    database.event(DONE, BEGIN, key=key(0, 2))

    assert planned(database, pipeline)[0].done == {key(0, 2)}


def test_clocks_that_are_a_little_apart_hide_no_run(database, pipeline):
    """A scheduler's clock may be behind that of the API server which stored the plan."""
    database.run("process", "first", key(0, 2), minute=-2 / 60)
    database.event(DONE, BEGIN - timedelta(seconds=1), key=key(2, 4))

    found, _ = planned(database, pipeline)

    assert (list(found.runs), found.done) == ([key(0, 2)], {key(2, 4)})


@pytest.mark.parametrize(("plans", "ranges"), [(3, 100), (100, 4), (100, 2)])
def test_only_the_newest_plans_are_on_a_page(database, pipeline, monkeypatch, plans, ranges):
    """So many plans or ranges, and one plan at least; that there are older ones is told."""
    monkeypatch.setattr(queries, "MAX_PLANS", plans)
    monkeypatch.setattr(queries, "MAX_RANGES", ranges)
    assert planned(database, pipeline)[1] == [(0, 2), (2, 4)]
    for minute, sizes in enumerate([(1,), (1,), (3, 3, 3)]):
        database.plan(minute + 1, *sizes)

    found, shown = planned(database, pipeline)

    assert shown[-3:] == [(6, 9), (9, 12), (12, 15)]
    assert (found.older, len(found.plans)) == (True, {3: 3, 100: 2 if ranges == 4 else 1}[plans])
    assert found.ledger.ends == {0: 15}


def test_plans_of_an_earlier_topic_of_the_name_are_left_out(database, pipeline):
    """After a topic was recreated the page is about the new one."""
    database.ends = 0
    database.plan(1, 5, incarnation="b" * 16, life=1)

    found, ranges = planned(database, pipeline)
    assert (ranges, found.ledger.incarnation) == ([(0, 5)], "b" * 16)


def test_what_had_its_run_is_known(database, pipeline):
    """By the planner's own mark, or else by the oldest run that Airflow has."""

    def known():
        source = source_of(database.session, RANGES.name)
        return pipeline_of(database.session, source).all_have_runs

    assert pipeline.all_have_runs is None
    database.run("process", "r", key(0, 2), minute=3)
    assert known() == BEGIN + timedelta(minutes=3)

    until = BEGIN + timedelta(minutes=9)
    database.keep(PLAN, "all_have_runs", {"dag_id": "process", "until": until.isoformat()})
    assert known() == until


def test_an_offset_is_found_in_its_range(database, pipeline):
    """In whichever plan it was; and nothing is found of what was not planned."""
    database.plan(1, 3)

    found = [
        queries.range_with(database.session, pipeline, 0, offset) for offset in (0, 3, 4, 6, 7)
    ]
    assert [each and (each.start, each.end) for each in found] == [
        (0, 2), (2, 4), (4, 7), (4, 7), None,
    ]  # fmt: skip
    assert queries.range_with(database.session, pipeline, 1, 0) is None
    database.plan(2, incarnation="b" * 16, life=1)
    assert queries.range_with(database.session, pipeline, 0, 3) is None  # another topic's now


def test_a_range_of_an_earlier_topic_keeps_its_page(database, pipeline):
    """Its plan says of which incarnation it is."""
    database.plan(1, 5, incarnation="b" * 16, life=1)

    found = queries.planned_range(database.session, pipeline, OffsetRange(0, 0, 2, LIFE))
    assert found.ledger.incarnation == LIFE


@pytest.mark.parametrize(
    "wanted", [(1, 3, LIFE), (4, 6, LIFE), (0, 2, "b" * 16), (0, 2, "")], ids=str
)
def test_a_range_that_was_never_planned_is_in_no_plan(database, pipeline, wanted):
    """One with other cuts, beyond what is planned, or of another incarnation."""
    offsets = OffsetRange(0, *wanted)

    assert queries.planned_range(database.session, pipeline, offsets) is None


def test_a_run_returns_its_manifest(database, pipeline):
    """The XCom that is one, among others of the run."""
    number = database.run("process", "r", key(0, 2))
    database.returned(number, "process", "r", "commit", {"group": "job"})
    database.returned(number, "process", "r", "process", {"manifest": "/m.json", "records": 3})
    (run,) = planned(database, pipeline)[0].runs[key(0, 2)]

    assert list(queries.manifests_of(database.session, run)) == [
        ("process", {"manifest": "/m.json", "records": 3})
    ]


def test_a_search_has_an_end(database, pipeline, monkeypatch):
    """Of more plans than that, only the newest are read."""
    monkeypatch.setattr(queries, "MAX_LOOKED", 2)
    for minute in (1, 2):
        database.plan(minute, 1)

    found = [queries.range_with(database.session, pipeline, 0, offset) for offset in (3, 4)]

    assert found == [None, OffsetRange(0, 4, 5, LIFE)]


# -- audits ---------------------------------------------------------------------------------


def test_audits_come_with_what_they_found(database):
    """Both tasks, told apart by their argument, and the record of what was audited."""
    number = database.run("audit", "r")
    database.arguments("audit", "r", "consumed", settled_for="1h")
    database.arguments("audit", "r", "audit", settled_for=None)
    database.returned(number, "audit", "r", "audit", {"verdict": "clean"})
    database.keep(AUDITED, "audited", [[0, 3], [3, 5]])

    database.returned(number, "audit", "r", "consumed", {"verdict": "not clean"})
    asked = []

    found = queries.audits_of(database.session, TOPIC, lambda dag_id: not asked.append(dag_id))

    assert found.audited == [Interval(0, 5)]
    assert {each.consumed: each.value for each in found.results} == {
        False: {"verdict": "clean"}, True: {"verdict": "not clean"},
    }  # fmt: skip
    assert set(asked) == {"audit"}
    assert queries.audits_of(database.session, TOPIC, lambda _: False) is None
    assert queries.audits_of(database.session, "none", lambda _: True) is None


def test_the_verdict_that_was_stored_last_counts(database):
    """An audit that `airflow backfill create` runs again has the times of the run it replaces."""
    hour = {"start": "2026-01-01T10:00:00+00:00", "end": "2026-01-01T11:00:00+00:00"}
    later = {"start": hour["end"], "end": "2026-01-01T12:00:00+00:00", "verdict": "clean"}
    for run_id, due, stored_at, value in [
        ("scheduled", 12, 13, {**later, "made_up": [{**hour, "verdict": "clean"}]}),
        ("backfill", 11, 14, {**hour, "verdict": "not clean"}),
    ]:
        number = database.run("audit", run_id, minute=60 * due)
        at = BEGIN + timedelta(hours=stored_at)
        database.returned(number, "audit", run_id, "audit", value, timestamp=at)

    audits = queries.audits_of(database.session, TOPIC, lambda _: True)
    audit = audit_of(audits, BEGIN + timedelta(hours=15))

    hours = {each.start[11:13]: each.stored for each in audit.hours}
    assert (hours["10"].words, hours["10"].run.run_id) == ("not clean", "backfill")
    assert hours["11"].words == "clean"


def test_a_record_that_makes_no_sense_is_an_error(database):
    """It is one of the errors that a page shows in a line."""
    database.keep(AUDITED, "audited", "x")

    with pytest.raises(CorruptDataError, match="makes no sense"):
        queries.audits_of(database.session, TOPIC, lambda _: True)
