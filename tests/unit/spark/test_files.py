"""Folders and small files of outputs: on disk, and in an object store."""

import boto3
import pytest
from moto.server import ThreadedMotoServer

from memq.errors import ConfigError, StorageError
from memq.spark import files


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
    files.write(f"{root}/range/old.parquet", b"old")
    files.write(f"{root}/.new/part/a.parquet", b"a")
    files.write(f"{root}/.new/b.parquet", b"b")

    files.replace(f"{root}/.new", f"{root}/range", aside=f"{root}/.aside")

    assert files.names(root) == ["range"]
    assert files.names(f"{root}/range") == ["b.parquet", "part"]
    assert files.read(f"{root}/range/part/a.parquet") == b"a"


def test_a_replacement_that_fails_leaves_the_old_folder_aside(root):
    """It is not deleted before the new one is in its place, which another run may have taken."""
    files.write(f"{root}/range/old.parquet", b"old")

    with pytest.raises(StorageError, match=r"cannot rename .*/\.gone"):
        files.replace(f"{root}/.gone", f"{root}/range", aside=f"{root}/.aside")

    assert files.names(f"{root}/.aside") == ["old.parquet"]


def test_a_file_is_written_over_and_deleted(root):
    """A manifest takes the place of the one before; what is not there is none."""
    for data in (b"first", b"second"):
        files.write(f"{root}/a/m.json", data)

    assert files.read(f"{root}/a/m.json") == b"second"
    assert files.names(f"{root}/a") == ["m.json"]
    files.delete(f"{root}/a/m.json")
    files.delete(f"{root}/a/m.json")
    assert not files.exists(f"{root}/a/m.json")
    assert files.names(f"{root}/none") == []


def test_a_place_that_nothing_opens_is_named():
    """A scheme that Spark knows and this process does not is an error that says so."""
    with pytest.raises(ConfigError, match="cannot list odd://x"):
        files.names("odd://x")
