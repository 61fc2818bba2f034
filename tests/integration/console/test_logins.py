"""Who gets into the console, and what a form must show."""

import asyncio
import logging
import re
import ssl
from dataclasses import replace

import aiohttp
import pytest

from memq import AsyncProducer
from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.client.admin import AsyncAdminClient
from memq.console import sessions as sessions_module
from memq.console.app import PAGES
from memq.console.settings import ConsoleSettings
from memq.core.access.rules import Rule
from memq.errors import TlsError
from memq.runtime.system import SYSTEM
from tests.harness.certificates import Certificates
from tests.integration.console.support import (
    ASKING,
    PASSWORD,
    console_broker,
    shown,
    token_in,
    visitor,
)

PATHS = [
    each.format(topic="t", partition=0, offset=0, group="g", broker="broker-1") for each in PAGES
]


def root(broker, **options):
    return AsyncAdminClient(broker.address, token="admin-token", **options)


async def prepared(broker):
    """A topic, a group, and a user without a rule."""
    async with root(broker) as admin:
        await admin.create_topic("secret-topic")
        producing = {"topic": "secret-topic", "token": "admin-token"}
        async with AsyncProducer(broker.address, **producing) as producer:
            await producer.write(b"secret-value")
        await admin.reset_offsets("secret-group", "secret-topic", "latest")
        await admin.create_user("alice", PASSWORD)


async def test_without_login_there_is_no_page(tmp_path):
    """Each page leads to the login and says nothing; so does each part that renews itself."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await prepared(b)
        for path in PATHS:
            status, text, url = await v.get(path)
            assert (status, "/console/login?next=" in url) == (200, True)
            assert "secret" not in shown(text)
            part = await v.raw("GET", path, **{"HX-Request": "true"})
            assert (part.status, part.headers["HX-Redirect"]) == (401, "/console/login")


async def test_a_token_or_a_password_gets_in(tmp_path):
    """With either a page shows who it is for the brokers, and leads to what was asked for first."""
    async with console_broker(tmp_path, **ASKING) as b:
        await prepared(b)
        async with visitor(b) as v:
            status, text, url = await v.log_in("", "admin-token", "/console/topics")
            assert (status, url) == (200, f"{v.base}/topics")
            assert "User:root" in text
            assert "secret-topic" in text
        async with visitor(b) as v:
            status, text, _ = await v.log_in("alice", PASSWORD)
            assert "User:alice" in text


@pytest.mark.parametrize("then", ["//evil.example/", "https://evil.example/", "/status", ""])
async def test_a_login_leads_nowhere_else(tmp_path, then):
    """An address outside the console is not followed."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        _, _, url = await v.log_in("", "admin-token", then)
        assert url == f"{v.base}/"


@pytest.mark.parametrize(
    ("user", "secret"), [("alice", "wrong"), ("", "wrong"), ("nobody", PASSWORD), ("alice", "")]
)
async def test_a_wrong_secret_is_refused(tmp_path, user, secret):
    """The login is shown again, without what was typed as a secret; there is no session."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await prepared(b)
        status, text, _ = await v.log_in(user, secret)
        assert status == 401
        assert not secret or f'"{secret}"' not in text
        assert "/console/login" in (await v.get("/topics"))[2]


async def test_the_brokers_own_token_is_nobodys(tmp_path, monkeypatch):
    """What the broker's environment has, a token or a login, lets nobody in."""
    monkeypatch.setenv("MEMQ_TOKEN", "admin-token")
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await prepared(b)
        assert (await v.log_in("alice", "wrong"))[0] == 401
        assert (await v.log_in("", ""))[0] == 401
        monkeypatch.setenv("MEMQ_SECURITY", f"user=alice,password={PASSWORD}")
        assert (await v.log_in("", "wrong"))[0] == 401
    async with console_broker(tmp_path, token="admin-token") as b, visitor(b) as v:
        assert "/console/login" in (await v.get("/topics"))[2]


async def test_a_user_without_a_rule_sees_nothing(tmp_path):
    """Neither topic nor group nor client is named on any page, and nothing is changed."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await prepared(b)
        await v.log_in("alice", PASSWORD)
        for path in PATHS:
            text = shown((await v.get(path))[1])
            assert "secret-" not in text, path
        group = "/topics/secret-topic/groups/secret-group"
        status, text, _ = await v.post("/", f"{group}/reset", to="earliest", execute="yes")
        assert status == 404
        status, text, _ = await v.post("/", "/brokers", broker="broker-1")
        assert (status, "may not alter cluster" in shown(text)) == (403, True)


async def test_rules_decide_what_is_seen(tmp_path):
    """A rule shows its topic alone, Batches only with read, groups only with a rule of theirs."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await prepared(b)
        async with root(b) as admin:
            await admin.create_topic("other-topic")
            await v.log_in("alice", PASSWORD)
            await admin.alter_rules(add=[_rule("describe", "topic", "secret-topic")])
            await b.figures.look()
            text = shown((await v.get("/topics"))[1])
            assert "secret-topic" in text
            assert "other-topic" not in text
            assert "secret-group" not in shown((await v.get("/groups"))[1])
            text = shown((await v.get("/topics/secret-topic"))[1])
            assert "may not read topic" in text
            assert "secret-group" not in text
            await admin.alter_rules(add=[_rule("describe", "group", "secret-group")])
            assert "secret-group" in shown((await v.get("/groups"))[1])
            await admin.alter_rules(remove=[_rule("describe", "topic", "secret-topic")])
            assert "secret" not in shown((await v.get("/groups"))[1])


def _rule(operation, kind, name):
    return Rule(principal="User:alice", operation=operation, type=kind, name=name)


async def test_a_foreign_form_changes_nothing(tmp_path):
    """Without the token, with that of another session, or from another origin: refused."""
    async with console_broker(tmp_path, **ASKING) as b:
        await prepared(b)
        async with visitor(b) as v, visitor(b) as other, root(b) as admin:
            await v.log_in("", "admin-token")
            await other.log_in("", "admin-token")
            await admin.reset_offsets("secret-group", "secret-topic", {0: 0})
            own, foreign = [token_in((await each.get("/"))[1]) for each in (v, other)]
            action = "/topics/secret-topic/groups/new-group/reset"
            fields = {"to": "earliest", "execute": "yes"}
            cases = [
                ({}, v.origin),
                ({"form_token": ""}, v.origin),
                ({"form_token": foreign}, v.origin),
                ({"form_token": own}, "http://evil.example"),
                ({"form_token": own}, "null"),
                ({"form_token": own}, ""),
                ({"form_token": own}, v.origin + "1"),
            ]
            for token, origin in cases:
                headers = {"Origin": origin} if origin else {}
                answer = await v.raw("POST", action, fields | token, **headers)
                assert answer.status == 403, (token, origin)
                assert not await admin.committed("new-group", "secret-topic")
            answer = await v.raw("POST", action, fields | {"form_token": own}, Origin=v.origin)
            assert answer.status == 200
            assert await admin.committed("new-group", "secret-topic") == {0: 0}


async def test_a_session_dies_at_logout(tmp_path):
    """Its cookie, kept by somebody, opens nothing, and its connections are closed."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await v.log_in("", "admin-token")
        kept = [(each.key, each.value) for each in v.session.cookie_jar]
        before = len(b.connections)
        _, _, url = await v.post("/", "/logout")
        assert url.endswith("/console/login")
        async with visitor(b) as thief:
            thief.session.cookie_jar.update_cookies(dict(kept))
            assert "/console/login" in (await thief.get("/topics"))[2]
        async with asyncio.timeout(10):
            while len(b.connections) >= before:
                await asyncio.sleep(0.01)


async def test_a_session_ends(tmp_path, monkeypatch):
    """When nobody has asked for a page for long; a page that renews itself keeps none alive."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await v.log_in("", "admin-token")
        assert "User:root" in (await v.get("/"))[1]
        monkeypatch.setattr(sessions_module, "IDLE_S", 0.2)
        for _ in range(5):
            await asyncio.sleep(0.06)
            answer = await v.raw("GET", "/topics", **{"HX-Request": "true"})
        assert answer.status == 401
        await v.log_in("", "admin-token")
        monkeypatch.setattr(sessions_module, "IDLE_S", 3_600)
        monkeypatch.setattr(sessions_module, "MAX_AGE_S", 0)
        assert "/console/login" in (await v.get("/"))[2]


async def test_sessions_are_bounded(tmp_path, monkeypatch):
    """One too many ends the one that has not been used for longest."""
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 2)
    async with (
        console_broker(tmp_path, **ASKING) as b,
        visitor(b) as first,
        visitor(b) as second,
        visitor(b) as third,
    ):
        for each in (first, second):
            await each.log_in("", "admin-token")
        await first.get("/")
        await third.log_in("", "admin-token")
        assert "User:root" in (await first.get("/"))[1]
        assert "/console/login" in (await second.get("/"))[2]
        assert "User:root" in (await third.get("/"))[1]


async def test_a_user_that_is_deleted_is_out(tmp_path):
    """Its session ends with the next page."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        await prepared(b)
        await v.log_in("alice", PASSWORD)
        async with root(b) as admin:
            await admin.delete_user("alice")
        assert "/console/login" in (await v.get("/topics"))[2]


async def test_secrets_are_neither_logged_nor_shown(tmp_path, caplog):
    """Not in logs, the access log, pages, addresses, or what a session says of itself."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "access.log"
    options = ASKING | {"access_log": str(path)}
    async with console_broker(tmp_path, **options) as b, visitor(b) as v:
        await prepared(b)
        await v.log_in("alice", PASSWORD)
        await v.log_in("alice", "wrong password")
        await v.log_in("", "admin-token")
        pages = [(await v.get(each))[1] for each in PATHS]
        options = shown((await v.get("/brokers/broker-1"))[1])
        assert re.search(r"\btoken \*\*\*", options)
    everything = "\n".join([*pages, caplog.text, path.read_text()])
    for secret in (PASSWORD, "wrong password", "admin-token"):
        assert secret not in everything
    assert "console 127.0.0.1" in path.read_text()


async def test_answers_have_their_headers(tmp_path):
    """Nothing is framed, guessed, stored or run from elsewhere; the cookie is no script's."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        for path in ("/login", "/nothing", "/static/style.css", "/static/nothing"):
            headers = (await v.raw("GET", path)).headers
            assert "default-src 'self'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == (
                "public, max-age=3600" if "style" in path else "no-store"
            )
        cookie = (await v.raw("GET", "/login")).headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= set(cookie.split("; "))


@pytest.mark.parametrize("trust", ["own", "console_ca"])
async def test_brokers_are_verified(tmp_path, trust):
    """By TLS the console trusts this broker's own certificate, or those of console_ca."""
    made = Certificates(tmp_path)
    options = ASKING | made.broker_options() | {"admin_tls": True}
    if trust == "console_ca":
        options |= {"console_ca": made.ca}
    context = ssl.create_default_context(cafile=made.ca)
    async with console_broker(tmp_path, **options) as b:
        connector = aiohttp.TCPConnector(ssl=context)
        async with visitor(b, connector=connector) as v:
            v.origin = v.origin.replace("http:", "https:")
            v.base = f"{v.origin}/console"
            status, text, _ = await v.log_in("", "admin-token")
            assert (status, "User:root" in text) == (200, True)
            assert "Secure" in (await v.raw("GET", "/login")).headers["Set-Cookie"]


async def test_a_broker_of_another_ca_is_refused(tmp_path):
    """A certificate that neither console_ca nor this broker's own vouches for gets no password."""
    (tmp_path / "other").mkdir()
    made, other = Certificates(tmp_path), Certificates(tmp_path / "other")
    options = ASKING | made.broker_options()
    async with console_broker(tmp_path, **options) as b, visitor(b) as v:
        stranger = other.write(other.issue("stranger"))
        settings = replace(_settings(b), peer=stranger[0], ca=other.ca)
        sessions = sessions_module.Sessions(settings, SYSTEM)
        with pytest.raises(TlsError, match="of a CA that is not in"):
            await sessions.log_in("test", "alice", PASSWORD)
        await v.get("/login")


def _settings(broker):
    return ConsoleSettings(address=broker.address, asks=True)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
async def test_an_open_console_answers_to_its_own_names(tmp_path, host):
    """Where everybody is let in, a name that only means this address opens nothing."""
    async with console_broker(tmp_path) as b, visitor(b) as v:
        status, text, _ = await v.get("/topics", Host=host)
        assert (status, "have the broker ask" in text) == (403, True)
        assert (await v.get("/topics", Host=f"localhost:{b.admin_port}"))[0] == 200


async def test_where_nobody_is_asked_forms_are_still_of_a_browser(tmp_path):
    """Everybody sees all; a form needs the token of the browser that loaded it."""
    async with console_broker(tmp_path) as b, visitor(b) as v, visitor(b) as other:
        async with AsyncAdminClient(b.address) as admin:
            await admin.create_topic("t")
        assert "t" in (await v.get("/topics"))[1]
        foreign = token_in((await other.get("/topics/t"))[1])
        action = "/topics/t/groups/g/reset"
        answer = await v.raw(
            "POST", action, {"to": "latest", "form_token": foreign}, Origin=v.origin
        )
        assert answer.status == 403


async def test_a_console_can_be_off(tmp_path):
    """Without the option nothing is there, and browsers get the plain list."""
    config = BrokerConfig.create({"data_dir": str(tmp_path), "port": 0, "admin_port": 0})
    b = Broker(config)
    await b.start()
    try:
        async with visitor(b) as v:
            assert (await v.raw("GET", "/")).status == 404
            async with v.session.get(v.origin, headers={"Accept": "text/html"}) as answer:
                assert "/health" in await answer.text()
    finally:
        await b.stop()


async def test_a_browser_is_sent_on_and_others_get_the_list(tmp_path):
    """`/` leads browsers to the console; all else is as it was, and still asks who it is."""
    async with console_broker(tmp_path, **ASKING) as b, visitor(b) as v:
        async with v.session.get(
            v.origin, headers={"Accept": "text/html,*/*"}, allow_redirects=False
        ) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/console/")
        assert (await v.get(""))[2].startswith(f"{v.base}/login")
        for path in ("/", "/status", "/metrics", "/topics/t", "/consoles"):
            async with v.session.get(v.origin + path) as answer:
                assert answer.status == 401
