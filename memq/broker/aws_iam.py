"""Asks AWS who a client is, by the question that it has signed (`memq.core.access.aws_iam`).

It is asked at the host of a region, or the endpoint, that the configuration names; of the client
come only the checked values of a `Proof`. Nobody can prove it while AWS is away: then clients are
told to retry, and who is known stays known until the session ends.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from memq.broker.oidc import LEEWAY_S, read_answer
from memq.core.access.aws_iam import BODY, Proof, aws_principal, sts_url
from memq.core.decoding import UNDECODABLE
from memq.errors import UnauthorizedError, UnavailableError

if TYPE_CHECKING:
    from memq.broker.config import AwsIamConfig
    from memq.runtime.system import Runtime

GOOD_FOR_S = 60.0  # a signature; AWS itself takes it for some minutes
SESSION_S = 900.0  # who was deleted in AWS is not asked again before
STS_S = 4.0  # less than handshake_timeout, so that the client is told
MAX_BYTES = 16 << 10  # of an answer
_NO_ANSWER = (*UNDECODABLE, aiohttp.ClientError, OSError, ValueError, LookupError, TypeError)


class AwsIam:
    """Knows the users and roles of some accounts.

    Args:
        config: of it.
        runtime: clocks.
    """

    def __init__(self, config: AwsIamConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self._http: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<AwsIam {self._config.audience}>"

    async def run(self) -> None:
        """Keep connections to AWS, until it is cancelled. They share one look-up of the host."""
        timeout = aiohttp.ClientTimeout(total=STS_S)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._http:
            await asyncio.Event().wait()

    async def identify(self, data: bytes) -> tuple[str, float]:
        """Return who a client is, and until when, in seconds since 1970.

        Raises:
            UnauthorizedError: the broker or AWS refuses it.
            UnavailableError: AWS does not answer now.
        """
        config, now_s = self._config, self._runtime.wall_ms() / 1000
        try:
            proof = msgspec.json.decode(data, type=Proof)
            age_s = now_s - datetime.strptime(f"{proof.date}+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
        except (*UNDECODABLE, ValueError) as exc:
            raise UnauthorizedError(f"that proves no AWS identity: {exc}") from exc
        if not -LEEWAY_S <= age_s <= GOOD_FOR_S + LEEWAY_S:
            raise UnauthorizedError(f"the AWS signature is {age_s:.0f} s old: set the clocks")
        if proof.audience != config.audience or proof.region not in config.regions:
            raise UnauthorizedError(
                f"the broker has another audience than aws_iam = {proof.audience[:100]!r}, or not "
                f"the AWS region {proof.region[:100]!r}: correct aws_iam or AWS_DEFAULT_REGION"
            )
        principal, account = aws_principal(await self._ask(proof))
        if account not in config.accounts:
            raise UnauthorizedError(f"the broker lets in nobody of AWS account {account}")
        return principal, now_s + SESSION_S

    async def _ask(self, proof: Proof) -> str:
        """Return the ARN of who has signed.

        Raises:
            UnauthorizedError: AWS says that it is nobody.
            UnavailableError: it says nothing.
        """
        http, url = self._http, sts_url(proof.region, self._config.endpoint)
        if http is None or http.closed:
            raise UnavailableError("the broker starts or stops; retry")
        headers = proof.headers() | {"Accept": "application/json", "Accept-Encoding": "identity"}
        try:
            async with http.post(url, data=BODY, headers=headers, allow_redirects=False) as answer:
                content = await read_answer(answer, MAX_BYTES)
            if answer.status not in (200, 400, 403):
                raise ValueError(f"HTTP status {answer.status}")
            found: Any = msgspec.json.decode(content)
            if answer.status == 200:
                return str(found["GetCallerIdentityResponse"]["GetCallerIdentityResult"]["Arn"])
            code = str(found["Error"]["Code"])[:100]
            if code.startswith(("Throttl", "RequestLimit")):
                raise ValueError(code)
        except _NO_ANSWER as exc:
            raise UnavailableError(f"AWS does not say now who this is; retry: {exc!r}") from exc
        raise UnauthorizedError(f"AWS refused the signature: {code!r}")
