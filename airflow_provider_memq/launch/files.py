"""Small files wherever Spark writes them, from a task: manifests, results and tables.

Spark names an object `s3a://bucket/key`. Here it is read and written by Airflow's own `S3Hook`,
which the extra `amazon` brings: endpoint and credentials are those of an Airflow connection, or
else what boto3 finds by itself (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, a profile, a role).
Anything else is opened as an `ObjectStoragePath`, by the provider that knows its scheme.

Two things must not be confused: a file that *is not there*, which is None, and a file
that *cannot be read*, which is an error. Taking the second for the first would run a job again that
has done its work.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import ObjectStoragePath

from airflow_provider_memq.aws import s3_hook
from memq.errors import ConfigError, StorageError
from memq.runtime.files import make_folders, replace_durably

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_AWS_CONN_ID = "aws_default"
S3_SCHEMES = ("s3", "s3a", "s3n")  # as Hadoop and others call it
_NO_OBJECT = ("NoSuchKey", "404")  # a missing bucket is an error: nothing can be written there


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI in small letters; empty for a path."""
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def read_if_any(uri: str, aws_conn_id: str | None = DEFAULT_AWS_CONN_ID) -> bytes | None:
    """Read a file; None when the storage says that there is none.

    Args:
        uri: path or URI.
        aws_conn_id: connection for S3; None for what boto3 finds by itself.

    Raises:
        StorageError: it cannot be read: no permission, no such bucket, no answer.
        ConfigError: nothing here can read such a URI.
    """
    with _explained("read", uri):
        if scheme_of(uri) in S3_SCHEMES:
            return _read_object(uri, aws_conn_id)
        try:
            data: bytes = ObjectStoragePath(uri).read_bytes()
        except FileNotFoundError:
            return None
        return data


def names_in(
    folder: str, aws_conn_id: str | None = DEFAULT_AWS_CONN_ID, *, after: str = ""
) -> list[str]:
    """Names of the files in a folder, sorted; none where it is not there. Where storage has folders
    as S3 has none, their names are among them.

    Args:
        folder: path or URI.
        aws_conn_id: connection for S3; None for what boto3 finds by itself.
        after: only names that sort after this text.

    Raises:
        StorageError: it cannot be listed: no permission, no such bucket, no answer.
        ConfigError: nothing here can list such a URI.
    """
    with _explained("list", folder):
        if scheme_of(folder) in S3_SCHEMES:
            bucket, prefix = _parts(f"{folder}/")
            pages = _client(aws_conn_id).get_paginator("list_objects_v2")
            asked = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}
            found = pages.paginate(**asked, StartAfter=prefix + after)
            keys = (each["Key"] for page in found for each in page.get("Contents", ()))
            return sorted(key.removeprefix(prefix) for key in keys)
        try:
            names = (each.name for each in ObjectStoragePath(folder).iterdir())
            return sorted(each for each in names if each > after)
        except FileNotFoundError:
            return []


def read_end(uri: str, size: int, aws_conn_id: str | None = DEFAULT_AWS_CONN_ID) -> bytes:
    """Read the last bytes of a file, or all of it when it is no larger.

    Args:
        uri: path or URI.
        size: bytes.
        aws_conn_id: connection for S3; None for what boto3 finds by itself.

    Raises:
        StorageError: it cannot be read, or is not there.
        ConfigError: nothing here can read such a URI.
    """
    with _explained("read", uri):
        if scheme_of(uri) in S3_SCHEMES:
            bucket, key = _parts(uri)
            got = _client(aws_conn_id).get_object(Bucket=bucket, Key=key, Range=f"bytes=-{size}")
            data: bytes = got["Body"].read()
            return data
        with ObjectStoragePath(uri).open("rb") as file:  # type: ignore[no-untyped-call]
            file.seek(max(0, file.seek(0, io.SEEK_END) - size))
            end: bytes = file.read()
            return end


def write(uri: str, data: bytes, aws_conn_id: str | None = DEFAULT_AWS_CONN_ID) -> None:
    """Write a file, in place of another one; folders on the way to it are made.

    Raises:
        StorageError: it cannot be written.
        ConfigError: nothing here can write such a URI.
    """
    with _explained("write", uri):
        if scheme_of(uri) in S3_SCHEMES:
            bucket, key = _parts(uri)
            _client(aws_conn_id).put_object(Bucket=bucket, Key=key, Body=data)
            return
        path = ObjectStoragePath(uri)
        if scheme_of(uri) in ("", "file"):  # where a file is there before it is whole
            local = Path(path.path)
            make_folders(local.parent)
            replace_durably(local, data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def remove(uri: str, aws_conn_id: str | None = DEFAULT_AWS_CONN_ID) -> None:
    """Remove a file, if there is one.

    Raises:
        StorageError: it cannot be removed.
        ConfigError: nothing here knows such a URI.
    """
    with _explained("remove", uri):
        if scheme_of(uri) in S3_SCHEMES:
            bucket, key = _parts(uri)
            _client(aws_conn_id).delete_object(Bucket=bucket, Key=key)
            return
        ObjectStoragePath(uri).unlink(missing_ok=True)


def _read_object(uri: str, aws_conn_id: str | None) -> bytes | None:
    from botocore.exceptions import ClientError  # noqa: PLC0415

    bucket, key = _parts(uri)
    try:
        data: bytes = _client(aws_conn_id).get_object(Bucket=bucket, Key=key)["Body"].read()
    except ClientError as exc:
        if exc.response["Error"]["Code"] in _NO_OBJECT:
            return None
        raise
    return data


def _client(aws_conn_id: str | None) -> Any:
    return s3_hook(aws_conn_id).get_conn()


def _parts(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.partition("://")[2].partition("/")
    if not bucket or not key:
        raise ConfigError(f"{uri!r} names no object; write it like s3a://bucket/folder/file")
    return bucket, key


@contextmanager
def _explained(doing: str, uri: str) -> Iterator[None]:
    """Turn what storages raise into errors that say what to do; each raises others."""
    try:
        yield
    except (ConfigError, StorageError):
        raise
    except (ImportError, ValueError) as exc:  # of a library, or of the scheme's provider
        raise ConfigError(
            f"cannot {doing} {uri}: {exc}. This Airflow has nothing that opens "
            f"{scheme_of(uri) or 'such'!r} URIs: install the library that it names, or the "
            "provider of that storage, where tasks run; S3 needs nothing more"
        ) from exc
    except Exception as exc:  # each storage's library has errors of its own
        raise StorageError(
            f"cannot {doing} {uri}: {type(exc).__name__}: {exc}. Whether it is there is not known. "
            "Make sure that the task may read and write there; S3 says 403 instead of 404 to who "
            "may not list the bucket (s3:ListBucket). Credentials and endpoint are those of the "
            "connection aws_conn_id, or of the environment"
        ) from exc
