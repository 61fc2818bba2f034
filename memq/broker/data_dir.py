"""The data directory and its disks: whether all of it is there, and whether there is room.

*What is missing is not empty.* Opening makes what is not there, as a first start needs it. After
the first start that would be the worst that can be done: a queue whose disk is not mounted would
start over, with offsets from 0 for other data. So what the parts of the directory know of each
other is compared before anything is opened.

*Objects belong to one queue.* A copy of the data directory that is started on the original's
objects is refused as long as the original runs.

*Room.* Free space below what the next Batch may take says so before anything fails. Where it does
not, as with a quota, writes fail: see `services`.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from memq.core.units import counted, format_size_bytes
from memq.errors import DataLossError, LockedError, StorageError
from memq.runtime.files import explain, lock_exclusively, make_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)


def check_nothing_missing(directory: Path) -> None:
    """Refuse a data directory of which a part is missing that others know of.

    Missing objects are no reason: what is left can be served. `look_for_objects` tells of them.

    Args:
        directory: of the broker.

    Raises:
        DataLossError: naming what is missing, and the way back.
    """
    in_catalog = _names(directory / "topics", files=True)
    # Also what is announced and does not exist yet is a sign of a catalog, but not of a queue.
    topics = [name.removesuffix(".json") for name in in_catalog if name.endswith(".json")]
    in_queue = _names(directory / "queue" / "topics", files=False)
    if topics and not in_queue:
        raise DataLossError(
            f"{directory / 'queue'} is missing or empty, but {directory / 'topics'} knows "
            f"{counted(len(topics), 'topic')}, such as {topics[0]}: nothing was started. Put the "
            "folder back (is its disk mounted?), or restore it from the bucket with `memq restore`"
        )
    if in_queue and not in_catalog:
        raise DataLossError(
            f"{directory / 'topics'} is missing or empty, but {directory / 'queue'} holds "
            f"{counted(len(in_queue), 'topic')}, such as {in_queue[0]}: nothing was started. Put "
            "the folder back, or restore it from the bucket with `memq restore`"
        )


def lock_objects(objects: Path, lineage: str) -> int:
    """Keep a copy of this data directory from using the same objects at the same time.

    What expires in the one, or is deleted, would be gone for the other as well. Brokers that are no
    copies of each other may share a storage.

    Args:
        objects: folder of the storage.
        lineage: what only this data directory and its copies have.

    Returns:
        The descriptor that holds the lock until it is closed.

    Raises:
        LockedError: a copy uses them.
        StorageError: the file system refused.
    """
    try:
        make_folders(objects)
        return lock_exclusively(objects / f"{lineage}.lock")
    except LockedError as exc:
        raise LockedError(
            f"another broker, on a copy of this data directory, uses {objects}: what expires in "
            "one would be deleted for both. Copy the objects too, and set `storage` to the copy"
        ) from exc
    except OSError as exc:
        raise StorageError(f"cannot lock {objects}: {explain(exc)}") from exc


def _names(folder: Path, *, files: bool) -> list[str]:
    """List the files, or the folders, in a folder; none when it is missing."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() != files)


def free_bytes(folder: Path) -> int:
    """Return the bytes a user may still write on the file system of a folder. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class DiskSpace:
    """The room on the disks of one broker.

    Args:
        folders: on the disks that it writes to; those of seams that are elsewhere are left out.
        free: bytes that are free at a folder.

    Attributes:
        free_bytes: of each folder, as looked at last.
    """

    def __init__(
        self, folders: Sequence[Path] = (), *, free: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folders = folders
        self._free = free
        self.free_bytes: dict[str, int] = {}

    def look(self, needed_bytes: int) -> None:
        """See that so much is free on each. It asks the file system, which may hang.

        Raises:
            StorageError: where less is free, or the disk does not answer.
        """
        short = []
        for folder in self._folders:
            try:
                free = self._free(folder)
            except FileNotFoundError:
                continue  # made by the first write
            except OSError as exc:
                short.append(f"the disk of {folder} does not answer: {exc.strerror or exc}")
                continue
            self.free_bytes[str(folder)] = free
            if free < needed_bytes:
                short.append(
                    f"the disk of {folder} has {format_size_bytes(free)} free, and the next Batch "
                    f"may need {format_size_bytes(needed_bytes)}: free some space"
                )
        if short:
            raise StorageError("; ".join(short))
