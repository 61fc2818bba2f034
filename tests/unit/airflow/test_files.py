"""Small files wherever Spark writes them: what is missing, and what cannot be read."""

import json

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from airflow_provider_memq.launch import files
from memq.errors import ConfigError, StorageError


@pytest.fixture(autouse=True)
def lake(aws, monkeypatch):
    """A client of S3, where the bucket `lake` is."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    return client


@pytest.mark.parametrize("place", ["s3a://lake", "path"])
def test_a_file_is_written_read_and_removed(tmp_path, place):
    """In S3, and on this machine, in folders that are made on the way."""
    path = f"{tmp_path if place == 'path' else place}/a/b.json"
    assert files.read_if_any(path) is None

    files.write(path, b"one")
    files.write(path, b"0123456789")

    assert files.read_if_any(path) == b"0123456789"
    assert [files.read_end(path, size) for size in (3, 10, 99)] == [b"789", *[b"0123456789"] * 2]
    assert files.names_in(path.removesuffix("/b.json")) == ["b.json"]
    files.remove(path)
    files.remove(path)
    assert files.read_if_any(path) is None
    with pytest.raises(StorageError, match=r"cannot read .*/b\.json"):
        files.read_end(path, 9)


def test_objects_of_a_folder_are_listed(lake):
    """However many there are, without those of other folders that begin alike."""
    names = [f"{n:02d}.json" for n in range(25)]  # lists come ten keys at a time
    for name in (*(f"partition=1/{each}" for each in names), "partition=10/x.json"):
        lake.put_object(Bucket="lake", Key=f"m/{name}")

    for after, found in (("", names), ("08", names[8:]), ("08.json", names[9:])):
        assert files.names_in("s3a://lake/m/partition=1", after=after) == found
    assert files.names_in("s3a://lake/m") == []


@pytest.mark.parametrize("scheme", ["s3", "s3n"])
def test_a_connection_says_where_s3_is(lake, monkeypatch, scheme):
    """Its endpoint comes before that of the environment, whatever Hadoop calls S3."""
    connection = {"conn_type": "aws", "login": "id", "password": "s"}
    connection["extra"] = {"endpoint_url": "https://s3.us-east-1.amazonaws.com"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    lake.put_object(Bucket="lake", Key="m.json", Body=b"{}")

    assert files.read_if_any(f"{scheme}://lake/m.json", "lake") == b"{}"


@pytest.mark.parametrize("code", ["AccessDenied", "NoSuchBucket"])
def test_what_cannot_be_read_is_not_missing(monkeypatch, code):
    """Only a storage that says "not found" makes a file missing; all else is an error."""

    def refuse(_, operation, __):
        raise ClientError({"Error": {"Code": code}}, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    for do in (
        files.read_if_any,
        files.remove,
        lambda uri: files.write(uri, b"x"),
        lambda uri: files.read_end(uri, 9),
    ):
        with pytest.raises(StorageError, match=rf"s3a://lake/m.json: .*{code}"):
            do("s3a://lake/m.json")
    with pytest.raises(StorageError, match=code):
        files.names_in("s3a://lake/m")


def test_files_of_this_machine(tmp_path):
    """A path may be a URI; a folder in the place of a file is an error, and none has no names."""
    (tmp_path / "b.json").write_bytes(b"x")

    assert files.read_if_any(f"file://{tmp_path}/b.json") == b"x"
    assert files.names_in(str(tmp_path), after="b") == ["b.json"]
    assert files.names_in(str(tmp_path), after="b.json") == []
    assert files.names_in(str(tmp_path / "none")) == []
    with pytest.raises(StorageError, match="IsADirectoryError"):
        files.read_if_any(str(tmp_path))


@pytest.mark.parametrize("uri", ["gs://lake/m.json", "nonsense://lake/m.json", "s3a://lake"])
def test_a_uri_that_nothing_here_opens(uri):
    """A library that is not installed, and a URI that names no object, are errors of settings."""
    with pytest.raises(ConfigError, match=uri):
        files.read_if_any(uri)
