"""Folders that a program of Spark Connect handles itself: on disk, and in an object store."""

from __future__ import annotations

import boto3
import pytest
from moto.server import ThreadedMotoServer

from memq.errors import ConfigError, StorageError
from memq.spark.client_folders import ClientFolders


@pytest.fixture(scope="module")
def bucket():
    """A bucket that S3's clients find by their environment."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="lake")
        yield "s3a://lake/out"
    server.stop()


@pytest.fixture(params=["path", "file", "s3a"])
def root(request, tmp_path):
    """A place of each kind, named as Spark names it."""
    if request.param == "s3a":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return f"file:{tmp_path}" if request.param == "file" else str(tmp_path)


def test_a_folder_is_replaced_whole(root):
    """The new one takes the place of the old one, with all that is in it and nothing else."""
    folders = ClientFolders()
    folders.write(f"{root}/range/old.parquet", b"old")
    folders.write(f"{root}/.new/part/a.parquet", b"a")
    folders.write(f"{root}/.new/b.parquet", b"b")

    folders.replace(f"{root}/.new", f"{root}/range", aside=f"{root}/.aside")

    assert folders.names(root) == ["range"]
    assert folders.names(f"{root}/range") == ["b.parquet", "part"]
    assert folders.read(f"{root}/range/part/a.parquet") == b"a"


def test_a_replacement_that_fails_leaves_the_old_folder_aside(root):
    """It is not deleted before the new one is in its place, which another run may have taken."""
    folders = ClientFolders()
    folders.write(f"{root}/range/old.parquet", b"old")

    with pytest.raises(StorageError, match=r"cannot rename .*/\.gone"):
        folders.replace(f"{root}/.gone", f"{root}/range", aside=f"{root}/.aside")

    assert folders.names(f"{root}/.aside") == ["old.parquet"]


def test_a_file_is_written_over_and_deleted(root):
    """A manifest takes the place of the one before; what is not there is none."""
    folders = ClientFolders()
    for data in (b"first", b"second"):
        folders.write(f"{root}/a/m.json", data)

    assert folders.read(f"{root}/a/m.json") == b"second"
    assert folders.names(f"{root}/a") == ["m.json"]
    folders.delete(f"{root}/a/m.json")
    folders.delete(f"{root}/a/m.json")
    assert not folders.exists(f"{root}/a/m.json")
    assert folders.names(f"{root}/none") == []


def test_a_place_that_nothing_opens_is_named():
    """A scheme that Spark knows and this process does not is an error that says so."""
    with pytest.raises(ConfigError, match="cannot list odd://x"):
        ClientFolders().names("odd://x")
