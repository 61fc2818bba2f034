"""The active feature level of a broker that governs itself: a file of its data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from memq.core.decoding import decode_stored
from memq.core.features import MAX_LEVEL, MIN_LEVEL, ActiveLevel, check_level
from memq.errors import StorageError
from memq.runtime.files import explain, replace_durably

if TYPE_CHECKING:
    from pathlib import Path

FILE = "features.json"

_decode = msgspec.json.Decoder(ActiveLevel).decode


def read_level(folder: Path) -> int:
    """Return the active level; the highest where the data directory is new.

    Raises:
        ConfigError: this version does not know it.
        CorruptDataError: the file is damaged.
        StorageError: it cannot be read.
    """
    path = folder / FILE
    try:
        level = decode_stored(_decode, path.read_bytes(), str(path)).level
    except FileNotFoundError:
        return MIN_LEVEL if (folder / "topics").exists() else MAX_LEVEL
    except OSError as exc:
        raise StorageError(f"cannot read {path}: {explain(exc)}") from exc
    return check_level(level, str(folder))


def write_level(folder: Path, level: int) -> None:
    """Store the active level.

    Raises:
        StorageError: it cannot be written.
    """
    path = folder / FILE
    try:
        replace_durably(path, msgspec.json.encode(ActiveLevel(level)))
    except OSError as exc:
        raise StorageError(f"cannot write {path}: {explain(exc)}") from exc
