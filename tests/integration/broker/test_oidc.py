"""Tokens that others have signed: which of them let a client in, and for how long."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from memq.broker import oidc
from memq.client.authentication import proof
from memq.client.security import Security
from memq.core.wire import messages as m
from memq.errors import UnauthorizedError, UnavailableError
from memq.runtime.system import SYSTEM
from tests.integration.broker.support import broker, client, until


def now_s() -> int:
    return SYSTEM.wall_ms() // 1000


class TestIssuer:
    """An issuer on this machine; it signs what it is asked to."""

    __test__ = False

    def __init__(self) -> None:
        self.keys = {"k1": ec.generate_private_key(ec.SECP256R1())}
        self.asked = 0
        self.away = False
        self.url = ""
        self.jwks_uri = ""

    @asynccontextmanager
    async def serve(self):
        app = web.Application()
        app.router.add_get(oidc.DISCOVERY, self._discovery)
        app.router.add_get("/keys", self._keys)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        self.jwks_uri = f"{self.url}/keys"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _discovery(self, _):
        return web.json_response({"jwks_uri": self.jwks_uri})

    async def _keys(self, _):
        self.asked += 1
        if self.away:
            return web.Response(status=503)
        keys = [
            json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": name}
            for name, key in self.keys.items()
        ]
        return web.json_response({"keys": keys})

    def token(self, key="k1", kid="k1", algorithm="ES256", **claims) -> str:
        """A token; a claim that is None is left out, and times are seconds from now."""
        good = {"iss": self.url, "aud": "memq", "sub": "web", "exp": 600}
        said = {name: value for name, value in (good | claims).items() if value is not None}
        said |= {
            name: now_s() + said[name] for name in ("exp", "nbf") if type(said.get(name)) is int
        }
        signer = self.keys[key] if isinstance(key, str) else key
        return jwt.encode(said, signer, algorithm=algorithm, headers={"kid": kid})

    def options(self, **more) -> dict:
        table = {"issuer": self.url, "audience": "memq", "prefix": "k8s:"} | more
        return {"authentication": "required", "oidc": {"k8s": table}}


@pytest.fixture
async def issuer():
    async with TestIssuer().serve() as made:
        yield made


@asynccontextmanager
async def asking(tmp_path, issuer, *, runtime=SYSTEM, **more):
    """A broker that knows the issuer's keys."""
    async with broker(tmp_path, runtime=runtime, **issuer.options(**more)) as b:
        [known] = b.control.issuers.all
        await until(lambda: known._keys)
        yield b


async def refused(b, token: str) -> str:
    with pytest.raises(UnauthorizedError) as error:
        async with client(b, token):
            pass
    return str(error.value)


async def test_a_token_says_who_its_client_is(tmp_path, issuer):
    """By its claim, with the issuer's prefix; the client learns for how long."""
    async with asking(tmp_path, issuer) as b, client(b, issuer.token()) as web_:
        assert web_.connection.principal == "User:k8s:web"
        assert 600_000 < web_.connection.limits.expires_ms <= 630_000
    async with (
        asking(tmp_path / "2", issuer, claim="email", keys=issuer.jwks_uri) as b,
        client(b, issuer.token(email="ann@example.com")) as ann,
    ):
        assert ann.connection.principal == "User:k8s:ann@example.com"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"exp": -60}, "the token has expired: get another"),
        ({"exp": None}, "not valid"),
        ({"exp": "soon"}, "not valid"),
        ({"exp": 10**400}, "not valid"),
        ({"nbf": 600}, "is not valid yet"),
        ({"aud": "other"}, "not valid: Audience doesn't match"),
        ({"aud": None}, "not valid"),
        ({"iss": "http://127.0.0.1:1"}, "refused the token"),
        ({"iss": None}, "refused the token"),
        ({"sub": None}, "has no claim 'sub'"),
        ({"sub": "a\nb"}, "claim 'sub' of the token"),
        ({"kid": "k2"}, "has no key 'k2'"),
        ({"key": ec.generate_private_key(ec.SECP256R1())}, "not valid: Signature"),
    ],
)
async def test_a_token_that_is_not_valid_is_refused(tmp_path, issuer, changed, said):
    """The error says why, and not the token."""
    token = issuer.token(**changed)
    async with asking(tmp_path, issuer) as b:
        told = await refused(b, token)
    assert said in told
    assert token not in told


@pytest.mark.parametrize("part", [0, 1])
async def test_a_token_of_deep_json_is_refused(tmp_path, issuer, part):
    """The broker goes on, although Python's parser gives up in a way of its own."""
    parts = issuer.token().split(".")
    parts[part] = jwt.utils.base64url_encode(b"[" * 9_000).decode()
    async with asking(tmp_path, issuer) as b:
        assert "refused the token" in await refused(b, ".".join(parts))
        async with client(b, issuer.token()):
            pass


async def test_only_asymmetric_signatures_count(tmp_path, issuer):
    """Neither a token without any, nor one that takes the public key for a secret."""
    public = issuer.keys["k1"].public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(public))
    claims = {"iss": issuer.url, "aud": "memq", "sub": "web", "exp": now_s() + 600}
    none = jwt.encode(claims, None, algorithm="none", headers={"kid": "k1"})
    header, payload, _ = none.split(".")
    async with asking(tmp_path, issuer) as b:
        for secret in (pem, json.dumps(jwk).encode()):
            head = jwt.utils.base64url_encode(b'{"alg":"HS256","kid":"k1"}').decode()
            signed = f"{head}.{payload}".encode()
            mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
                signed, secret
            )
            forged = f"{head}.{payload}.{jwt.utils.base64url_encode(mac).decode()}"
            assert "not valid" in await refused(b, forged)
        for empty in (none, f"{header}.{payload}.AAAA"):
            assert "not valid" in await refused(b, empty)


async def test_keys_are_replaced_while_the_broker_runs(tmp_path, issuer, monkeypatch):
    """One that is new is fetched when a token has it, but not for each such token."""
    async with asking(tmp_path, issuer) as b:
        issuer.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
        assert "has no key 'k2'" in await refused(b, issuer.token(key="k2", kid="k2"))
        asked = issuer.asked
        monkeypatch.setattr(oidc, "SELDOM_S", 0.0)
        with pytest.raises(UnavailableError, match="are being fetched; retry"):
            async with client(b, issuer.token(key="k2", kid="k2")):
                pass
        await until(lambda: issuer.asked > asked)
        [known] = b.control.issuers.all
        await until(lambda: "k2" in known._keys)
        async with client(b, issuer.token(key="k2", kid="k2")):
            pass


async def test_keys_are_good_for_a_day_without_the_issuer(tmp_path, issuer, monkeypatch, caplog):
    """Then nobody gets in: a key may have been withdrawn meanwhile."""
    later_s = 0.0
    runtime = replace(SYSTEM, mono_s=lambda: SYSTEM.mono_s() + later_s)
    monkeypatch.setattr(oidc, "AGAIN_S", 0.01)
    monkeypatch.setattr(oidc, "REFRESH_S", 0.01)
    async with asking(tmp_path, issuer, runtime=runtime) as b:
        issuer.away = True
        await until(lambda: "keys of issuer k8s not fetched" in caplog.text)
        async with client(b, issuer.token()):
            pass
        later_s = 86_500.0
        with pytest.raises(UnavailableError, match="are being fetched"):
            async with client(b, issuer.token()):
                pass


async def test_bad_tokens_do_not_make_the_broker_ask_again_and_again(tmp_path, issuer):
    """While the issuer is away, each of them is answered without another request to it."""
    async with asking(tmp_path, issuer) as b:
        [known] = b.control.issuers.all
        known._fetched_s -= 3_600
        asked = issuer.asked
        for _ in range(3):
            with pytest.raises(UnavailableError, match="are being fetched"):
                async with client(b, issuer.token(kid="k9")):
                    pass
        assert not known._wanted.is_set()
        assert issuer.asked == asked


async def test_keys_come_from_where_nobody_can_change_them(tmp_path, issuer, caplog):
    """What the issuer names must be https; a redirection is not followed."""
    issuer.jwks_uri = "http://example.com/keys"
    async with broker(tmp_path, **issuer.options()):
        await until(lambda: "it must be https" in caplog.text)


async def test_a_session_is_renewed_in_flight_and_ends_with_its_token(tmp_path, issuer):
    """A client shows the token that its file has by then; without another one it is sent away."""
    now = {"later_s": 0.0}
    runtime = replace(SYSTEM, wall_ns=lambda: SYSTEM.wall_ns() + int(now["later_s"] * 1e9))
    path = tmp_path / "token"
    path.write_text(issuer.token(exp=60))
    async with asking(tmp_path, issuer, runtime=runtime) as b:
        async with client(b, token_file=str(path)) as web_:
            connection = web_.connection
            path.write_text(issuer.token(exp=6_000))
            await web_.ask(await proof(Security(token_file=str(path))))
            [served] = b.connections._open
            assert served.session.until_s > now_s() + 5_000
            now["later_s"] = 600.0
            with pytest.raises(Exception, match="may not"):
                await web_.ask(m.ListUsers())
            now["later_s"] = 7_000.0
            await until(lambda: connection.closed)
            with pytest.raises(UnavailableError, match="certificate or token has expired"):
                await web_.ask(m.ListUsers())
        assert "has expired" in await refused(b, path.read_text())


@pytest.mark.parametrize(
    ("claims", "said"),
    [({"sub": "root"}, "not of the client"), ({"exp": -60}, "has expired")],
)
async def test_a_renewal_is_of_the_same_client(tmp_path, issuer, claims, said):
    """A token of somebody else, or one that has expired, ends the connection."""
    async with asking(tmp_path, issuer) as b, client(b, issuer.token()) as web_:
        step = m.Authenticate(mechanism="TOKEN", data=issuer.token(**claims).encode())
        with pytest.raises(UnavailableError, match=said):
            await web_.ask(step)


async def test_the_client_renews_by_itself(tmp_path, issuer):
    """Before the token ends, as often as that is; what is asked meanwhile is answered."""
    path = tmp_path / "token"
    path.write_text(issuer.token(exp=-28))  # with leeway: a second or two
    async with asking(tmp_path, issuer) as b, client(b, token_file=str(path)) as web_:
        path.write_text(issuer.token())
        [served] = b.connections._open
        while served.session.until_s < now_s() + 500:
            await web_.ask(m.Metadata())
            await asyncio.sleep(0)
        assert not web_.connection.closed
