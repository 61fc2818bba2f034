"""What of a signed question is whose, and whom an answer names."""

import pytest

from memq.core.access.aws_iam import Proof, aws_principal, sts_url
from memq.errors import UnauthorizedError

ACCOUNT = "123456789012"


@pytest.mark.parametrize(
    ("arn", "principal"),
    [
        (f"arn:aws:iam::{ACCOUNT}:user/ann", f"User:arn:aws:iam::{ACCOUNT}:user/ann"),
        (f"arn:aws:iam::{ACCOUNT}:user/a/b/ann", f"User:arn:aws:iam::{ACCOUNT}:user/a/b/ann"),
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/etl/run-7", f"User:arn:aws:iam::{ACCOUNT}:role/etl"),
        (
            f"arn:aws-cn:sts::{ACCOUNT}:assumed-role/e@x/s",
            f"User:arn:aws-cn:iam::{ACCOUNT}:role/e@x",
        ),
    ],
)
def test_users_and_roles_are_principals(arn, principal):
    """A role is one, whatever the name of its session."""
    assert aws_principal(arn) == (principal, ACCOUNT)


@pytest.mark.parametrize(
    "arn",
    [
        f"arn:aws:iam::{ACCOUNT}:root",
        f"arn:aws:sts::{ACCOUNT}:federated-user/ann",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/etl",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/etl/a/b",
        f"arn:aws:sts::{ACCOUNT}:user/ann",
        f"arn:aws:iam::{ACCOUNT}:assumed-role/etl/s",
        f"arn:aws:iam::{ACCOUNT}:user/",
        f"arn:aws:iam::{ACCOUNT}:user/ann\n",
        f"arn:aws:iam::{ACCOUNT}:user/{'a' * 201}",
        f"arn:aws:iam::{ACCOUNT}:user/\u00e4",
        "arn:aws:iam::12345678901:user/ann",
        "",
    ],
)
def test_what_else_has_an_arn_is_nobody(arn):
    """The root of an account, federated users, and what AWS does not say."""
    with pytest.raises(UnauthorizedError, match="is no user or role of IAM"):
        aws_principal(arn)


@pytest.mark.parametrize(
    ("region", "endpoint", "url"),
    [
        ("eu-west-1", "", "https://sts.eu-west-1.amazonaws.com/"),
        ("cn-north-1", "", "https://sts.cn-north-1.amazonaws.com.cn/"),
        ("eu-west-1", "https://sts.example/", "https://sts.example/"),
    ],
)
def test_aws_is_asked_in_a_region_or_at_an_endpoint(region, endpoint, url):
    """Both sides name the same host, because it is signed."""
    assert sts_url(region, endpoint) == url


def test_the_headers_that_are_there_are_signed():
    """All of them, with the token of a session where there is one."""
    proof = Proof("prod", "eu-west-1", "AKID", "20260102T030405Z", "0" * 64)
    headers = proof.headers()
    signed = headers["Authorization"].split("SignedHeaders=")[1].split(",")[0]
    assert signed == "content-type;host;x-amz-date;x-memq-audience"
    assert "Credential=AKID/20260102/eu-west-1/sts/aws4_request" in headers["Authorization"]
    with_token = Proof("prod", "eu-west-1", "AKID", "20260102T030405Z", "0" * 64, "t").headers()
    assert "x-amz-security-token;" in with_token["Authorization"]
    assert with_token["X-Amz-Security-Token"] == "t"
