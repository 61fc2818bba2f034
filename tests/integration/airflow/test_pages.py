"""What pages read from Airflow's database, an own one in memory, and answer to whatever request."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from airflow.api_fastapi.core_api.security import get_user
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
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from airflow_provider_memq.planning.ledger import Ledger
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.plugins import outside, pages, queries, routes
from airflow_provider_memq.plugins.queries import pipeline_of, source_of, sources
from airflow_provider_memq.range_assets import (
    audited_asset,
    plan_asset,
    processed_asset,
    ranges_asset,
)
from memq.core.ranges import Interval, OffsetRange
from memq.errors import StorageError

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
    threads = {"check_same_thread": False}
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args=threads)
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


# -- requests -------------------------------------------------------------------------------

ODD = ["", " ", "\0", "a\0b", "\ud800", "\U0001f600", "'; --", "%00", "../../x", "x" * 5000, "-1"]
NUMBERS = ["0", "-1", str(2**63), str(10**40), "9" * 5000, "1.5", "x", "", "\0"]


@pytest.fixture
def hidden(monkeypatch):
    """DAGs that the user may not read."""
    hidden = set()
    monkeypatch.setattr(pages, "_may_read", lambda _, dag_id, *__: dag_id not in hidden)
    return hidden


@pytest.fixture
def ask(database, hidden, monkeypatch):
    """Asks for a page about one topic that was planned; there are no brokers."""

    @contextmanager
    def opened(**_):
        yield database.session

    def away(*_):
        raise StorageError("there is no broker here")

    database.plan(0, 2, 2)
    monkeypatch.setattr(pages, "create_session", opened)
    monkeypatch.setattr(outside, "ask_brokers", away)
    (may_read, *_) = routes.pages_for_users.dependencies
    allowed = {may_read.dependency: lambda: None, get_user: nobody}
    monkeypatch.setattr(routes.app, "dependency_overrides", allowed)
    client = TestClient(routes.app, raise_server_exceptions=False)
    return lambda path: client.get(path, follow_redirects=False)


def nobody():
    return SimpleNamespace()


def links(answer):
    """Where a page leads to."""
    assert answer.status_code == 200, answer.text
    return set(re.findall(r'href="([^"]+)"', answer.text))


def addresses():
    """Every page with every odd value of every part of its address."""
    quoted = [quote(each, safe="", errors="surrogatepass") for each in ODD]
    key = quote("00000:000000000000-000000000002@" + "a" * 16, safe="")
    for odd in quoted:
        yield f"/topics/{odd}/"
        yield f"/topics/{odd}/index.json"
        yield f"/topics/clicks/ranges/{odd}/"
        yield f"/topics/{odd}/ranges/{key}/"
        yield f"/topics/clicks/find?partition=0&offset=0&ranges={odd}"
        yield f"/topics/{odd}/find?partition=0&offset=0"
        yield f"/topics/clicks/ranges/{key}/?ranges={odd}"
        yield f"/topics/clicks/?ranges={odd}"
        yield f"/?{odd}={odd}"
    for partition, offset in itertools.product(map(quote, NUMBERS), repeat=2):
        yield f"/topics/clicks/find?partition={partition}&offset={offset}"


def test_no_request_is_an_error_of_the_server(ask):
    """Odd names and numbers in every part of every address: an answer, or 4xx and why."""
    assert ask("/topics/clicks/").status_code == 200
    found = {each: ask(each) for each in addresses()}

    assert [each for each, answer in found.items() if answer.status_code >= 500] == []
    for address, answer in found.items():
        if "%00" in address.replace("%2500", ""):
            assert answer.status_code in {400, 404} or address.startswith("/?"), address


def test_pages_lead_to_each_other_and_to_runs(ask, database):
    """From the list to a topic, from an offset to its range, and from there to Airflow's pages."""
    number = database.run("process", "manual__1/x", key(0, 2))
    database.returned(number, "process", "manual__1/x", "process", {"manifest": "/m", "rows": 3})
    database.event(DONE, BEGIN, key=key(0, 2))
    query, name = f"?ranges={RANGES.name}", quote(key(0, 2), safe="")
    run = "/dags/process/runs/manual__1%2Fx"

    assert {f"topics/clicks/{query}", "/dags/plan"} <= links(ask("/"))
    topic = links(ask(f"/topics/clicks/{query}"))
    assert {"/dags/plan", "/dags/process", run, f"ranges/{name}/{query}#manifest"} <= topic
    found = ask(f"/topics/clicks/find?partition=0&offset=1&ranges={RANGES.name}")
    assert (found.status_code, found.headers["location"]) == (
        303, f"ranges/{key(0, 2)}/{query}",
    )  # fmt: skip
    page = ask(f"/topics/clicks/{found.headers['location']}")
    assert {f"../../{query}", f"index.json{query}", run, f"{run}/tasks/process"} <= links(page)
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_what_a_user_may_not_read_is_not_there(ask, hidden):
    """Without the DAG that plans there is no topic; without the one that processes, no runs."""
    hidden.add("process")
    page = ask("/topics/clicks/index.json").json()
    assert "1 DAG that you may not read: runs of ranges are missing here" in page["notes"]
    assert (page["dags"], page["missing"]) == (["plan"], [])

    hidden.add("plan")
    page = ask("/topics/clicks/index.json").json()
    assert (page["ranges"], len(page["audit"]["hours"])) == ([], 24)
    hidden.add("audit")
    assert ask("/index.json").json()["topics"] == []
    paths = ("", f"ranges/{key(0, 2)}/", "find?partition=0&offset=1")
    assert {ask(f"/topics/clicks/{path}").status_code for path in paths} == {404}
