"""What pages read from Airflow's database, one in memory, and answer to whatever request."""

import itertools
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from airflow import settings
from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import asset as models
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_provider_memq import range_assets
from airflow_provider_memq.page import queries, routes
from airflow_provider_memq.page.queries import audits_of, planned_of, topics_of
from airflow_provider_memq.planning.ledger import PlanLedger
from airflow_provider_memq.planning.ranges import range_key
from memq.core.ranges import OffsetRange
from memq.errors import StorageError

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TOPIC, LIFE = "clicks", "a" * 16
RANGES, AUDITED = range_assets.ranges_asset(TOPIC), range_assets.audited_asset(TOPIC)
PLAN, DONE = range_assets.plan_asset(RANGES), range_assets.processed_asset(TOPIC, "job")


class Database:
    """Airflow's database, with one topic that is planned, processed and audited."""

    def __init__(self, session):
        self.session, self.ends, self.runs = session, 0, 0
        outlet, inlet = models.TaskOutletAssetReference, models.TaskInletAssetReference
        self.asset(RANGES, outlet, ("plan", "plan"))
        self.plans = self.asset(PLAN, outlet, ("plan", "plan"))
        self.done = self.asset(DONE, outlet, ("process", "process"))
        self.asset(AUDITED, inlet, ("audit", "audit"), ("audit", "consumed"))
        for dag_id in ("process", "other"):
            self.add(models.DagScheduleAssetReference, asset_id=1, dag_id=dag_id)

    def add(self, model, **values):
        return self.session.execute(insert(model).values(**values)).inserted_primary_key[0]

    def asset(self, asset, reference, *tasks):
        number = self.add(models.AssetModel, name=asset.name, uri=asset.uri, group="")
        self.add(models.AssetActive, name=asset.name, uri=asset.uri)
        for dag_id, task_id in tasks:
            self.add(reference, asset_id=number, dag_id=dag_id, task_id=task_id)
        return number

    def event(self, asset_id, minute, extra=None, key=None, dag_id="process"):
        source = {"source_dag_id": dag_id, "source_task_id": "task", "source_run_id": "r"}
        values = {"extra": extra or {}, "partition_key": key, "timestamp": at(minute)}
        self.add(models.AssetEvent, asset_id=asset_id, **source, **values)

    def plan(self, minute, *sizes, topic_id=LIFE, life=0):
        """A plan of ranges of such sizes, which go on where the last one ended."""
        cuts = list(itertools.accumulate(sizes, initial=self.ends))
        self.ends = cuts[-1]
        ledger = PlanLedger(
            topic=TOPIC,
            topic_id=topic_id,
            life=life,
            origins={0: 0},
            ends={0: self.ends},
            cuts={0: cuts},
        )
        self.event(self.plans, minute, ledger.to_extra(), dag_id="plan")

    def run(self, dag_id, run_id, key=None, state="success", minute=0):
        times = {"run_after": at(minute), "queued_at": at(minute)}
        values = {"run_type": "manual", "_state": state, "partition_key": key, "conf": {}}
        return self.add(DagRun, dag_id=dag_id, run_id=run_id, **times, **values)

    def arguments(self, dag_id, task_id, **fields):
        """The arguments of a task in a run of its own."""
        self.runs += 1
        names = {"dag_id": dag_id, "run_id": f"run {self.runs}"}
        self.run(**names)
        self.add(RenderedTaskInstanceFields, **names, task_id=task_id, rendered_fields=fields)

    def returned(self, dag_id, run_id, task_id, value, *, key=None, minute=0):
        """What a task has returned in a run of its own."""
        names = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
        names |= {"dag_run_id": self.run(dag_id, run_id, key), "key": "return_value"}
        self.add(XComModel, **names, value=value, timestamp=at(minute))


@pytest.fixture
def database():
    import_all_models()  # tables refer to each other
    threads = {"check_same_thread": False}
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args=threads)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield Database(session)
    engine.dispose()


class Reader:
    """Who may read all DAGs but those that are hidden."""

    def __init__(self, session):
        self.session, self.hidden = session, set()

    def may_read(self, dag_id, entity=queries.RUNS):
        return (dag_id, entity) not in self.hidden


@pytest.fixture
def reader(database):
    """Who reads the database."""
    return Reader(database.session)


def at(minute):
    return BEGIN + timedelta(minutes=minute)


def key(start, end):
    return range_key(OffsetRange(0, start, end, LIFE))


# -- the database ---------------------------------------------------------------------------


def test_topics_are_those_that_somebody_plans_or_audits(database, reader):
    """By names of assets; the plan says when, and by which DAG."""
    other = range_assets.audited_asset("audited.only")
    database.asset(other, models.TaskInletAssetReference, ("a", "t"))
    database.plan(1, 2)
    database.event(database.plans, 60, dag_id=None)  # by a person

    assert topics_of(reader) == [
        {"topic": "audited.only", "planned_at": None, "dags": ["a"]},
        {"topic": TOPIC, "planned_at": at(1), "dags": ["plan"]},
    ]
    reader.hidden.add(("plan", queries.RUNS))
    assert [each["dags"] for each in topics_of(reader)] == [["a"], ["audit"]]


def test_who_processes_is_known_by_airflow_itself(database, reader):
    """DAGs by their schedule, assets by tasks' outlets, the rest by the last arguments of tasks."""
    assert planned_of(reader, TOPIC) is None  # before the first plan
    database.plan(0, 2)
    found = planned_of(reader, TOPIC).pipeline
    assert found[1:4] == ("plan", ["other", "process"], [database.done])

    planner = {"memq_conn_id": "memq_prod", "missed_after": "1h", "process_dag_id": "process"}
    database.arguments("process", "a foreign one", topic="else", group="else")
    database.arguments("plan", "an audit", topic=TOPIC, group="audited")
    database.arguments("other", "processes too", topic=TOPIC, group="other")
    database.arguments("plan", "plan", topic=TOPIC, process_dag_id="before", group="before")
    database.arguments("plan", "plan", topic=TOPIC, **planner)
    database.arguments("process", "process", topic=TOPIC, output_dir="prod:lake.clicks")
    database.arguments("process", "commit", topic=TOPIC, group="job")
    database.arguments("process", "parquet", topic=TOPIC, output_dir="/lake.d/clicks")

    assert planned_of(reader, TOPIC).pipeline[1:] == (
        "plan", ["process"], [database.done], "memq_prod", "job", ["prod:lake.clicks"], 3_600_000,
    )  # fmt: skip


def test_plans_come_with_their_runs_and_what_is_done(database, reader):
    """A replay adds a run to its range; other DAGs, people and an earlier topic id do not."""
    database.plan(-1, 2, topic_id="b" * 16)
    database.ends = 0
    database.plan(0, 2, 2, life=1)
    database.plan(1, 3, life=1)
    database.run("process", "first", key(0, 2), "failed")
    database.run("process", "again", key(0, 2), "running", minute=1)
    database.run("foreign", "x", key(2, 4))
    database.event(database.done, 0, key=key(2, 4))
    database.event(database.done, 0, key=key(4, 7), dag_id=None)

    found = planned_of(reader, TOPIC)

    assert [(each.start, each.end) for each in found.planned_at] == [(0, 2), (2, 4), (4, 7)]
    states = {name: [each.state for each in runs] for name, runs in found.runs.items()}
    assert states == {key(0, 2): ["failed", "running"]}
    assert (found.done, found.since) == ({key(2, 4)}, at(-1))


def test_audits_come_with_what_they_found(database, reader):
    """Both tasks, told apart by their argument; the newest result first."""
    database.arguments("audit", "consumed", settled_for="1h")
    database.arguments("audit", "audit", settled_for=None)
    for minute, (task_id, verdict) in enumerate(
        [("audit", "old"), ("consumed", "not clean"), ("audit", "clean")]
    ):
        database.returned("audit", f"r{minute}", task_id, {"verdict": verdict}, minute=minute)

    found = audits_of(reader, TOPIC)
    assert {what: [value["verdict"] for _, value in each] for what, each in found.items()} == {
        "stored": ["clean", "old"], "consumed": ["not clean"],
    }  # fmt: skip
    assert audits_of(reader, "none") == {}


# -- requests -------------------------------------------------------------------------------

ODD = ["", " ", "\0", "a\0b", "\ud800", "\U0001f600", "'; --", "%00", "../../x", "x" * 5000, "-1"]
NUMBERS = ["0", "-1", str(2**63), str(10**40), "9" * 5000, "1.5", "x", "", "\0"]


@pytest.fixture
def ask(database, reader, monkeypatch):
    """Asks for a page about one topic that was planned; there are no brokers."""

    def away(*_):
        raise StorageError("there is no broker here")

    database.plan(0, 2, 2)
    monkeypatch.setattr(queries, "ask_brokers", away)
    allowed = {routes.may_read_assets: lambda: None, routes.reader: lambda: reader}
    monkeypatch.setattr(routes.app, "dependency_overrides", allowed)
    client = TestClient(routes.app, raise_server_exceptions=False)

    def get(path):
        database.session.commit()
        return client.get(path, follow_redirects=False)

    return get


def links(answer):
    """Where a page leads to."""
    assert answer.status_code == 200, answer.text
    return set(re.findall(r'href="([^"]+)"', answer.text))


def addresses():
    """Every page with every odd value of every part of its address."""
    name = quote(key(0, 2), safe="")
    for odd in (quote(each, safe="", errors="surrogatepass") for each in ODD):
        yield f"/topics/{odd}/"
        yield f"/topics/{odd}/index.json"
        yield f"/topics/clicks/ranges/{odd}/"
        yield f"/topics/{odd}/ranges/{name}/"
        yield f"/topics/{odd}/find?partition=0&offset=0"
        yield f"/topics/clicks/?{odd}={odd}"
    for partition, offset in itertools.product(map(quote, NUMBERS), repeat=2):
        yield f"/topics/clicks/find?partition={partition}&offset={offset}"


def test_no_request_is_an_error_of_the_server(ask):
    """Odd names and numbers in every part of every address: an answer, or 4xx and why."""
    found = {each: ask(each) for each in addresses()}

    assert [each for each, answer in found.items() if answer.status_code >= 500] == []
    assert ask("/topics/%00/").status_code == 400
    assert ask("/topics/clicks/find?partition=0&offset=x").text.count("offset: ") == 1
    assert ask("/topics/none/index.json").json()["code"] == 404


def test_pages_lead_to_each_other_and_to_runs(ask, database):
    """From the list to a topic, from an offset to its range, and from there to Airflow's pages."""
    database.plan(1, 3)
    database.returned("process", "a/x", "process", {"manifest": "/m", "rows": 3}, key=key(0, 2))
    run, name = "/dags/process/runs/a%2Fx", quote(key(0, 2), safe="")

    assert {"topics/clicks/", "/dags/plan"} <= links(ask("/"))
    topic = links(ask("/topics/clicks/"))
    assert {"/dags/plan", "/dags/process", run, f"ranges/{name}/#manifest"} <= topic
    find = "/topics/clicks/find?partition={}&offset={}"
    found = [ask(find.format(0, offset)).headers["location"] for offset in (0, 1, 2, 6)]
    ranges = [key(0, 2), key(0, 2), key(2, 4), key(4, 7)]
    assert found == [f"ranges/{each}/" for each in ranges]
    assert {ask(f"/topics/clicks/{each}").status_code for each in found} == {200}
    assert [ask(find.format(*each)).status_code for each in ((0, 7), (1, 0))] == [404, 404]
    page = ask(f"/topics/clicks/{found[1]}")
    assert {"../../", "index.json", run, f"{run}/tasks/process"} <= links(page)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    (result,) = ask(f"/topics/clicks/ranges/{name}/index.json").json()["results"]
    assert result["fields"] == {"manifest": "/m", "rows": "3"}


def test_what_cannot_be_told_is_a_line(ask, database, monkeypatch):
    """Brokers that are away; more processed than planned; a damaged plan is refused by name."""
    page = ask("/topics/clicks/index.json").json()
    assert page["notes"] == ["the brokers: StorageError: there is no broker here"]
    assert [each["state"] for each in page["ranges"]] == ["no run", "no run"]

    monkeypatch.setattr(queries, "ask_brokers", lambda _: queries.Brokers({0: 0}, {0: 9}, {0: 7}))
    (note,) = ask("/topics/clicks/index.json").json()["notes"]
    assert "planned up to 4, and offset 7 is committed" in note

    database.event(database.plans, 60, {"memq_plan": {"version": 7}}, dag_id="plan")
    answer = ask("/topics/clicks/index.json")
    assert (answer.status_code, "a plan that is damaged" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize("dag_id", ["plan", "process"])
def test_what_a_user_may_not_read_is_not_there(ask, reader, dag_id):
    """Without the DAGs that plan and process there is the audit; without its results, no topic."""
    reader.hidden.add((dag_id, queries.RUNS))
    page = ask("/topics/clicks/index.json").json()
    assert ("ranges" in page, len(page["audit"]["hours"])) == (False, 24)
    assert "No window is known to be clean" in ask("/topics/clicks/").text

    reader.hidden.add(("audit", queries.RESULTS))
    paths = ("", f"ranges/{key(0, 2)}/", "find?partition=0&offset=1")
    assert {ask(f"/topics/clicks/{path}").status_code for path in paths} == {404}


def test_who_is_not_logged_in_sees_nothing(database, monkeypatch):
    """Every page asks who one is; a viewer sees what Airflow shows him."""
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    for name in ("Session", "NonScopedSession"):
        monkeypatch.setattr(settings, name, sessionmaker(database.session.get_bind()))
    create_auth_manager()
    client = TestClient(routes.app)
    database.plan(0, 2)
    database.session.commit()

    def ask(path, token):
        return client.get(path, headers={"Authorization": f"Bearer {token}"} if token else {})

    def token_of(role):
        user = SimpleAuthManagerUser(username="somebody", role=role)
        return get_auth_manager().generate_jwt(user)

    topic = "/topics/clicks/"
    pages = ["/", topic, f"{topic}find?partition=0&offset=1", f"{topic}ranges/{key(0, 2)}/"]
    for path in (*pages, "/index.json", f"{topic}index.json", f"{topic}ranges/x/index.json"):
        for token, status in (("", 401), ("x.y.z", 403), (token_of(None), 403)):
            reply = ask(path, token)
            assert (reply.status_code, "/dags/plan" in reply.text) == (status, False)
    assert "/dags/plan" in ask("/", token_of("viewer")).text
    assert ask("/topics/none/", token_of("viewer")).status_code == 404
