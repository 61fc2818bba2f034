"""Whatever a request asks for, a page answers it, or says in a line what is wrong with it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from airflow_provider_memq.plugins import access, outside, pages, routes
from airflow_provider_memq.plugins.looks import Looks
from memq.errors import StorageError
from tests.integration.airflow.test_page_facts import Base, Database, Session, import_all_models

ODD = ["", " ", "\0", "a\0b", "\ud800", "\U0001f600", "'; --", "%00", "../../x", "x" * 5000, "-1"]
TIMES = [
    "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "0001-01-01", "9999-12-31T23:59:59-12:00",
    "9999-12-31T23:59:59.999999", "1e400", "-1e400", "nan", "inf", "0", "-1", str(10**18), "never",
    "2026-01-01T00:00:00", "-0001-01-01T00:00:00Z",
]  # fmt: skip
NUMBERS = ["0", "-1", str(2**63), str(10**40), "9" * 5000, "1.5", "x", "", "\0"]


@pytest.fixture
def ask(monkeypatch):
    """Asks for a page of a user who may see everything; of one topic that was planned."""
    import_all_models()
    threads = {"check_same_thread": False}
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args=threads)
    Base.metadata.create_all(engine)

    def away(*_):
        raise StorageError("there is no broker here")

    with Session(engine) as session:
        Database(session).plan(0, 2, 2)

        @contextmanager
        def opened(**_):
            yield session

        monkeypatch.setattr(pages, "create_session", opened)
        monkeypatch.setattr(pages, "_looks", Looks())
        monkeypatch.setattr(outside, "ask_brokers", away)
        monkeypatch.setattr(access.Access, "may_read", lambda *_: True)
        (may_read, *_) = routes.pages_for_users.dependencies
        allowed = {may_read.dependency: lambda: None, get_user: nobody}
        monkeypatch.setattr(routes.app, "dependency_overrides", allowed)
        client = TestClient(routes.app, raise_server_exceptions=False)
        yield lambda path: client.get(path, follow_redirects=False)
    engine.dispose()


def nobody():
    return SimpleNamespace()


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
    for time in TIMES:
        yield f"/topics/clicks/?before={quote(time, safe='')}"
    for number in map(quote, NUMBERS):
        yield f"/topics/clicks/?skip={number}"
    for partition, offset in itertools.product(map(quote, NUMBERS), repeat=2):
        yield f"/topics/clicks/find?partition={partition}&offset={offset}"


def test_no_request_is_an_error_of_the_server(ask):
    """Odd names, times and numbers in every part of every address: an answer, or 4xx and why."""
    assert ask("/topics/clicks/").status_code == 200
    found = {each: ask(each) for each in addresses()}

    assert [each for each, answer in found.items() if answer.status_code >= 500] == []
    for address, answer in found.items():
        if "%00" in address.replace("%2500", ""):
            assert answer.status_code in {400, 404} or address.startswith("/?"), address
    assert "before: the year 1" in ask(f"/topics/clicks/?before={quote(TIMES[0])}").text


@pytest.mark.parametrize(
    "address",
    [
        "/topics/a%00b/",
        "/topics/clicks/?ranges=%00",
        "/topics/clicks/find?partition=0&offset=0&ranges=%00",
    ],
)
def test_a_name_with_nul_reaches_no_database(ask, address):
    """PostgreSQL refuses such a text with an error of its own, where SQLite finds nothing."""
    answer = ask(address)

    assert (answer.status_code, "is the name of nothing" in answer.text) == (404, True)
