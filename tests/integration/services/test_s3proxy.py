"""The S3-compatible server of the tests does what S3 does, as far as the tests rely on it."""

from __future__ import annotations

import time

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.harness.services.certificates import make_certificate
from tests.harness.services.jars import S3PROXY
from tests.harness.services.s3proxy import REGION, S3Proxy


@pytest.fixture(autouse=True)
def available(service_jars):
    """The server can run here; if not, all these tests are skipped."""
    service_jars.java(S3Proxy.name)
    service_jars.get(S3PROXY)


def client(server, **options):
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        region_name=REGION,
        config=Config(retries={"total_max_attempts": 1}),
        **{"aws_secret_access_key": server.secret_key} | options,
    )


def keys(s3, bucket):
    return [each["Key"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_objects_are_kept(s3_server):
    """What is put can be got, whole or in part, and is listed."""
    s3_server.make_bucket("kept")
    s3 = client(s3_server)
    s3.put_object(Bucket="kept", Key="a/b", Body=b"0123456789")
    assert s3.get_object(Bucket="kept", Key="a/b")["Body"].read() == b"0123456789"
    part = s3.get_object(Bucket="kept", Key="a/b", Range="bytes=2-4")
    assert part["Body"].read() == b"234"
    assert keys(s3, "kept") == ["a/b"]


def test_a_key_is_created_once(s3_server):
    """A PUT with If-None-Match is refused when the key is there, which keeps its object."""
    s3_server.make_bucket("once")
    s3 = client(s3_server)
    s3.put_object(Bucket="once", Key="key", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="once", Key="key", Body=b"second", IfNoneMatch="*")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert s3.get_object(Bucket="once", Key="key")["Body"].read() == b"first"


def test_signatures_are_checked(s3_server):
    """A request that is signed with another secret key is refused."""
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client(s3_server, aws_secret_access_key="another").list_buckets()


def test_headers_that_it_does_not_know_are_ignored(s3_server):
    """A PUT with tags is taken, as S3 takes it, though the tags are not kept."""
    s3_server.make_bucket("headers")
    s3 = client(s3_server)
    s3.put_object(Bucket="headers", Key="key", Body=b"x", Tagging="team=a")
    assert keys(s3, "headers") == ["key"]


def test_data_outlives_a_kill(tmp_path, service_jars):
    """After kill -9 and a start it serves the same objects at the same address."""
    with S3Proxy(tmp_path, jars=service_jars) as server:
        server.make_bucket("kept")
        s3 = client(server)
        s3.put_object(Bucket="kept", Key="key", Body=b"x")
        server.kill()
        server.start()
        assert s3.get_object(Bucket="kept", Key="key")["Body"].read() == b"x"


def test_puts_take_the_latency_that_is_asked_for(tmp_path, service_jars):
    """With a latency each PUT takes at least that long, and a GET does not."""
    with S3Proxy(tmp_path, put_latency_ms=1500, jars=service_jars) as server:
        server.make_bucket("slow")
        s3 = client(server)
        begun_s = time.monotonic()
        s3.put_object(Bucket="slow", Key="key", Body=b"x")
        put_s = time.monotonic() - begun_s
        s3.get_object(Bucket="slow", Key="key")
        assert put_s >= 1.5 > time.monotonic() - begun_s - put_s


def test_it_serves_https(tmp_path, service_jars):
    """With a keystore it serves HTTPS with the certificate in it."""
    certificate = make_certificate(tmp_path, "s3")
    with S3Proxy(
        tmp_path / "server",
        keystore=certificate.keystore,
        keystore_password=certificate.password,
        jars=service_jars,
    ) as server:
        server.make_bucket("secret")
        s3 = client(server, verify=str(certificate.pem))
        s3.put_object(Bucket="secret", Key="key", Body=b"x")
        assert server.endpoint.startswith("https://")
        assert keys(s3, "secret") == ["key"]
