"""AWS identities: whose signature lets a client in, and what of it reaches AWS."""

import asyncio
import gzip
import json
import re
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from memq.broker import aws_iam, connection
from memq.client import authentication
from memq.client import connection as client_connection
from memq.client.authentication import proof
from memq.client.connection import BrokerConnection
from memq.client.security import Security
from memq.core.access.aws_iam import MECHANISM
from memq.core.wire import messages as m
from memq.errors import ConfigError, MemqError, UnauthorizedError, UnavailableError
from memq.runtime.system import SYSTEM
from tests.fakes.sts import ACCOUNT, KEYS, REGION, Sts
from tests.harness.certificates import Certificates
from tests.integration.broker.support import broker, client, until

AUDIENCE = "memq-tests"
ETL = f"User:arn:aws:iam::{ACCOUNT}:role/etl"


@pytest.fixture
async def sts():
    async with Sts().serve() as serving:
        yield serving


@pytest.fixture
def house(tmp_path, sts, monkeypatch):
    return House(tmp_path, sts, monkeypatch)


class House:
    """A broker that takes AWS identities, and the environment of a client that has one."""

    def __init__(self, folder, sts, monkeypatch):
        self.sts = sts
        self.certificates = Certificates(folder)
        self._folder, self._monkeypatch = folder, monkeypatch
        for name in ("AWS_PROFILE", "AWS_REGION"):
            monkeypatch.delenv(name, raising=False)
        self.environment(**sts.environment("ASIAETL"))
        monkeypatch.setattr(connection, "REFUSAL_S", 0.01)

    def environment(self, **variables):
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def use(self, key: str, **other):
        """Let the client have this key, or one like it."""
        found = KEYS[key]._replace(**other)
        self.environment(
            AWS_ACCESS_KEY_ID=key,
            AWS_SECRET_ACCESS_KEY=found.secret,
            AWS_SESSION_TOKEN=found.token,
        )

    @asynccontextmanager
    async def broker(self, runtime=SYSTEM, **more):
        options = {"authentication": "required", "aws_iam": self.sts.table(AUDIENCE)}
        options |= self.certificates.broker_options() | more
        async with broker(self._folder / "broker", runtime=runtime, **options) as b:
            yield b
            assert not b.context.fatal_errors.failure.done(), "the broker has failed"

    def client(self, b, **security):
        given = {"ca": self.certificates.ca, "aws_iam": AUDIENCE} | security
        return client(b, **given)

    async def refused(self, b, error=UnauthorizedError) -> str:
        with pytest.raises(error) as told:
            async with self.client(b):
                pass
        return str(told.value)

    async def silent(self, b) -> BrokerConnection:
        """A connection that has shaken hands, and says nothing more by itself."""

        class Silent(BrokerConnection):
            async def _log_in(self, *_):
                """Leave it to the test."""

        ca = Security.parse({"ca": self.certificates.ca})
        return await Silent.open(b.address, security=ca, connect_timeout_s=10)

    async def shows(self, b, data: bytes) -> m.AuthenticateAnswer | MemqError:
        """Show something as a proof; return what the broker says."""
        opened = await self.silent(b)
        try:
            step = m.Authenticate(mechanism=MECHANISM, data=data)
            answer, _ = await opened.request(step, timeout_s=10)
        except MemqError as told:
            return told.__cause__ or told
        finally:
            await opened.close()
        return answer


async def made(signed_for=AUDIENCE, **changes) -> bytes:
    """A proof of this client, with these changes once it is signed."""
    step = await proof(Security(aws_iam=signed_for))
    return json.dumps(json.loads(step.data) | changes).encode()


@pytest.mark.parametrize(
    ("key", "principal"), [("ASIAETL", ETL), ("AKIDANN", f"User:{KEYS['AKIDANN'].arn}")]
)
async def test_a_client_is_its_user_or_role(house, key, principal):
    """All sessions of a role are one principal; the client learns for how long it is."""
    house.use(key)
    async with house.broker() as b, house.client(b) as c:
        assert c.connection.principal == principal
        assert 890_000 < c.connection.limits.expires_ms <= 900_000
        with pytest.raises(MemqError, match="may not"):
            await c.ask(m.ListUsers())


async def test_aws_is_asked_one_thing(house):
    """Of the client come only date, key and signature; the rest is the broker's."""
    async with house.broker() as b, house.client(b):
        [(request, body)] = house.sts.asked
        assert (request.method, request.path_qs) == ("POST", "/")
        assert body == b"Action=GetCallerIdentity&Version=2011-06-15"
        assert request.headers["X-Memq-Audience"] == AUDIENCE
        assert "host;x-amz-date;x-amz-security-token;x-memq-audience" in str(
            request.headers["Authorization"]
        )


@pytest.mark.parametrize(
    ("key", "other", "said"),
    [
        ("ASIAETL", {"secret": "wrong"}, "AWS refused the signature: 'SignatureDoesNotMatch'"),
        ("ASIAETL", {"token": "of-another"}, "AWS refused the signature: 'InvalidClientTokenId'"),
        ("AKIDANN", {"token": "of-another"}, "AWS refused the signature: 'InvalidClientTokenId'"),
        ("AKIDROOT", {}, "is no user or role of IAM"),
        ("AKIDEVE", {}, "the broker lets in nobody of AWS account 999999999999"),
    ],
)
async def test_who_is_not_of_the_accounts_is_refused(house, key, other, said):
    """The error says why in a line, and has neither secret nor signature."""
    house.use(key, **other)
    async with house.broker() as b:
        told = await house.refused(b)
        assert said in told
        assert "\n" not in told
        assert not [word for word in ("wrong", "Signature=") if word in told]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_DEFAULT_REGION", "us-east-1", "or not the AWS region 'us-east-1': correct"),
        ("AWS_ENDPOINT_URL_STS", "https://sts.eu-west-1.amazonaws.com", "SignatureDoesNotMatch"),
        ("AWS_DEFAULT_REGION", "", "the environment has no AWS region: set AWS_DEFAULT_REGION"),
        ("AWS_ACCESS_KEY_ID", "", "the environment has no AWS credentials"),
        ("AWS_PROFILE", "none", "The config profile (none) could not be found"),
    ],
)
async def test_an_environment_that_does_not_fit_is_named(house, variable, value, said):
    """By the client, or by the broker."""
    house.environment(**{variable: value})
    async with house.broker() as b:
        told = await house.refused(b, (UnauthorizedError, ConfigError, UnavailableError))
        assert said in told


async def test_a_proof_for_another_cluster_is_none(house):
    """Neither as it is, nor with the name of this one written over it."""
    async with house.broker() as b:
        with pytest.raises(UnauthorizedError, match="another audience than aws_iam = 'staging'"):
            async with house.client(b, aws_iam="staging"):
                pass
        relabelled = await made("staging", audience=AUDIENCE)
        assert "SignatureDoesNotMatch" in str(await house.shows(b, relabelled))


@pytest.mark.parametrize(
    ("later_s", "said"),
    [(-45, r"is -4\d s old: set the clocks"), (95, r"is 9\d s old: set the clocks"), (80, ETL)],
)
async def test_a_proof_is_good_for_a_minute(house, later_s, said):
    """With leeway for clocks that differ; AWS itself would take it for longer."""
    shown = await made()
    runtime = replace(SYSTEM, wall_ns=lambda: SYSTEM.wall_ns() + later_s * 10**9)
    async with house.broker(runtime=runtime) as b:
        assert re.search(said, str(await house.shows(b, shown)))
        assert len(house.sts.asked) == (said == ETL)


HOSTILE = [
    {"region": f"{REGION}@evil.example"},
    {"region": f"{REGION}.evil.example/"},
    {"region": ""},
    {"region": f"{REGION}\r\nX: y"},
    {"audience": f"{AUDIENCE}\r\nX: y"},
    {"audience": AUDIENCE.upper()},
    {"access_key": "AKIDANN/20200101/us-east-1/iam/aws4_request, SignedHeaders=host"},
    {"access_key": "AKIDANN\n"},
    {"access_key": ""},
    {"date": "20260101T000000Z\r\nX: y"},
    {"date": "99999999T999999Z"},
    {"date": "\u0662\u0660260101T000000Z"},
    {"date": 5},
    {"signature": "0" * 64 + "\n"},
    {"signature": "0" * 63},
    {"signature": "0" * 64 + ", SignedHeaders=host"},
    {"session_token": "a\r\nHost: evil.example"},
    {"session_token": "a b"},
    {"session_token": "a" * 8_193},
    {"session_token": None},
]


async def test_nothing_but_a_proof_reaches_aws(house):
    """Values that could change the request, or where it goes, are refused before."""
    async with house.broker() as b:
        shown = [await made(**changes) for changes in HOSTILE]
        shown += [b"", b"{}", b"\xff", b"[" * 10_000, b'{"audience": "a"}']
        for each in await asyncio.gather(*(house.shows(b, each) for each in shown)):
            assert isinstance(each, UnauthorizedError)
            assert "\n" not in str(each)
        large = await house.shows(b, b" " * (16 << 10))
        assert "16384" in str(large)
        assert not house.sts.asked


@pytest.mark.parametrize(
    "change",
    [
        {"host": "evil.example", "url": "http://evil.example", "Host": "evil.example"},
        {"body": "Action=AssumeRole", "Action": "AssumeRole", "method": "GET"},
        {"SignedHeaders": "host", "Authorization": "none"},
    ],
)
async def test_what_else_a_proof_says_is_not_looked_at(house, change):
    """Host, action and headers are the broker's: the same question is asked."""
    async with house.broker() as b:
        twice = (await made(**change)).replace(b'"region"', b'"region": "us-east-1", "region"', 1)
        for each in (twice, await made()):
            assert (await house.shows(b, each)).principal == ETL
        (first, body), (second, same) = house.sts.asked
        names = {*first.headers} - {"Authorization", "X-Amz-Date"}
        assert [first.headers[each] for each in names] == [second.headers[each] for each in names]
        assert (first.method, first.path_qs, body) == (second.method, second.path_qs, same)


def reply(status: int, body: bytes = b"{}", **headers: str) -> Callable[[], web.Response]:
    return lambda: web.Response(status=status, body=body, headers=headers)


RIGHT = {"GetCallerIdentityResponse": {"GetCallerIdentityResult": {"Arn": KEYS["AKIDANN"].arn}}}


def error(code: str) -> bytes:
    return json.dumps({"Error": {"Code": code}}).encode()


AWAY = [
    reply(503),
    reply(500, error("SignatureDoesNotMatch")),
    reply(400, error("Throttling")),
    reply(403, b"<html>a proxy</html>"),
    reply(200, b""),
    reply(200, b"[]"),
    reply(200, b"{}"),
    reply(200, b'{"GetCallerIdentityResponse": []}'),
    reply(200, b"[" * 16_000),
    reply(200, b" " * 20_000 + json.dumps(RIGHT).encode()),
    reply(302, json.dumps(RIGHT).encode()),
    reply(200, gzip.compress(json.dumps(RIGHT).encode()), **{"Content-Encoding": "gzip"}),
]


async def test_while_aws_says_nothing_clients_retry_and_sessions_go_on(house):
    """Whatever else comes than an answer: too large, a redirection, an error that passes."""
    async with house.broker() as b, house.client(b) as known:
        for house.sts.instead in AWAY:
            told = await house.refused(b, UnavailableError)
            assert "AWS does not say now who this is; retry" in told
            assert "Timeout" not in told
            with pytest.raises(UnavailableError, match="AWS does not say now"):
                await known.ask(await proof(Security(aws_iam=AUDIENCE)))
        assert known.connection.principal == ETL
        await known.ask(m.Metadata())
        house.sts.instead = None
        assert (await known.ask(await proof(Security(aws_iam=AUDIENCE)))).principal == ETL


async def test_a_redirection_is_not_followed(house):
    """A signature goes nowhere but where the configuration says."""
    house.sts.instead = reply(307, Location=f"{house.sts.url}/elsewhere")
    async with house.broker() as b:
        await house.refused(b, UnavailableError)
        assert [request.path for request, _ in house.sts.asked] == ["/"]


async def test_aws_that_does_not_answer_is_waited_for_with_a_limit(house, monkeypatch):
    """The client is told to retry, before the handshake has taken too long."""
    monkeypatch.setattr(aws_iam, "STS_S", 0.2)
    house.sts.gate.clear()
    async with house.broker() as b:
        assert "AWS does not say now" in await house.refused(b, UnavailableError)
        house.sts.gate.set()
        async with house.client(b):
            pass


async def test_the_broker_stops_while_aws_is_asked(house):
    """And a client that goes away meanwhile leaves nothing behind."""
    house.sts.gate.clear()
    async with house.broker() as b:
        waiting = [asyncio.create_task(house.refused(b, MemqError)) for _ in range(2)]
        await until(lambda: len(house.sts.asked) == 2)
        waiting[0].cancel()
        await until(lambda: len(b.connections) == 1)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not [each for each in waiting if not each.cancelled() and each.exception()]


async def test_who_is_not_known_has_one_attempt(house):
    """Of many proofs at once, one is asked about; when that is refused, none else counts."""
    good = await proof(Security(aws_iam=AUDIENCE))
    house.use("ASIAETL", secret="wrong")
    bad = await proof(Security(aws_iam=AUDIENCE))
    async with house.broker() as b:
        opened = await house.silent(b)
        house.sts.gate.clear()
        answers = [
            asyncio.create_task(opened.request(each, timeout_s=10)) for each in (bad, *[good] * 50)
        ]
        await until(lambda: house.sts.asked)
        house.sts.gate.set()
        told = await asyncio.gather(*answers, return_exceptions=True)
        assert {*map(type, told)} == {UnavailableError}
        assert "SignatureDoesNotMatch" in str(told[-1])
        assert len(house.sts.asked) == 1
        await opened.close()


async def test_what_is_asked_during_a_renewal_is_answered(house):
    """A proof takes its time, and who is known is served meanwhile."""
    async with house.broker() as b, house.client(b) as c:
        house.sts.gate.clear()
        step = await proof(Security(aws_iam=AUDIENCE))
        answer = asyncio.create_task(c.ask(step))
        await until(lambda: len(house.sts.asked) == 2)
        await c.ask(m.Metadata())
        house.sts.gate.set()
        assert (await answer).principal == ETL


async def test_one_client_asks_aws_once_at_a_time(house):
    """A second proof during a renewal ends the connection, and AWS is not asked about it."""
    async with house.broker() as b, house.client(b) as c:
        house.sts.gate.clear()
        step = await proof(Security(aws_iam=AUDIENCE))
        answers = [asyncio.create_task(c.ask(step)) for _ in range(9)]
        told = await asyncio.gather(*answers, return_exceptions=True)
        assert all(isinstance(each, UnavailableError) for each in told)
        assert "renews only a login by it" in str(told)
        house.sts.gate.set()
        assert len(house.sts.asked) <= 2


async def test_who_did_not_log_in_by_aws_has_it_not_asked(house):
    """A user with a token, or who is asked nothing, cannot make the broker ask AWS."""
    step = await proof(Security(aws_iam=AUDIENCE))
    more = {"token": "root hush", "listeners": {"plain": {"port": 0}}}
    async with house.broker(**more) as b:
        for listener, ca in (("default", {"ca": house.certificates.ca}), ("plain", {})):
            async with client(b, "hush", listener=listener, **ca) as c:
                with pytest.raises(UnavailableError, match="renews only a login by it"):
                    await c.ask(step)
        assert house.sts.asked == []


async def test_a_renewal_is_of_the_same_client(house):
    """Somebody else's proof ends the connection."""
    async with house.broker() as b, house.client(b) as c:
        house.use("AKIDANN")
        with pytest.raises(UnavailableError, match=r"a proof of User:.*/ann, not of the client"):
            await c.ask(await proof(Security(aws_iam=AUDIENCE)))


async def test_the_client_renews_by_itself(house, monkeypatch):
    """Before the session ends, also after AWS was away; what is asked meanwhile is answered."""
    monkeypatch.setattr(aws_iam, "SESSION_S", 60.0)
    monkeypatch.setattr(client_connection, "RENEW_AT", 0.02)
    async with house.broker() as b, house.client(b) as c:
        [served] = b.connections._open
        ends_s = served.session.until_s
        house.sts.instead = reply(503)
        await until(lambda: len(house.sts.asked) == 2)
        house.sts.instead = None
        monkeypatch.setattr(aws_iam, "SESSION_S", 900.0)
        while served.session.until_s == ends_s:
            await c.ask(m.Metadata())
            await asyncio.sleep(0)
        assert served.session.until_s > ends_s + 500
        assert not c.connection.closed


async def test_a_session_that_is_not_renewed_ends(house, monkeypatch):
    """The client is told that, and comes again."""
    later = {"s": 0.0}
    runtime = replace(SYSTEM, wall_ns=lambda: SYSTEM.wall_ns() + int(later["s"] * 1e9))
    async with house.broker(runtime=runtime) as b, house.client(b) as c:
        later["s"] = 901.0
        await until(lambda: c.connection.closed)
        with pytest.raises(UnavailableError, match="has expired"):
            await c.ask(m.Metadata())


async def test_where_nobody_asks_no_proof_is_shown(house, monkeypatch):
    """Nor where the broker does not take AWS identities."""
    signed = threading.Event()
    monkeypatch.setattr(authentication, "_prove", lambda _: signed.set())
    async with house.broker(authentication="none") as b:
        assert "it does not ask who you are" in await house.refused(b)
    async with house.broker(aws_iam=None) as b:
        assert "it takes SCRAM-SHA-256, and this client has AWS-IAM" in await house.refused(b)
    assert not signed.is_set()
