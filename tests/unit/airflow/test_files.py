"""Small files wherever Spark writes them: what is missing, and what cannot be read."""

from __future__ import annotations

import json

import boto3
import pytest
from moto import mock_aws

from airflow_provider_memq import files
from memq.errors import ConfigError, StorageError
from tests.unit.airflow.s3 import s3_for

SCHEMES = ("s3", "s3a", "s3n")  # what Hadoop and others call it


@pytest.fixture
def s3(monkeypatch):
    with s3_for(monkeypatch) as server:
        yield server


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_object_that_spark_wrote_is_read(s3, scheme):
    """`s3a://` and its relatives need no library beyond what the extra brings."""
    s3.objects["/lake/clicks/m.json"] = b"{}"

    assert files.read_if_any(f"{scheme}://lake/clicks/m.json") == b"{}"
    assert s3.requests == ["GET /lake/clicks/m.json"]


def test_an_object_is_written_replaced_and_removed(s3):
    """A table that is kept in S3 is there as it was written last, and gone when it is removed."""
    uri = "s3a://lake/audit/topic=clicks/a.csv"

    files.write(uri, b"one")
    files.write(uri, b"two")

    assert files.read_if_any(uri) == b"two"
    files.remove(uri)
    files.remove(uri)
    assert files.read_if_any(uri) is None


def test_objects_of_a_folder_are_listed(monkeypatch):
    """However many there are, without those of other folders that begin alike."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    names = [f"{n:04d}.json" for n in range(1_005)]  # S3 lists a thousand at a time
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="lake")
        for key in (*(f"m/partition=1/{name}" for name in names), "m/partition=10/x.json"):
            client.put_object(Bucket="lake", Key=key, Body=b"")

        assert files.names_in("s3a://lake/m/partition=1", None) == names
        assert files.names_in("s3a://lake/m/partition=1", None, after="0998") == names[998:]
        assert files.names_in("s3a://lake/m/partition=1", None, after="0998.json") == names[999:]
        assert files.names_in("s3a://lake/m", None) == []
        with pytest.raises(StorageError, match=r"cannot list s3a://none/m: .*NoSuchBucket"):
            files.names_in("s3a://none/m", None)


@pytest.mark.parametrize("place", ["s3a://lake/m", "path"])
def test_the_end_of_a_file(tmp_path, monkeypatch, place):
    """So many bytes as were asked for, or all; a file that is not there is an error."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    folder = str(tmp_path) if place == "path" else place
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="lake")
        files.write(f"{folder}/a.parquet", b"0123456789", None)

        for size, end in ((1, b"9"), (9, b"123456789"), (10, b"0123456789"), (99, b"0123456789")):
            assert files.read_end(f"{folder}/a.parquet", size, None) == end
        with pytest.raises(StorageError, match=r"cannot read .*/b\.parquet"):
            files.read_end(f"{folder}/b.parquet", 9, None)


def test_a_connection_says_where_s3_is(s3, monkeypatch):
    """Endpoint and credentials of an Airflow connection come before those of the environment."""
    extra = {"endpoint_url": s3.url, "region_name": "eu-west-1"}
    connection = {"conn_type": "aws", "login": "id", "password": "s", "extra": extra}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    s3.objects["/lake/m.json"] = b"{}"

    assert files.read_if_any("s3a://lake/m.json", "lake") == b"{}"


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (404, "NoSuchBucket"), (503, "SlowDown"), (301, "PermanentRedirect")],
)
def test_what_cannot_be_read_is_not_missing(s3, status, code):
    """Only a storage that says "not found" makes a file missing; all else is an error."""
    s3.refused["/lake/m.json"] = (status, code)

    for do in (
        files.read_if_any,
        files.remove,
        lambda uri: files.write(uri, b"x"),
        lambda uri: files.read_end(uri, 9),
    ):
        with pytest.raises(StorageError, match=rf"s3a://lake/m.json: .*{code}"):
            do("s3a://lake/m.json")


def test_files_of_this_machine(tmp_path):
    """A path is a file, in folders that are made on the way; a folder in its place is an error."""
    path = str(tmp_path / "a" / "b.json")

    assert files.read_if_any(path) is None
    files.write(path, b"x")
    assert files.read_if_any(path) == files.read_if_any(f"file://{path}") == b"x"
    assert files.names_in(str(tmp_path / "a")) == ["b.json"]
    assert files.names_in(str(tmp_path / "a"), after="b") == ["b.json"]
    assert files.names_in(str(tmp_path / "a"), after="b.json") == []
    assert files.names_in(str(tmp_path / "b")) == []
    files.remove(path)
    assert files.read_if_any(path) is None
    with pytest.raises(StorageError, match="IsADirectoryError"):
        files.read_if_any(str(tmp_path))


@pytest.mark.parametrize("uri", ["gs://lake/m.json", "nonsense://lake/m.json", "s3a://lake"])
def test_a_uri_that_nothing_here_opens(uri):
    """A library that is not installed, and a URI that names no object, are errors of settings."""
    with pytest.raises(ConfigError, match=uri):
        files.read_if_any(uri)
