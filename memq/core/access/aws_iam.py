"""Who an AWS identity is: a question that it signs, and has somebody else ask.

The question is `sts:GetCallerIdentity`, "who am I": a client signs it (AWS Signature Version 4), a
broker sends it to AWS, and AWS answers whose signature it is. Nothing else can be asked: both sides
make the same request, and a proof has only those values of it that a broker cannot know. A
signature over anything else, such as another action, host or audience, is wrong for AWS.

The audience is in a signed header, so a proof for one cluster is none for another.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from memq.errors import UnauthorizedError

MECHANISM = "AWS-IAM"
BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
AUDIENCE = "X-Memq-Audience"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

_SESSION = re.compile(r"\A(arn:[a-z-]+:)sts(::[0-9]{12}:)assumed-role/([^/]+)/[^/]+\Z")
_USER_OR_ROLE = re.compile(r"arn:[a-z-]+:iam::([0-9]{12}):(user|role)/[A-Za-z0-9_+=,.@/-]{1,200}")


class Proof(Struct, frozen=True):
    """What of a signed question only its client knows; as JSON it is the data of `Authenticate`.

    Attributes:
        audience: whom it is for.
        region: of AWS, where it is to be asked.
        access_key: names the key.
        date: when it was signed, as AWS writes it.
        signature: in hexadecimal digits.
        session_token: of credentials that end.
    """

    audience: str
    region: str
    access_key: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,128}\Z")]
    date: Annotated[str, Meta(pattern=r"\A[0-9]{8}T[0-9]{6}Z\Z")]
    signature: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    session_token: Annotated[str, Meta(pattern=r"\A[!-~]{0,8192}\Z")] = ""

    def headers(self) -> dict[str, str]:
        """Return the headers of the request that was signed."""
        found = FORM | {AUDIENCE: self.audience, "X-Amz-Date": self.date}
        if self.session_token:
            found["X-Amz-Security-Token"] = self.session_token
        signed = ";".join(sorted(["host", *map(str.lower, found)]))
        scope = f"{self.access_key}/{self.date[:8]}/{self.region}/sts/aws4_request"
        shown = f"Credential={scope}, SignedHeaders={signed}, Signature={self.signature}"
        return found | {"Authorization": f"AWS4-HMAC-SHA256 {shown}"}


def sts_url(region: str, endpoint: str) -> str:
    """Return where AWS is asked: in a region, or at an endpoint if it is not empty."""
    china = ".cn" if region.startswith("cn-") else ""
    return f"{endpoint or f'https://sts.{region}.amazonaws.com{china}'}".rstrip("/") + "/"


def aws_principal(arn: str) -> tuple[str, str]:
    """Return who an ARN is, and the account: `User:` with the ARN in IAM of the user or role.

    A session of a role is the role, so that one rule is about all sessions.

    Raises:
        UnauthorizedError: it is neither user nor role, such as the root of an account.
    """
    match = _USER_OR_ROLE.fullmatch(_SESSION.sub(r"\1iam\2role/\3", arn))
    if match is None:
        raise UnauthorizedError(f"{arn[:300]!r} is no user or role of IAM")
    return f"User:{match[0]}", match[1]
