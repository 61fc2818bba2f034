"""What lies where on disk: file names, the index entry, the metadata that fixes the sizes, and how
a folder is claimed and filled by the writer that opens it first.

`docs/bigqueue.md` describes the same layout for someone who writes a reader in another language.
"""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from memq.bigqueue.files import Words, sync_file, translated
from memq.core.checksum import crc32c
from memq.core.decoding import UNDECODABLE
from memq.errors import ConfigError, CorruptDataError
from memq.runtime.files import lock_exclusively, make_folders, replace_durably, sync_folder

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

Kind = Literal["data", "index"]
DATA: Kind = "data"
INDEX: Kind = "index"

FORMAT_VERSION = 1
METADATA_FILE = "meta.json"
CONTROL_FILE = "control"
CONTROL_MAGIC = b"MQARRAY1"
LOCK_FILE = "lock"
HEAD_FILE = "head"
FRONTS_FOLDER = "fronts"
FRONT_MAGIC = b"MQFRONT1"
PAGE_SUFFIX = ".page"

# Words of the control file and of a front file; word 0 is the magic number. The start is there
# twice, because opening deletes pages below it: a damaged start must not delete good pages. A doubt
# that is not 0 says that a flush failed: memory and device may differ in what was not synced.
START, END, SYNCED, START_COPY, DOUBT = 1, 2, 3, 4, 5
POSITION = 1

# One index entry: data page number, offset in it, length, check, timestamp in ms. 24 bytes, so the
# array of them is also an array of six 32-bit words, which is how a batch is packed and read.
ENTRY = struct.Struct("<IIIIq")
ENTRY_BYTES = ENTRY.size
ENTRY_WORDS = ENTRY_BYTES // 4

# 64 MiB: a page change (a few ms to allocate or to delete) is paid once in 65,536 items of 1 KiB,
# while an idle queue still takes little disk.
DEFAULT_PAGE_BYTES = 64 << 20
# One page of memory: anything smaller is rounded up by the kernel anyway.
MIN_PAGE_BYTES = 4096
# Offsets and lengths are 32-bit and an item may lie anywhere up to the end of its page.
MAX_PAGE_BYTES = 1 << 30
# 6 MiB of entries: covers four default data pages of 1 KiB items.
DEFAULT_INDEX_PAGE_ITEMS = 1 << 18
# 96 MiB of entries: opening compares what lies after the last entry of the page with zeros.
MAX_INDEX_PAGE_ITEMS = 1 << 22
# The entry has 63 bits for it; the year 292 million is far enough.
MAX_TIMESTAMP_MS = (1 << 63) - 1


def seed_of(timestamp_ms: int) -> int:
    """Return the CRC32C that the check of an item with this timestamp starts from (plus its index).

    Starting from timestamp and index makes the check cover them too: a flipped timestamp, a
    misplaced page file and an entry of zeros are all seen, at no cost for each item.
    """
    return int(crc32c(timestamp_ms.to_bytes(8, "little", signed=True)))


class _Metadata(msgspec.Struct, frozen=True):
    """What the metadata file says."""

    format: int
    page_bytes: int
    index_page_items: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one array lives and how its pages are cut.

    Attributes:
        path: folder of the array.
        page_bytes: size of a data page, and of the largest item.
        index_page_items: entries in an index page.
    """

    path: Path
    page_bytes: int
    index_page_items: int

    def file(self, kind: Kind, number: int) -> Path:
        """Return the file of page `number`."""
        return self.path / kind / f"{number:012d}{PAGE_SUFFIX}"

    def size_bytes(self, kind: Kind) -> int:
        """Return the size of a whole page file of that kind, in bytes."""
        return self.page_bytes if kind == DATA else self.index_page_items * ENTRY_BYTES

    def numbers(self, kind: Kind) -> list[int]:
        """Return the page numbers for which a file exists, ascending."""
        names = (file.name for file in (self.path / kind).glob("*" + PAGE_SUFFIX))
        stems = (name.removesuffix(PAGE_SUFFIX) for name in names)
        return sorted(int(stem) for stem in stems if stem.isdecimal())


def new_layout(path: Path, page_bytes: int | None, index_page_items: int | None) -> Layout:
    """Return the layout for a new array; None picks the default size.

    Raises:
        ConfigError: a size is out of its limits.
        CorruptDataError: the folder holds pages already, so its metadata was lost.
    """
    layout = Layout(
        path,
        DEFAULT_PAGE_BYTES if page_bytes is None else page_bytes,
        DEFAULT_INDEX_PAGE_ITEMS if index_page_items is None else index_page_items,
    )
    _check_limits(layout)
    if layout.numbers(DATA) or layout.numbers(INDEX):
        raise CorruptDataError(
            f"{path / METADATA_FILE} is missing but its folder has pages; restore it with "
            f"the sizes the pages were made with, such as {_to_json(layout).decode()}"
        )
    return layout


def load_layout(path: Path, page_bytes: int | None, index_page_items: int | None) -> Layout:
    """Read the metadata of an existing array; a size that is given must be the recorded one.

    Raises:
        ConfigError: there is no array at `path`, it has another format version, or a given size
            differs from the recorded one.
        CorruptDataError: the metadata file cannot be understood.
    """
    file = path / METADATA_FILE
    if not file.exists():
        raise ConfigError(
            f"{path} holds no big array ({METADATA_FILE} is missing); open it for writing first"
        )
    try:
        with translated("read", file):
            recorded = msgspec.json.decode(file.read_bytes(), type=_Metadata)
    except UNDECODABLE as exc:
        raise CorruptDataError(f"{file} is damaged ({exc!r}); restore it from a copy") from exc
    if recorded.format != FORMAT_VERSION:
        raise ConfigError(
            f"{file} has format {recorded.format}, but this version reads {FORMAT_VERSION}"
        )
    layout = Layout(path, recorded.page_bytes, recorded.index_page_items)
    _check_limits(layout)
    _check_same("page_bytes", page_bytes, layout.page_bytes, path)
    _check_same("index_page_items", index_page_items, layout.index_page_items, path)
    return layout


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
    with translated("open", path):
        make_folders(path)
        for folder in (DATA, INDEX):
            (path / folder).mkdir(exist_ok=True)
        opened.callback(os.close, lock_exclusively(path / LOCK_FILE))


def load_or_make_layout(
    path: Path, page_bytes: int | None, index_page_items: int | None, first: int = 0
) -> Layout:
    """Load the layout of the array at `path`, or make one, whose first index is `first`.

    Raises:
        QueueError: the file system refused; and as `load_layout` and `new_layout`.
    """
    if (path / METADATA_FILE).exists():
        layout = load_layout(path, page_bytes, index_page_items)
        with translated("flush", path):
            sync_folder(path)  # who wrote the file may have died before its name was durable
        return layout
    layout = new_layout(path, page_bytes, index_page_items)
    control = Words(path / CONTROL_FILE, CONTROL_MAGIC, writable=True)
    control.format(first, first, first, first)
    control.close()
    with translated("flush", control.path):
        sync_file(control.path)
        # The metadata comes last: readers that find it find everything, also after a power cut.
        replace_durably(path / METADATA_FILE, _to_json(layout))
    return layout


def _to_json(layout: Layout) -> bytes:
    return msgspec.json.encode(
        _Metadata(FORMAT_VERSION, layout.page_bytes, layout.index_page_items)
    )


def _check_limits(layout: Layout) -> None:
    if sys.byteorder != "little":
        raise ConfigError("the pages are little-endian and this machine is not; use another one")
    _check_range("page_bytes", layout.page_bytes, MIN_PAGE_BYTES, MAX_PAGE_BYTES)
    _check_range("index_page_items", layout.index_page_items, 1, MAX_INDEX_PAGE_ITEMS)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}={value} is out of its limits; choose {low} to {high}")


def _check_same(name: str, given: int | None, recorded: int, path: Path) -> None:
    if given is not None and given != recorded:
        raise ConfigError(
            f"{name}={given}, but {path} was made with {name}={recorded}; "
            "leave the option out, or use a new folder"
        )
