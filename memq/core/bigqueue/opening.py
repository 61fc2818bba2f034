"""Opening the folder of an array for writing: claim it, and make what a new one needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.bigqueue.files import (
    failure,
    lock_for_writing,
    make_directories,
    sync_directory,
    sync_file,
)
from memq.core.bigqueue.layout import (
    CONTROL_FILE,
    CONTROL_MAGIC,
    DATA,
    INDEX,
    LOCK_FILE,
    METADATA_FILE,
    Layout,
    load_layout,
    new_layout,
    save_layout,
)
from memq.core.bigqueue.words import Words
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


def check_exists(path: Path) -> None:
    """Refuse a folder without an array.

    Raises:
        CorruptDataError: naming what is missing.
    """
    if not (path / METADATA_FILE).exists():
        raise CorruptDataError(f"{path / METADATA_FILE} is missing: the array is lost, or not here")


def claim_folder(path: Path, opened: ExitStack) -> None:
    """Make the folder if need be, and be its only writer until `opened` is closed.

    Raises:
        LockedError: it has a writer already.
        QueueError: the file system refused.
    """
    try:
        make_directories(path)
        for folder in (DATA, INDEX):
            (path / folder).mkdir(exist_ok=True)
        opened.enter_context(lock_for_writing(path / LOCK_FILE))
    except OSError as exc:
        raise failure("open", path, exc) from exc


def load_or_make_layout(path: Path, page_bytes: int | None, index_page_items: int | None) -> Layout:
    """The layout of the array at `path`, which is made when there is none.

    Raises: as `load_layout`, `new_layout` and `save_layout`.
    """
    if (path / METADATA_FILE).exists():
        layout = load_layout(path, page_bytes, index_page_items)
        try:
            sync_directory(path)  # who wrote the file may have died before its name was durable
        except OSError as exc:
            raise failure("flush", path, exc) from exc
        return layout
    layout = new_layout(path, page_bytes, index_page_items)
    control = Words(path / CONTROL_FILE, CONTROL_MAGIC, writable=True)
    control.format(0, 0, 0, 0)
    control.close()
    try:
        sync_file(control.path)
        sync_directory(path.parent)  # who made the folder may have died before it was durable
    except OSError as exc:
        raise failure("flush", control.path, exc) from exc
    # The metadata comes last: who finds it finds everything, after a power cut as well.
    save_layout(layout)
    return layout
