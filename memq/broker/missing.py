"""What is missing is not empty: a look at the data directory before anything is opened in it.

Opening makes what is not there, as a first start needs it. After the first start that would be the
worst that can be done: a queue whose disk is not mounted would begin anew, with offsets from 0 for
other data. So what the parts of the directory know of each other is compared first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from memq.errors import DataLossError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


def check_nothing_missing(directory: Path) -> None:
    """Refuse a data directory of which a part is missing that others know of.

    Objects that are missing are only logged: what is left can be served, and readers are told of
    each object.

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
            f"{len(topics)} topics, such as {topics[0]}: nothing was started. Put the folder back "
            "(is its disk mounted?), or rebuild it from the objects with `memq recover "
            f"{directory}`"
        )
    if in_queue and not in_catalog:
        raise DataLossError(
            f"{directory / 'topics'} is missing or empty, but {directory / 'queue'} holds "
            f"{len(in_queue)} topics, such as {in_queue[0]}: nothing was started. Put the folder "
            f"back, or make it again from queue and objects with `memq recover {directory}`"
        )
    objects = directory / "objects"
    if _holds_notifications(directory / "queue" / "topics") and not _has_any(objects):
        log.error(
            "%s is missing or empty, but there are notifications: readers get DataLossError until "
            "the objects are put back (is their disk mounted?)",
            objects,
        )


def _names(folder: Path, *, files: bool) -> list[str]:
    """The files, or the folders, in a folder; none when it is missing."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() != files)


def _holds_notifications(topics: Path) -> bool:
    """Whether any read partition has ever had a notification: then it has a data page."""
    return next(topics.glob("*/*/data/*.page"), None) is not None


def _has_any(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is not None
