"""What a broker's configuration refuses, and what of it wins."""

import re

import pytest

from memq.broker.config import BrokerConfig, load_file
from memq.errors import ConfigError

ROLE = "arn:aws:iam::123456789012:role/memq-readers"
ISSUER = {"issuer": "https://a", "audience": "b"}
AWS = {"audience": "memq", "accounts": "123456789012", "regions": ["eu-west-1"]}
KAFKA, STORE, ZOOKEEPER = "kafka://host:port", "s3://bucket/prefix", "zk-1:2181/memq"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_dir": ""}, "data_dir is empty"),
        ({"cluster_id": "a/b"}, "cluster_id"),
        ({"broker_id": ""}, "broker_id"),
        ({"token": "a", "token_file": "b"}, "token and token_file are both given"),
        ({"token": ["a", ""]}, "texts that are not empty"),
        ({"token": 5}, "token must be a text"),
        ({"port": 65_536}, "port"),
        ({"superusers": "admin"}, "superusers: principal 'admin': write it as User:NAME"),
        ({"superusers": "*"}, "superusers: principal ''"),
        ({"oidc": "x"}, r"oidc: write a table \[oidc.NAME\]"),
        ({"oidc": {"a": {"issuer": "https://a"}}}, "oidc.a: audience is missing"),
        ({"oidc": {"a": {"issuer": "http://a", "audience": "b"}}}, "oidc.a: .* must be https"),
        ({"oidc": {"a": ISSUER | {"keys": "http://127.0.0.1:1@a/"}}}, "oidc.a: .* must be https"),
        ({"oidc": {"a": ISSUER | {"keys": "http://[a"}}}, "oidc.a: .* must be https"),
        ({"oidc": {"a": ISSUER | {"keys": "ftp://a"}}}, "oidc.a: .* must be https"),
        ({"oidc": {"a": ISSUER, "b": ISSUER}}, "oidc.b: prefix '' and '' of oidc.a: neither"),
        (
            {"oidc": {"a": ISSUER | {"prefix": "k8s:"}, "b": ISSUER | {"prefix": "k8s:dev:"}}},
            "oidc.b",
        ),
        (
            {"oidc": {"a": ISSUER | {"prefix": "k8s:dev:"}, "b": ISSUER | {"prefix": "k8s:"}}},
            "oidc.b",
        ),
        ({"oidc": {"a": ISSUER}, "aws_iam": AWS}, "prefix '' and 'arn:' of aws_iam"),
        ({"oidc": {"a": ISSUER | {"prefix": "arn:aws:"}}, "aws_iam": AWS}, "of aws_iam"),
        ({"oidc": {"a": ISSUER | {"x": "y"}}}, "oidc.a: unknown option 'x'"),
        ({"aws_iam": "x"}, "aws_iam: expected a table of options"),
        ({"aws_iam": {}}, "aws_iam: audience, accounts and regions are needed"),
        ({"aws_iam": AWS | {"accounts": []}}, "aws_iam: audience, accounts and regions are needed"),
        ({"aws_iam": AWS | {"accounts": [1]}}, "aws_iam: accounts must be a text"),
        ({"aws_iam": AWS | {"endpoint": "http://sts"}}, "aws_iam: .* must be an https URL"),
        ({"aws_iam": AWS | {"x": "y"}}, "aws_iam: unknown option 'x'"),
        ({"certificate_principals": "RULE:x"}, "'RULE:x' is no rule; write RULE:PATTERN"),
        ({"certificate_principals": "RULE:(/x/"}, r"'RULE:\(/x/' is no pattern"),
        ({"certificate_principals": ["DEFAULT", "RULE:a/$1/"]}, r"has no group \$1"),
        ({"authentication": "maybe"}, "authentication = 'maybe': must be one of none, required"),
        ({"memory_bytes": "7MiB"}, "memory_bytes"),
        ({"log_level": "loud"}, "log_level"),
        ({"topics": ["t"]}, r"topics: write a table \[topics.NAME\]"),
        ({"topics": {"t": "x"}}, "topics.t: expected a table of options, got 'x'"),
        ({"topics": {"t": {"schema": "x"}}}, "topics.t: a schema is Arrow"),
        ({"topics": {"t": {"retention": "never"}}}, "topics.t: .*retention"),
        ({"topics": {"t/u": {}}}, "topics.t/u: "),
        ({"zookeeper": ":", "queue": KAFKA, "storage": STORE}, "no address of a ZooKeeper"),
    ],
)
def test_what_is_refused(options, said):
    """Each by its name, whatever else is right; alone none of it is looked over."""
    with pytest.raises(ConfigError, match=said):
        BrokerConfig.create(options)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"port = ", "is not TOML"), (b"\xff", "is not TOML"), (None, "cannot read configuration")],
)
def test_a_file_that_is_none(tmp_path, content, said):
    """It is named, with what is wrong."""
    path = tmp_path / "broker.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as raised:
        load_file(path)
    assert str(path) in str(raised.value)
    path.write_text('port = 1\n[topics.t]\nretention = "1d"')
    assert load_file(path) == {"port": 1, "topics": {"t": {"retention": "1d"}}}


def test_a_broker_of_a_cluster_shares_all_of_it():
    """A broker that shares ZooKeeper, but not the queue or the storage, is told what to set."""
    given = {"zookeeper": ZOOKEEPER}
    with pytest.raises(ConfigError, match="zookeeper without queue"):
        BrokerConfig.create(given | {"storage": STORE})
    with pytest.raises(ConfigError, match="zookeeper without storage"):
        BrokerConfig.create(given | {"queue": KAFKA})
    with pytest.raises(ConfigError, match="without zookeeper"):
        BrokerConfig.create({"role": "read"})
    assert BrokerConfig.create(given | {"queue": KAFKA, "storage": STORE, "role": "read"})


# -- tokens -------------------------------------------------------------------------------------


TLS = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token": "x"},
        TLS,
        {"client_auth": "optional"} | TLS,
        {"authentication": "required", "listeners": {"b": {"port": 1, "host": "10.0.0.1"}}},
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "127.1", "broker-1"])  # noqa: S104
def test_a_broker_that_lets_in_everybody_is_not_exposed(host, options):
    """Neither by itself nor by one of its listeners, and a token without TLS is read by others."""
    if "listeners" not in options:
        options = options | {"host": host}
    with pytest.raises(ConfigError, match="is reached by other machines and asks nobody"):
        BrokerConfig.create(options)
    BrokerConfig.create(options, insecure=True)


@pytest.mark.parametrize(
    "options",
    [
        {"host": "10.0.0.1", "authentication": "required"},
        {"host": "10.0.0.1", "client_auth": "required"} | TLS,
        {"host": "10.0.0.1", "token": "x"} | TLS,
        {"host": "127.0.0.1"},
        {"host": "127.9.9.9"},
        {"host": "::1"},
        {"host": "localhost"},
    ],
)
def test_a_broker_that_asks_may_be_exposed(options):
    """So may one that only this machine reaches."""
    BrokerConfig.create(options)


@pytest.mark.parametrize(
    ("role", "storage"),
    [
        ("memq-readers", "s3://bucket/root"),
        ("arn:aws:iam::1:r", "s3://bucket/root"),
        (ROLE, "gs://bucket"),
        (ROLE, ""),
        (ROLE, "s3://bucket--euw1-az1--x-s3/root"),
        (ROLE, "s3://bucket/*"),
    ],
)
def test_credentials_are_for_buckets_of_s3(role, storage):
    """Whatever no policy could tell apart is refused at the start, and both values are named."""
    said = re.escape(f"credentials_role = {role!r}, storage = {storage!r}: expected an ARN")
    with pytest.raises(ConfigError, match=said):
        BrokerConfig.create(credentials_role=role, storage=storage)


def test_credentials_are_for_those_who_say_who_they_are():
    """A broker that asks nobody would lend its bucket to all; one listener that asks is enough."""
    lends = {"credentials_role": ROLE, "storage": "s3://bucket/root"}
    for more in ({}, {"token": "x"}, {"client_auth": "required"} | TLS):
        with pytest.raises(ConfigError, match="credentials_role without authentication"):
            BrokerConfig.create(lends | more)

    asks = {"authentication": "required"}
    BrokerConfig.create(lends | asks)
    BrokerConfig.create(lends | {"listeners": {"outside": {"port": 9093} | asks}})
