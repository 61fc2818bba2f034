"""Sessions of a server that is as strict as AWS."""

import json
import os
import re
import socket

import pytest

from memq.errors import ConfigError, UnavailableError
from memq.storage.sts import open_sts, session_name
from tests.harness.services.signed_s3 import ROLE, SignedS3, allows

POLICY = {"Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:x"}]}


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """The server, and nothing in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with SignedS3(tmp_path) as server:
        yield server


def test_a_session_has_a_name_and_a_policy(s3):
    """Options with any spelling do; a name is cut and cleaned as STS wants it."""
    options = {f"AWS_{name}".upper(): value for name, value in s3.owner.items()}
    new_session = open_sts(ROLE, s3.endpoint, options)
    keys, ends_s = new_session("memq-k8s:système/" + "x" * 99, POLICY, 900)
    assert {*keys} == {"access_key_id", "secret_access_key", "session_token"}
    [name] = s3.sessions
    assert name.startswith("memq-k8s-syst-me-xxx")
    made = s3._identities[keys["access_key_id"]]
    assert made.policies[1] == POLICY
    assert made.ends_s == pytest.approx(ends_s)


def test_what_it_finds_in_the_environment_will_do(s3, monkeypatch):
    """Without options, endpoint, keys and region are those of the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3.endpoint)
    monkeypatch.setenv("AWS_REGION", s3.place["region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    open_sts(ROLE, "", {})("memq-x", POLICY, 900)
    assert s3.sessions == {"memq-x": 1}


@pytest.mark.parametrize(
    ("asker", "wanted", "said"),
    [
        (("arn:aws:iam::1:role/other", {}), (POLICY, 900), "AccessDenied"),
        ((ROLE, {"secret_access_key": "x"}), (POLICY, 900), "SignatureDoesNotMatch"),
        ((ROLE, {"access_key_id": "x"}), (POLICY, 900), "InvalidAccessKeyId"),
        ((ROLE, {}), ({"x": "y" * 2_048}, 900), "PackedPolicyTooLarge"),
        ((ROLE, {}), (POLICY, 43_201), "ValidationError"),
    ],
)
def test_a_refusal_is_no_matter_of_time(s3, caplog, asker, wanted, said):
    """Its error has the code of STS, the log all its words and the role; it is not retriable."""
    role, more = asker
    new_session = open_sts(role, s3.endpoint, s3.owner | more)
    with pytest.raises(ConfigError, match=rf"gives the broker no session: {said}; see") as told:
        new_session("memq-x", *wanted)
    assert "arn:" not in str(told.value)
    assert re.search(rf"no session of {role} for memq-x: .*{said}", caplog.text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("memq-k8s:etl", "memq-k8s-etl"),
        ("memq-" + "x" * 59 + "1", "memq-" + "x" * 59 + "2"),
        ("memq-ü", "memq-ö"),
    ],
)
def test_no_two_principals_have_one_name_at_aws(one, other):
    """A name that AWS does not take as it is has a hash of it, and every name is one for AWS."""
    names = {session_name(one), session_name(other)}
    assert len(names) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_+=,.@-]{2,64}", name) for name in names)
    assert session_name("memq-etl") == "memq-etl"


def test_an_sts_that_is_away_may_come_back(s3):
    """No answer, and 503, are retriable."""
    s3.sts_fails = True
    with pytest.raises(UnavailableError, match="ServiceUnavailable"):
        open_sts(ROLE, s3.endpoint, s3.owner)("memq-x", POLICY, 900)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(UnavailableError, match="EndpointConnectionError"):
        open_sts(ROLE, endpoint, s3.owner)("memq-x", POLICY, 900)
    with pytest.raises(UnavailableError, match="NoCredentialsError"):
        open_sts(ROLE, s3.endpoint, s3.place)("memq-x", POLICY, 900)


def test_options_that_boto3_refuses_are_named_at_the_start(s3):
    """A profile that is not there is an error before anybody asks."""
    with pytest.raises(ConfigError, match=r"credentials_role = .*the-one"):
        open_sts(ROLE, "", {"profile": "the-one"})


def test_the_server_judges_as_iam_does():
    """A denial wins, a star may be anything, and a condition holds only where it has a value."""
    allow = {"Effect": "Allow", "Action": "s3:Get*", "Resource": "arn:aws:s3:::b/??/c/*"}
    deny = {"Effect": "Deny", "Action": "s3:GetObject", "Resource": ["x", "arn:*/secret/*"]}
    listing = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::b"}
    listing["Condition"] = {"StringLike": {"s3:prefix": "a/*"}}
    policy = json.loads(json.dumps({"Statement": [allow, deny, listing]}))
    for action, resource, prefix, may in (
        ("s3:GetObject", "b/00/c/k", None, True),
        ("s3:GetObject", "b/000/c/k", None, False),
        ("s3:GetObject", "b/00/c/secret/k", None, False),
        ("s3:PutObject", "b/00/c/k", None, False),
        ("s3:ListBucket", "b", "a/x", True),
        ("s3:ListBucket", "b", "b/x", False),
        ("s3:ListBucket", "b", None, False),
    ):
        assert allows(policy, action, f"arn:aws:s3:::{resource}", prefix) is may
