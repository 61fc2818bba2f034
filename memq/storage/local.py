"""Objects as files of a local or network file system.

How a put becomes an object that is whole, durable and written once:

1. Write the bytes under a fresh name in `<root>/.tmp`, which is on the same file system.
2. fsync that file. From here on its content survives a power cut.
3. `link` it to its key. Unlike a rename a link fails when the name is taken, so no object is ever
   replaced, not even by two writers in the same instant; and a reader finds all of it or nothing.
4. fsync the key's folder, and before that the parents of folders that were made for it. From here
   on the name survives as well.
5. Remove the temporary name.

A crash before step 3 leaves only a temporary file, which `clean_temporary` removes at the next
start. A crash after it leaves a complete object that no Notification names.

A key that is taken is a success when the object there has the same bytes, because that is what a
put looks like whose answer was lost; its durability is then made sure again. Other bytes are an
error.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from memq.errors import InvalidRequestError, ObjectNotFoundError, StorageError
from memq.runtime.files import (
    explain,
    make_folders,
    opened,
    read_exactly,
    sync_folder,
    write_durably,
)
from memq.runtime.system import SYSTEM, Runtime
from memq.storage.handler import ObjectInfo, same_bytes, views_of
from memq.storage.keys import TEMPORARY_FOLDER, check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memq.storage.handler import Buffer

_MAX_REMEMBERED_FOLDERS = 1 << 16  # some MiB of names; a forgotten folder costs one more fsync


class LocalStorage:
    """A `StorageHandler` on a folder. Safe to use from many threads and processes at once.

    Args:
        root: folder of the objects; made by the first put.
        runtime: the clock for the deadline of a put, and names for temporary files.
    """

    remote = False
    requests: Mapping[str, int] = MappingProxyType({})

    def __init__(self, root: Path, *, runtime: Runtime = SYSTEM) -> None:
        # resolve() would write the target of a symbolic link into URIs, which outlive it.
        self._root = Path(os.path.abspath(root))  # noqa: PTH100
        self._temporary = self._root / TEMPORARY_FOLDER
        self._runtime = runtime
        self._durable_folders: set[Path] = set()
        # Folders of objects whose removal may not be durable; as many as threads that delete, and
        # those whose sync was refused.
        self._removing: set[Path] = set()

    def __repr__(self) -> str:
        return f"<LocalStorage {self._root} [{len(self._durable_folders)} folders known durable]>"

    def put(self, key: str, buffers: Sequence[Buffer], *, timeout_s: float) -> None:
        """Write one object from buffers in order; durable when it returns.

        A system call that has begun is not cut short, so the deadline may be overrun by one write
        or fsync; a put that fails by it leaves nothing behind.

        Raises:
            InvalidRequestError: the key is not valid.
            StorageError: the disk refused, the deadline passed, or the key holds other bytes.
        """
        path = self._path(key)
        deadline_s = self._runtime.mono_s() + timeout_s
        views = views_of(buffers)
        with self._errors("write", key):
            try:
                if path.exists() or not self._create(path, views, deadline_s):
                    self._accept_retry(path, views)
            except OSError:
                # A folder that was known may have been removed by hand: look again next time.
                self._durable_folders.clear()
                raise

    def get(self, key: str) -> Buffer:
        """Read the whole object.

        Raises:
            InvalidRequestError: the key is not valid.
            ObjectNotFoundError: there is none.
            StorageError: the disk refused, or the object shrank while it was read.
        """
        with self._reading(key) as (fd, size_bytes):
            return read_exactly(fd, 0, size_bytes)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """`length` bytes from `start`; fewer where the object ends sooner.

        Raises:
            InvalidRequestError: the key is not valid, or the range is negative.
            ObjectNotFoundError: there is none.
            StorageError: the disk refused, or the object shrank while it was read.
        """
        if start < 0 or length < 0:
            raise InvalidRequestError(
                f"range of {length} bytes from {start} of {key!r} is negative"
            )
        with self._reading(key) as (fd, size_bytes):
            return read_exactly(fd, start, max(0, min(length, size_bytes - start)))

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """List the objects whose key starts with a prefix, found as the iteration goes.

        Objects and folders that vanish meanwhile are left out; symbolic links are not followed.

        Raises:
            InvalidRequestError: no key could start with a prefix.
            StorageError: a folder cannot be read; what came before is valid.
        """
        walks = [self._walk(check_prefix(prefix)) for prefix in prefixes]
        return itertools.chain.from_iterable(walks)

    def delete(self, *keys: str) -> None:
        """Remove objects, durably; those that are not there are fine. Their folders stay.

        Raises:
            InvalidRequestError: a key is not valid; nothing was removed.
            StorageError: the disk refused; objects before the one that it names are removed.
        """
        for key, path in [(key, self._path(key)) for key in keys]:
            with (
                self._errors("delete", key),
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
            ):
                self._removing.add(path.parent)
                path.unlink()
                self._sync_removed(path.parent)

    def link(self, key: str, to: str) -> None:
        """Give an object a second key, durably and without another copy; doing it again is fine.

        Raises:
            InvalidRequestError: a key is not valid.
            StorageError: the disk refused, there is no such object, or the key holds another one.
        """
        path, second = self._path(key), self._path(to)
        with self._errors("link", to):
            self._ensure_durable(second.parent)
            try:
                os.link(path, second)
            except FileExistsError:
                if not second.samefile(path):
                    raise
            sync_folder(second.parent)

    def close(self) -> None:
        """Nothing: a system call cannot be given up."""

    def uri(self, key: str) -> str:
        """Return the complete `file://` URI of a key.

        Raises:
            InvalidRequestError: the key is not valid.
        """
        return self._path(key).as_uri()

    def clean_temporary(self, *, older_than_ms: int, now_ms: int) -> int:
        """Remove what crashed puts left behind; to be called when a broker starts.

        Args:
            older_than_ms: least age of a leftover. It must exceed the longest put, so that the
                file of a live writer is never taken.
            now_ms: the time, milliseconds since 1970 UTC.

        Returns:
            How many files were removed.

        Raises:
            StorageError: the disk refused.
        """
        removed = 0
        with self._errors("clean", TEMPORARY_FOLDER):
            for entry, _ in self._scan(TEMPORARY_FOLDER):
                found = _stat(entry)
                if found is not None and now_ms - _modified_ms(found) > older_than_ms:
                    Path(entry.path).unlink(missing_ok=True)
                    removed += 1
        return removed

    def _create(self, path: Path, views: Sequence[memoryview], deadline_s: float) -> bool:
        """Make the object; False when another writer took the key first."""

        def check() -> None:
            if self._runtime.mono_s() > deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, "the deadline passed")

        self._ensure_durable(self._temporary)
        self._ensure_durable(path.parent)
        temporary = self._temporary / self._runtime.token_hex(16)
        try:
            write_durably(temporary, views, check)
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            # What cannot be removed now is left to `clean_temporary`; the outcome stands.
            with contextlib.suppress(OSError):
                temporary.unlink()
        sync_folder(path.parent)
        return True

    def _accept_retry(self, path: Path, views: Sequence[memoryview]) -> None:
        """Take the object that is there for our own, durable now, if it has the same bytes."""
        with opened(path) as (fd, size_bytes):
            if not same_bytes(partial(read_exactly, fd), size_bytes, views):
                raise FileExistsError(
                    errno.EEXIST, "the key holds other bytes, and an object is never rewritten"
                )
            os.fsync(fd)
        self._ensure_durable(path.parent)
        sync_folder(path.parent)

    def _ensure_durable(self, folder: Path) -> None:
        """Make a folder and its parents, and make their names survive a power cut.

        A folder that exists may come from a process that crashed before it could sync it, so this
        process syncs each one once as well.
        """
        if folder in self._durable_folders:
            return
        if self._root not in folder.parents:
            make_folders(folder)
        else:
            self._ensure_durable(folder.parent)
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            sync_folder(folder.parent)
        if len(self._durable_folders) >= _MAX_REMEMBERED_FOLDERS:
            self._durable_folders.clear()
        self._durable_folders.add(folder)

    def _sync_removed(self, folder: Path) -> None:
        """Make it durable that objects are gone: what is forgotten next must not come back."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            sync_folder(folder)
        self._removing.discard(folder)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        folders = [prefix.rpartition("/")[0]]
        with self._errors("list", prefix):
            for folder in list(self._removing):  # else what is not listed could come back
                self._sync_removed(folder)
            while folders:
                for entry, key in self._scan(folders.pop()):
                    if not key.startswith(prefix) or key == TEMPORARY_FOLDER:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(key)
                    elif (found := _stat(entry)) is not None and stat.S_ISREG(found.st_mode):
                        yield ObjectInfo(key, found.st_size, _modified_ms(found))

    def _scan(self, folder: str) -> Iterator[tuple[os.DirEntry[str], str]]:
        """Entries of a folder with their keys; none when there is no such folder."""
        try:
            # Not a Path: a topic is listed by 256 prefixes, most of which have no folder.
            with os.scandir(f"{self._root}/{folder}") as entries:
                for entry in entries:
                    yield entry, f"{folder}/{entry.name}" if folder else entry.name
        except (FileNotFoundError, NotADirectoryError):
            return

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, int]]:
        path = self._path(key)
        with self._errors("read", key):
            try:
                with opened(path) as found:
                    yield found
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
                raise ObjectNotFoundError(
                    f"no object {key!r} in {self._root}: retention removed it, or it is lost"
                ) from exc

    @contextlib.contextmanager
    def _errors(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise StorageError(f"cannot {doing} {key!r} in {self._root}: {explain(exc)}") from exc


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what the folder says of an entry; None when it has vanished."""
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _modified_ms(found: os.stat_result) -> int:
    return found.st_mtime_ns // 1_000_000
