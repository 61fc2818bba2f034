"""Folders and small files wherever Spark writes: through Hadoop's file systems.

So `file:`, `hdfs:` and `s3a:` work alike. A folder is replaced whole: the new one is written beside
the old one under a hidden name, then the old one is moved aside and the new one takes its place. A
reader finds the whole old folder, for a moment none, or the whole new one; never a part. (Object
stores rename by copying, so there a reader should rely on the manifest.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from memq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

T = TypeVar("T")

_FILE_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, with no JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class Folders:
    """Hadoop's file systems, through the JVM of a session.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 - there is no public way to Hadoop
        self._config = context._jsc.hadoopConfiguration()  # noqa: SLF001

    def __repr__(self) -> str:
        return "<Folders>"

    def names(self, folder: str) -> list[str]:
        """Names of what is in a folder, sorted; none where it does not exist."""
        files, path = self._open(folder)
        return _do(
            f"list {folder}",
            lambda: (
                sorted(str(each.getPath().getName()) for each in files.listStatus(path))
                if files.exists(path)
                else []
            ),
        )

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        files, target = self._open(path)
        return _do(f"look for {path}", lambda: bool(files.exists(target)))

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all in it, if it exists."""
        files, target = self._open(path)
        _do(f"delete {path}", lambda: files.delete(target, True))

    def discard(self, folder: str, aside: str) -> None:
        """Delete a folder that its owner, if it still lives, could be about to rename.

        It is moved aside first: a rename finds it whole, or not at all.

        Args:
            folder: the folder.
            aside: a name that nothing else has.

        Raises:
            StorageError: it cannot be done; its owner may have renamed it.
        """
        self.rename(folder, aside)
        self.delete(aside)

    def replace(self, new: str, folder: str, aside: str) -> None:
        """Put a new folder in the place of another one, which may exist.

        Args:
            new: path of what takes the place.
            folder: the place.
            aside: where the old one is moved before it is deleted.

        Raises:
            StorageError: it cannot be done.
        """
        if self.exists(folder):
            self.rename(folder, aside)
        self.rename(new, folder)
        self.delete(aside)

    def read(self, path: str) -> bytes:
        """The bytes of a small file."""
        files, target = self._open(path)

        def read() -> bytes:
            stream = files.open(target)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        return _do(f"read {path}", read)

    def write(self, path: str, data: bytes) -> None:
        """Write a small file: it is there whole, or not at all.

        Where one of that name was before, a reader may find none for a moment: not every file
        system renames onto a file.
        """
        files, target = self._open(path)
        hidden = f"{_parent(path)}.{_name(path)}.tmp"

        def write() -> None:
            files.setWriteChecksum(False)  # else the local file system puts .crc files beside it
            stream = files.create(self._path(hidden), True)
            try:
                stream.write(bytearray(data))
                stream.hsync()
            finally:
                stream.close()
            if not _renames_onto(files, self._path(hidden), target):
                files.delete(target, False)
                self.rename(hidden, path)

        _do(f"write {path}", write)

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name, which nothing has.

        Raises:
            StorageError: it cannot be done.
        """
        files, source = self._open(old)
        if not _do(f"rename {old}", lambda: bool(files.rename(source, self._path(new)))):
            raise StorageError(f"{old} could not be renamed to {new}")

    def _open(self, path: str) -> tuple[Any, Any]:
        target = self._path(path)
        return _do(f"open {path}", lambda: (target.getFileSystem(self._config), target))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


def _renames_onto(files: Any, source: Any, target: Any) -> bool:
    """Rename a file onto another one; False when the file system does not do that.

    HDFS says so by its answer, S3A by an exception.
    """
    try:
        return bool(files.rename(source, target))
    except Py4JJavaError as exc:
        if exc.java_exception.getClass().getName() != _FILE_EXISTS:
            raise
        return False


def _do(what: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except Py4JJavaError as exc:
        raise StorageError(f"cannot {what}: {exc.java_exception.getMessage()}") from exc


def _parent(path: str) -> str:
    """The folder of a path with its last slash; empty for a bare name."""
    return path[: path.rfind("/") + 1]


def _name(path: str) -> str:
    return path[path.rfind("/") + 1 :]
