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
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from airflow_provider_memq.ledger import Ledger
from airflow_provider_memq.plugins import queries
from airflow_provider_memq.plugins.queries import pipeline_of, source_of, sources
from airflow_provider_memq.range_assets import (
    audited_asset,
    plan_asset,
    processed_asset,
    ranges_asset,
)
from airflow_provider_memq.ranges import range_key
from memq.core.ranges import Interval, OffsetRange

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
