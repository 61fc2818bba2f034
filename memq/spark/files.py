"""Folders and small files where Spark writes, as this process reaches them: by pyarrow.

Spark and this process must know a place under the same name; each has credentials of its own. A
folder is replaced whole: the new one is written next to the old one under a hidden name, then the
old one is moved aside and the new one takes its place. A reader finds the whole old folder, for a
moment none, or the whole new one; never a part. (On object stores each file is copied, so there a
reader should rely on the manifest.)
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

_AS_ARROW = {"s3a": "s3", "s3n": "s3"}  # by the scheme that Spark knows
_OBJECT_STORES = ("s3", "gcs", "abfs")


def check_scheme(spark: SparkSession, path: str) -> None:
    """Refuse a path without a scheme where Spark takes it for a place of another file system.

    Args:
        spark: the session; what a server of Spark Connect takes it for cannot be asked.
        path: where Spark writes, or this process does.

    Raises:
        ConfigError: it has none, and Spark's default is not this machine.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None or ":/" in path:
        return
    configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way
    default = str(configuration.get("fs.defaultFS", "file:///")).rstrip("/")
    if not default.startswith("file:"):
        raise ConfigError(
            f"{path!r} has no scheme: for Spark it is in {default} (fs.defaultFS), for this "
            f"program on this machine. Write the whole URI, such as {default}/{path.lstrip('/')}"
        )


def names(folder: str) -> list[str]:
    """Return the names of what is in a folder, sorted; none where it does not exist."""
    with _opened(f"list {folder}", folder) as (files, path):
        found = files.get_file_info(arrow_fs.FileSelector(path, allow_not_found=True))
        return sorted(each.base_name for each in found)


def exists(path: str) -> bool:
    """Tell whether there is a file or folder."""
    with _opened(f"look for {path}", path) as (files, target):
        return bool(files.get_file_info(target).type != arrow_fs.FileType.NotFound)


def delete(path: str) -> None:
    """Delete a file, or a folder with all in it, if it exists."""
    with _opened(f"delete {path}", path) as (files, target):
        match files.get_file_info(target).type:
            case arrow_fs.FileType.Directory:
                files.delete_dir(target)
            case arrow_fs.FileType.NotFound:
                pass
            case _:
                files.delete_file(target)


def read(path: str) -> bytes:
    """Return the bytes of a small file."""
    with _opened(f"read {path}", path) as (files, target), files.open_input_stream(target) as file:
        return bytes(file.read())


def write(path: str, data: bytes) -> None:
    """Write a small file: it is there whole, or not at all."""
    with _opened(f"write {path}", path) as (files, target):
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


def rename(old: str, new: str) -> None:
    """Give a folder another name, which nothing has."""
    with _opened(f"rename {old}", old) as (files, source):
        target = _open(new)[1]
        if files.type_name not in _OBJECT_STORES:
            files.move(source, target)
            return
        for each in files.get_file_info(arrow_fs.FileSelector(source, recursive=True)):
            if each.type == arrow_fs.FileType.File:
                files.copy_file(each.path, f"{target}{each.path.removeprefix(source)}")
        files.delete_dir(source)


def discard(folder: str, aside: str) -> None:
    """Delete a folder that its owner, if it still lives, could be about to rename.

    It is moved aside first: a rename finds it whole, or not at all.

    Args:
        folder: the folder.
        aside: a name that nothing else has.

    Raises:
        StorageError: it cannot be done; its owner may have renamed it.
    """
    rename(folder, aside)
    delete(aside)


def replace(new: str, folder: str, aside: str) -> None:
    """Put a new folder in the place of another one, which may exist.

    Args:
        new: path of what takes the place.
        folder: the place.
        aside: where the old one is moved before it is deleted.

    Raises:
        StorageError: it cannot be done.
    """
    if exists(folder):
        rename(folder, aside)
    rename(new, folder)
    delete(aside)


@contextmanager
def _opened(doing: str, path: str) -> Iterator[tuple[FileSystem, str]]:
    """Give the file system of a path or URI, and its name there.

    Raises:
        ConfigError: pyarrow knows no such place.
        StorageError: what is done with it failed.
    """
    try:
        yield _open(path)
    except (ArrowInvalid, ArrowNotImplementedError) as exc:  # of the URI
        raise ConfigError(
            f"cannot {doing}: {exc}. This program reaches the output itself, by pyarrow, which "
            "knows no such place"
        ) from exc
    except OSError as exc:
        raise StorageError(f"cannot {doing}: {exc}") from exc


def _open(path: str) -> tuple[FileSystem, str]:
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        return arrow_fs.LocalFileSystem(), path
    if scheme == "file":  # Hadoop writes file:/a or file:///a
        return arrow_fs.LocalFileSystem(), f"/{rest.lstrip('/')}"
    place, slash, name = rest.removeprefix("//").partition("/")
    name, mark, options = name.partition("?")  # Hadoop takes a name as it is, pyarrow decodes it
    uri = f"{_AS_ARROW.get(scheme, scheme)}://{place}{slash}{quote(name)}{mark}{options}"
    found, name = arrow_fs.FileSystem.from_uri(uri)
    return found, str(name)
