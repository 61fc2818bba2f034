"""Tokens that others have signed: OpenID Connect (Core 1.0), such as those of Kubernetes' pods.

A token is a JWT (RFC 7519) of an issuer that the configuration names. Its signature must be by a
key that the issuer publishes, with an asymmetric algorithm; `iss` and `aud` must be those of the
configuration, and the time between `nbf` and `exp`. Nothing in a token says where keys are.

Keys are fetched at the start and each hour, and at most once a minute when a token has an unknown
one. While the issuer is away those before stay in use, for a day.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, NoReturn

import aiohttp
import jwt

from memq.broker.config import is_safe_url
from memq.core.access.rules import check_principal
from memq.errors import InvalidRequestError, UnauthorizedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.broker.config import IssuerConfig
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
LEEWAY_S = 30.0  # by which clocks may differ
REFRESH_S = 3_600.0
AGAIN_S = 30.0  # after a failure
SELDOM_S = 60.0  # between two fetches that tokens with unknown keys cause
KEEP_S = 86_400.0
FETCH_S = 5.0
MAX_BYTES = 1 << 20  # of an answer of the issuer
MAX_TOKEN_CHARS = 12 << 10
DISCOVERY = "/.well-known/openid-configuration"

_UNTIMED: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}  # by our own clock


class Issuer:
    """One issuer, with its keys.

    Args:
        name: in the configuration.
        config: of it.
        runtime: clocks.
    """

    def __init__(self, name: str, config: IssuerConfig, runtime: Runtime) -> None:
        self.config = config
        self._name = name
        self._runtime = runtime
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_s = self._tried_s = -KEEP_S
        self._wanted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Issuer {self._name} [{len(self._keys)} keys]>"

    def identify(self, token: str, key_id: str) -> tuple[str, float]:
        """Return whose a token is, and until when, in seconds since 1970.

        Raises:
            UnauthorizedError: it is not valid.
            UnavailableError: the issuer's keys are not known now.
        """
        config, mono_s = self.config, self._runtime.mono_s()
        age_s = mono_s - self._fetched_s
        key = self._keys.get(key_id)
        if key is None or age_s > KEEP_S:
            if mono_s - self._tried_s > SELDOM_S:
                self._wanted.set()
            if age_s > SELDOM_S:
                raise UnavailableError(f"the keys of issuer {self._name} are being fetched; retry")
            raise UnauthorizedError(f"issuer {self._name} has no key {key_id[:100]!r}")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=config.audience,
                issuer=config.issuer,
                options=_UNTIMED | {"require": ["exp", "aud", "iss"]},
            )
            begins_s, ends_s = float(claims.get("nbf", 0)), float(claims["exp"])
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as exc:
            raise UnauthorizedError(f"the token is not valid: {exc}") from exc
        now_s = self._runtime.wall_ms() / 1000
        if not begins_s - LEEWAY_S <= now_s < ends_s + LEEWAY_S:
            late = "has expired: get another" if now_s >= ends_s else "is not valid yet"
            raise UnauthorizedError(f"the token {late}; the broker's clock says {now_s:.0f}")
        return self._principal(claims), ends_s + LEEWAY_S

    def _principal(self, claims: Mapping[str, Any]) -> str:
        principal = f"User:{self.config.prefix}{claims.get(self.config.claim, '')}"
        try:
            check_principal(principal)
        except InvalidRequestError as exc:
            raise UnauthorizedError(f"claim {self.config.claim!r} of the token: {exc}") from exc
        if principal == f"User:{self.config.prefix}":
            raise UnauthorizedError(f"the token has no claim {self.config.claim!r}")
        return principal

    async def run(self) -> NoReturn:
        """Fetch keys, again and again."""
        while True:
            wait_s, self._tried_s = REFRESH_S, self._runtime.mono_s()
            try:
                async with asyncio.timeout(FETCH_S):
                    self._keys = await self._fetch()
                self._fetched_s = self._runtime.mono_s()
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, jwt.PyJWTError) as exc:
                wait_s = AGAIN_S
                log.warning(
                    "keys of issuer %s not fetched, those before stay in use: %s",
                    self._name,
                    exc or type(exc).__name__,
                )
            self._wanted.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _fetch(self) -> dict[str, jwt.PyJWK]:
        """Fetch the keys.

        Raises:
            ValueError: what comes is no set of keys.
            aiohttp.ClientError: nothing comes.
        """
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            url = self.config.keys
            if not url:
                found = await _get(session, f"{self.config.issuer.rstrip('/')}{DISCOVERY}")
                url = str(found.get("jwks_uri", ""))
                if not is_safe_url(url):
                    raise ValueError(f"jwks_uri = {url[:200]!r}: it must be https")
            keys = jwt.PyJWKSet.from_dict(await _get(session, url)).keys
        return {key.key_id: key for key in keys if key.key_id}


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Get a JSON object.

    Raises:
        ValueError: it is none.
        aiohttp.ClientError: nothing comes.
    """
    async with session.get(url, allow_redirects=False) as answer:
        found = json.loads(await read_answer(answer, MAX_BYTES))
    if not isinstance(found, dict):
        raise ValueError(f"{url} is no JSON object")  # noqa: TRY004 - a value that came
    return found


async def read_answer(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Read an answer.

    Raises:
        ValueError: it is too large.
        aiohttp.ClientError: it does not come.
    """
    content = b""
    while len(content) <= limit_bytes and (more := await answer.content.readany()):
        content += more
    if len(content) > limit_bytes:
        raise ValueError(f"{answer.url} has more than {limit_bytes} bytes")
    return content


class Issuers:
    """All issuers of a broker.

    Args:
        configs: of them, by name.
        runtime: clocks.
    """

    def __init__(self, configs: Mapping[str, IssuerConfig], runtime: Runtime) -> None:
        self.all = [Issuer(name, config, runtime) for name, config in configs.items()]

    def __repr__(self) -> str:
        return f"<Issuers {self.all}>"

    def identify(self, token: str) -> tuple[str, float] | None:
        """Return whose a token is, and until when; None when it is of no issuer.

        Raises:
            UnauthorizedError, UnavailableError: as `Issuer.identify`.
        """
        if len(token) > MAX_TOKEN_CHARS or token.count(".") != 2:
            return None
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            claimed = jwt.decode(token, options=_UNTIMED | {"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError, RecursionError):  # older PyJWT lets that pass
            return None
        for issuer in self.all:
            if claimed == issuer.config.issuer:
                return issuer.identify(token, str(key_id))
        return None
