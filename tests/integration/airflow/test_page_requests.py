"""Whatever a request asks for, a page answers it, or says in a line what is wrong with it."""

from __future__ import annotations

import itertools
import re
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from airflow_provider_memq.plugins import outside, pages, routes
from memq.errors import StorageError
from tests.integration.airflow.test_page_facts import (
    BEGIN,
    DONE,
    RANGES,
    Base,
    Database,
    Session,
    import_all_models,
    key,
)

ODD = ["", " ", "\0", "a\0b", "\ud800", "\U0001f600", "'; --", "%00", "../../x", "x" * 5000, "-1"]
NUMBERS = ["0", "-1", str(2**63), str(10**40), "9" * 5000, "1.5", "x", "", "\0"]


@pytest.fixture
def database(monkeypatch):
    """Airflow's database, which the pages read, with one topic that was planned; no brokers."""
    import_all_models()
    threads = {"check_same_thread": False}
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args=threads)
    Base.metadata.create_all(engine)

    def away(*_):
        raise StorageError("there is no broker here")

    with Session(engine) as session:
        found = Database(session)
        found.plan(0, 2, 2)

        @contextmanager
        def opened(**_):
            yield session

        monkeypatch.setattr(pages, "create_session", opened)
        monkeypatch.setattr(outside, "ask_brokers", away)
        yield found
    engine.dispose()


@pytest.fixture
def hidden(monkeypatch):
    """DAGs that the user may not read."""
    hidden = set()
    monkeypatch.setattr(pages, "_may_read", lambda _, dag_id, *__: dag_id not in hidden)
    return hidden


@pytest.fixture
def ask(database, hidden, monkeypatch):
    """Asks for a page."""
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
