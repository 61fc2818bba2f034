"""Sessions of S3 that may do what a policy says: AssumeRole of AWS's STS, or of another server.

boto3 makes the request. It finds the credentials of whoever asks as AWS users have them, signs, and
knows the endpoint of each region. It takes a while to load: import this where it is needed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from memq.errors import ConfigError, UnavailableError

log = logging.getLogger(__name__)

# Makes a session: name, policy, duration in seconds. Gives options of a storage that reads by it,
# and when it ends: seconds since 1970 UTC.
NewSession = Callable[[str, Mapping[str, Any], int], tuple[dict[str, str], float]]

LIMITS = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2})
MAX_SESSION_NAME = 64
DIGEST_DIGITS = 16
KEYS = ("access_key_id", "secret_access_key", "session_token")
ANY_REGION = "us-east-1"  # for the signature, where a server of one's own asks for none


def open_sts(role: str, endpoint: str, options: Mapping[str, str]) -> NewSession:
    """Return what makes sessions that may do what a role and their own policy allow.

    It may be called from any thread, and blocks. It raises:
        ConfigError: it is refused: the role, its trust or its longest session is not right.
        UnavailableError: there was no answer, or one that may pass.

    Args:
        role: its ARN.
        endpoint: URL of the server; empty for that of the environment, or of AWS.
        options: of the storage: credentials, profile, region and `ca_certificate` are taken.

    Raises:
        ConfigError: boto3 refuses the options.
    """
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    try:
        known = {f"aws_{name}": given.get(name) for name in KEYS}
        session = boto3.Session(profile_name=given.get("profile"), **known)
        region = given.get("region") or os.environ.get("AWS_REGION") or session.region_name
        where = {"endpoint_url": endpoint or None, "verify": given.get("ca_certificate")}
        sts = session.client("sts", region or ANY_REGION, config=LIMITS, **where)
    except (BotoCoreError, ValueError) as exc:
        raise ConfigError(f"credentials_role = {role!r}: {exc}") from exc

    def new_session(
        name: str, policy: Mapping[str, Any], duration_s: int
    ) -> tuple[dict[str, str], float]:
        name = session_name(name)
        text = json.dumps(policy, separators=(",", ":"))  # up to 2,048 characters
        wanted = {"RoleArn": role, "RoleSessionName": name, "Policy": text}
        try:
            found = sts.assume_role(**wanted, DurationSeconds=duration_s)["Credentials"]
        except (BotoCoreError, ClientError) as exc:
            about = getattr(exc, "response", {}).get("ResponseMetadata", {})
            passes = about.get("HTTPStatusCode", 500) >= 500 or "Throttling" in str(exc)
            error = UnavailableError if passes else ConfigError
            log.warning("STS gives no session of %s for %s: %s", role, name, exc)
            code = getattr(exc, "response", {}).get("Error", {}).get("Code", type(exc).__name__)
            raise error(f"STS gives the broker no session: {code}; see the broker's log") from exc
        keys = (found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
        return dict(zip(KEYS, keys, strict=True)), found["Expiration"].timestamp()

    return new_session


def session_name(name: str) -> str:
    """Return a name as AWS takes it; one that has to be changed ends with a hash of what it was."""
    fits = re.sub(r"[^A-Za-z0-9_+=,.@-]", "-", name)[:MAX_SESSION_NAME]
    if fits == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{fits[: MAX_SESSION_NAME - DIGEST_DIGITS - 1]}-{digest}"
