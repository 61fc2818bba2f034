"""Folders and small files where Spark is elsewhere, and reached by Spark Connect.

A session of Spark Connect has no JVM in this process, so Hadoop's file systems (`folders`) are out
of reach. This process renames folders and writes the manifest by pyarrow: it must reach the place
of the output as Spark does, under the same name, with credentials of its own. A rename is one on
file systems; object stores copy each file, as Hadoop does there.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyarrow import ArrowInvalid, ArrowNotImplementedError
from pyarrow import fs as arrow_fs

from memq.errors import ConfigError, StorageError
from memq.runtime.files import make_folders, replace_durably
from memq.spark.folders import Folders, is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

_AS_ARROW = {"s3a": "s3", "s3n": "s3"}  # by the scheme that Spark knows
_OBJECT_STORES = ("s3", "gcs", "abfs")


def folders_of(spark: SparkSession) -> Folders:
    """The files of a job, as this process reaches them."""
    return ClientFolders() if is_remote(spark) else Folders(spark)


class ClientFolders(Folders):
    """Files as this process reaches them."""

    def __init__(self) -> None:
        """Nothing is needed of the session."""

    def names(self, folder: str) -> list[str]:
        """Names of what is in a folder, sorted; none where it does not exist."""
        with _explained(f"list {folder}"):
            files, path = _open(folder)
            selector = arrow_fs.FileSelector(path, allow_not_found=True)
            return sorted(each.base_name for each in files.get_file_info(selector))

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        with _explained(f"look for {path}"):
            files, target = _open(path)
            return bool(files.get_file_info(target).type != arrow_fs.FileType.NotFound)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all in it, if it exists."""
        with _explained(f"delete {path}"):
            files, target = _open(path)
            match files.get_file_info(target).type:
                case arrow_fs.FileType.Directory:
                    files.delete_dir(target)
                case arrow_fs.FileType.NotFound:
                    pass
                case _:
                    files.delete_file(target)

    def read(self, path: str) -> bytes:
        """The bytes of a small file."""
        with _explained(f"read {path}"):
            files, target = _open(path)
            with files.open_input_stream(target) as stream:
                return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        """Write a small file: it is there whole, or not at all."""
        with _explained(f"write {path}"):
            files, target = _open(path)
            if files.type_name == "local":
                make_folders(Path(target).parent)
                replace_durably(Path(target), data)
                return
            place = PurePosixPath(target)
            direct = files.type_name in _OBJECT_STORES  # where an object appears when it is whole
            hidden = target if direct else str(place.with_name(f".{place.name}.tmp"))
            files.create_dir(str(place.parent), recursive=True)
            with files.open_output_stream(hidden) as stream:
                stream.write(data)
            if not direct:
                files.move(hidden, target)

    def rename(self, old: str, new: str) -> None:
        """Give a folder another name, which nothing has."""
        with _explained(f"rename {old}"):
            files, source = _open(old)
            target = _open(new)[1]
            if files.type_name in _OBJECT_STORES:
                _copy(files, source, target)
                files.delete_dir(source)
            else:
                files.move(source, target)


def _copy(files: FileSystem, source: str, target: str) -> None:
    for each in files.get_file_info(arrow_fs.FileSelector(source, recursive=True)):
        if each.type == arrow_fs.FileType.File:
            files.copy_file(each.path, f"{target}{each.path.removeprefix(source)}")


def _open(path: str) -> tuple[FileSystem, str]:
    """The file system of a path or URI, and its name there."""
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        return arrow_fs.LocalFileSystem(), path
    if scheme == "file":  # Hadoop writes file:/a or file:///a
        return arrow_fs.LocalFileSystem(), f"/{rest.lstrip('/')}"
    place, slash, name = rest.removeprefix("//").partition("/")
    name, mark, options = name.partition("?")  # Hadoop takes a name as it is, pyarrow decodes it
    uri = f"{_AS_ARROW.get(scheme, scheme)}://{place}{slash}{quote(name)}{mark}{options}"
    files, name = arrow_fs.FileSystem.from_uri(uri)
    return files, str(name)


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    try:
        yield
    except (ArrowInvalid, ArrowNotImplementedError) as exc:  # of the URI
        raise ConfigError(
            f"cannot {doing}: {exc}. With Spark Connect the program itself reaches the output, by "
            "pyarrow, which knows no such place"
        ) from exc
    except OSError as exc:
        raise StorageError(f"cannot {doing}: {exc}") from exc
