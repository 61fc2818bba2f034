"""Small files wherever Spark writes them: what is missing, and what cannot be read."""

from __future__ import annotations

import json

import pytest

from airflow_provider_memq.launch import files
from memq.errors import ConfigError, StorageError
from tests.fakes.s3 import s3_for


@pytest.fixture
def s3(monkeypatch):
    with s3_for(monkeypatch) as server:
        yield server


@pytest.mark.parametrize("place", ["s3a://lake", "path"])
def test_a_file_is_written_read_and_removed(s3, tmp_path, place):
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


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_an_object_that_spark_wrote_is_read(s3, scheme):
    """Whatever Hadoop calls S3, no library is needed beyond what the extra brings."""
    s3.objects["/lake/clicks/m.json"] = b"{}"

    assert files.read_if_any(f"{scheme}://lake/clicks/m.json") == b"{}"


def test_objects_of_a_folder_are_listed(s3):
    """However many there are, without those of other folders that begin alike."""
    names = [f"{n:02d}.json" for n in range(25)]  # the server lists ten at a time
    s3.objects |= {f"/lake/m/partition=1/{name}": b"" for name in names}
    s3.objects["/lake/m/partition=10/x.json"] = b""

    for after, found in (("", names), ("08", names[8:]), ("08.json", names[9:])):
        assert files.names_in("s3a://lake/m/partition=1", after=after) == found
    assert files.names_in("s3a://lake/m") == []


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
    s3.refused |= dict.fromkeys(("/lake/m.json", "/lake"), (status, code))
    others = (
        files.remove,
        files.names_in,
        lambda uri: files.write(uri, b"x"),
        lambda uri: files.read_end(uri, 9),
    )

    for do in (files.read_if_any, *(others if status == 403 else ())):
        with pytest.raises(StorageError, match=rf"s3a://lake/m.json: .*{code}"):
            do("s3a://lake/m.json")


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
