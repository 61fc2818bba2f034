"""AWS's STS on this machine: it says whose signature a request has, once it has checked that."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ACCOUNT = "123456789012"
REGION = "eu-west-1"
SECRET = "secret/of+tests"  # noqa: S105 - of nobody
ACTION = {"Action": ["GetCallerIdentity"], "Version": ["2011-06-15"]}


class Key(NamedTuple):
    """An access key: whose it is, and what its owner alone knows."""

    arn: str
    secret: str = SECRET
    token: str = ""


KEYS = {
    "AKIDANN": Key(f"arn:aws:iam::{ACCOUNT}:user/ann"),
    "ASIAETL": Key(f"arn:aws:sts::{ACCOUNT}:assumed-role/etl/run-7", token="token/of+etl=="),
    "AKIDROOT": Key(f"arn:aws:iam::{ACCOUNT}:root"),
    "AKIDEVE": Key("arn:aws:iam::999999999999:user/eve"),
}
"""Keys that it knows."""


class Refused(Exception):  # noqa: N818 - as AWS says it
    """What AWS calls a refusal."""


class Sts:
    """The service.

    Attributes:
        url: where it is.
        asked: every request that came, with its body.
        instead: makes what it answers, whatever it is asked; None to do its work.
        gate: while it is shut, nothing is answered.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[web.Request, bytes]] = []
        self.instead: Callable[[], web.Response] | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Sts]:
        """Run it meanwhile."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, max_field_size=16 << 10)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.gate.set()
            await runner.cleanup()

    def environment(self, key: str) -> dict[str, str]:
        """What a client has in its environment that is to use this key here."""
        return {
            "AWS_ENDPOINT_URL_STS": self.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/none",
            "AWS_SHARED_CREDENTIALS_FILE": "/none",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": KEYS[key].secret,
            "AWS_SESSION_TOKEN": KEYS[key].token,
        }

    def table(self, audience: str) -> dict[str, str]:
        """What a broker's table `[aws_iam]` has that asks here."""
        return {
            "audience": audience, "accounts": ACCOUNT, "regions": REGION, "endpoint": self.url
        }  # fmt: skip

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked.append((request, body))
        await self.gate.wait()
        if self.instead is not None:
            return self.instead()
        try:
            arn = self._who(request, body)
        except Refused as exc:
            error = {"Code": str(exc), "Message": "as AWS says it", "Type": "Sender"}
            return web.json_response({"Error": error, "RequestId": "1"}, status=403)
        assert request.headers["Accept"] == "application/json"
        said = {"Account": arn.split(":")[4], "Arn": arn, "UserId": "AIDA"}
        answer = {"GetCallerIdentityResult": said, "ResponseMetadata": {"RequestId": "1"}}
        return web.json_response({"GetCallerIdentityResponse": answer})

    def _who(self, request: web.Request, body: bytes) -> str:
        """Return the ARN of who has signed this request, whole.

        Raises:
            Refused: nobody has.
        """
        scheme, _, said = request.headers.get("Authorization", "").partition(" ")
        parts = dict(part.strip().split("=", 1) for part in said.split(",") if "=" in part)
        if scheme != "AWS4-HMAC-SHA256" or {*parts} != {"Credential", "SignedHeaders", "Signature"}:
            raise Refused("IncompleteSignature")
        name, day, region, service, end = parts["Credential"].split("/")
        date, key = request.headers["X-Amz-Date"], KEYS.get(name)
        if key is None:
            raise Refused("InvalidClientTokenId")
        signed = parts["SignedHeaders"].split(";")
        if any(len(request.headers.getall(each, ())) != 1 for each in signed) or not (
            {"host", "x-amz-date"} <= {*signed} and date.startswith(day)
        ):
            raise Refused("IncompleteSignature")
        again = AWSRequest(
            request.method,
            f"http://{request.headers['Host']}{request.path_qs}",
            {each: request.headers[each] for each in signed if each != "host"},
            body,
        )
        again.context["timestamp"] = date
        signer = SigV4Auth(Credentials(name, key.secret), service, region)
        text = signer.string_to_sign(again, signer.canonical_request(again))
        ours = (service, region, end) == ("sts", REGION, "aws4_request")
        if not ours or signer.signature(text, again) != parts["Signature"]:
            raise Refused("SignatureDoesNotMatch")
        if request.headers.get("X-Amz-Security-Token", "") != key.token:
            raise Refused("InvalidClientTokenId")
        if parse_qs(body.decode()) != ACTION or request.path_qs != "/":
            raise Refused("InvalidAction")
        return key.arn
