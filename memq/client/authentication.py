"""How a client logs in: with a password, or as who it is for AWS.

By SCRAM-SHA-256 (RFC 5802, RFC 7677) the password does not leave the client. Each side proves to
the other that it knows what was made of it, so the client learns as well whether the broker does.

For AWS a client signs a question that the broker asks (`memq.core.access.aws_iam`).
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec
from scramp import ScramClient, ScramException

from memq.core.access.aws_iam import AUDIENCE, BODY, FORM, Proof, sts_url
from memq.core.access.aws_iam import MECHANISM as AWS_IAM
from memq.core.access.users import ITERATIONS
from memq.core.access.users import MECHANISM as SCRAM
from memq.core.wire.messages import Authenticate
from memq.errors import ConfigError, UnauthorizedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from memq.client.security import Security
    from memq.core.wire.messages import AuthenticateAnswer


async def authenticate(
    security: Security,
    mechanisms: Sequence[str],
    ask: Callable[[Authenticate], Awaitable[AuthenticateAnswer]],
) -> AuthenticateAnswer:
    """Log in; return the broker's last answer.

    Args:
        security: with the user and the password.
        mechanisms: that the broker takes.
        ask: sends a step, and returns the answer.

    Raises:
        UnauthorizedError: the client has nothing to log in with, or is refused; or the broker does
            not know the user's password either.
        ConfigError: the password cannot be read, or be one; or there are no AWS credentials.
        UnavailableError: there are none now.
    """
    if not (security.user or security.aws_iam):
        raise UnauthorizedError(
            "it asks who you are: give `user` and `password_file` in `security`, or `aws_iam`, a "
            "`token`, or a certificate"
        )
    if not mechanisms:
        raise UnauthorizedError(
            "it does not ask who you are, and so does not show that it knows you: leave out `user` "
            "and `aws_iam`, or use a listener with authentication"
        )
    mechanism = AWS_IAM if security.aws_iam else SCRAM
    if mechanism not in mechanisms:
        raise UnauthorizedError(
            f"it takes {', '.join(mechanisms)}, and this client has {mechanism}: upgrade the older "
            "one, or log in otherwise"
        )
    if security.aws_iam:
        return await ask(await proof(security))
    password = await asyncio.to_thread(security.secret)
    try:
        scram = ScramClient([SCRAM], security.user, password)
    except ScramException as exc:
        raise ConfigError(f"security: that cannot be a user or a password: {exc}") from exc
    first = await ask(Authenticate(mechanism=SCRAM, data=scram.get_client_first().encode()))
    try:
        scram.set_server_first(first.data.decode())
        if int(scram.iterations) < ITERATIONS:
            raise ScramException(f"it asks for {scram.iterations} iterations only")  # noqa: TRY301
        # A broker names how often to hash: a hostile one could ask for seconds of it.
        shown = await asyncio.to_thread(scram.get_client_final)
        final = await ask(Authenticate(mechanism=SCRAM, data=shown.encode()))
        scram.set_server_final(final.data.decode())
    except (ScramException, UnicodeDecodeError) as exc:
        raise UnauthorizedError(
            f"it does not know the password of user {security.user!r}, and so is no broker of "
            f"this cluster: {exc}"
        ) from exc
    return final


async def proof(security: Security) -> Authenticate:
    """Make the step that shows a client's token or AWS identity, as it is now.

    Raises:
        ConfigError, UnavailableError: there is none, or none now.
    """
    if not security.aws_iam:
        return Authenticate(mechanism="TOKEN", data=security.token().encode())
    return Authenticate(mechanism=AWS_IAM, data=await asyncio.to_thread(_prove, security.aws_iam))


def _prove(audience: str) -> bytes:
    """Return a proof of who this is for AWS, good for a minute.

    Credentials and region are those that boto3 finds by itself: of the environment, a profile, a
    web identity, a container or an instance. It may have to ask for them.

    Raises:
        ConfigError: boto3 is not installed, or finds no credentials or region.
        UnavailableError: the credentials cannot be had now.
    """
    try:  # it takes a while, and only who uses it needs it
        from botocore import auth, awsrequest, exceptions, session  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigError(f"aws_iam needs boto3: pip install 'memq[s3]' ({exc})") from exc
    try:
        aws = session.Session()
        region, found = aws.get_config_variable("region"), aws.get_credentials()
        keys = found and found.get_frozen_credentials()
    except (exceptions.BotoCoreError, exceptions.ClientError) as exc:
        raise UnavailableError(f"the AWS credentials cannot be had now: {exc}") from exc
    if not keys or not region:
        what = "region: set AWS_DEFAULT_REGION" if keys else "credentials: see `aws configure`"
        raise ConfigError(f"aws_iam: the environment has no AWS {what}")
    url = sts_url(region, os.environ.get("AWS_ENDPOINT_URL_STS", ""))
    request = awsrequest.AWSRequest("POST", url, FORM | {AUDIENCE: audience}, BODY)
    auth.SigV4Auth(keys, "sts", region).add_auth(request)
    date, shown = request.headers["X-Amz-Date"], request.headers["Authorization"]
    signature = shown.rpartition("=")[2]
    made = Proof(audience, region, keys.access_key, date, signature, keys.token or "")
    return msgspec.json.encode(made)
