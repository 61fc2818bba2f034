"""From a URI to the storage that holds it.

A scheme is one row of `_SCHEMES`; nothing else knows which kinds of storage there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from memq.core.runtime import SYSTEM, Runtime
from memq.core.storage.local import LocalStorage
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.core.storage.handler import StorageHandler

CLEAN_TEMPORARY_MS = 3_600_000  # unfinished writes this old are nobody's


class _Scheme(NamedTuple):
    """How one scheme is opened.

    Attributes:
        root: the storage whose root is a URI, for who writes to it.
        locate: the widest storage that holds the object of a URI, and the object's key in it.
        folder: where on this machine a root is; None for a service.
    """

    root: Callable[[str, Runtime], StorageHandler]
    locate: Callable[[str], tuple[StorageHandler, str]]
    folder: Callable[[str], Path | None]


def open_storage(root_uri: str, runtime: Runtime = SYSTEM) -> StorageHandler:
    """The storage whose root is `root_uri`, such as `file:///var/lib/memq/objects`, to write to it.

    What earlier writers left unfinished is removed when it is nobody's any more.

    Args:
        root_uri: of the storage.
        runtime: its clocks and chance.

    Raises:
        ConfigError: the URI is malformed or its scheme is not known.
        StorageError: the storage refused.
    """
    return _scheme(root_uri).root(root_uri, runtime)


def local_folder(root_uri: str) -> Path | None:
    """The folder of this machine that a storage's root is; None when it is a service.

    Raises:
        ConfigError: the URI is malformed or its scheme is not known.
    """
    return _scheme(root_uri).folder(root_uri)


def open_uri(uri: str) -> tuple[StorageHandler, str]:
    """The storage that holds the object `uri`, and the object's key in it.

    The storage is the widest one of the scheme: for files its root is '/', so the key is the whole
    path. A reader needs no configuration to follow the URI of a Notification.

    Raises:
        ConfigError: the URI is malformed or its scheme is not known.
    """
    return _scheme(uri).locate(uri)


def _scheme(uri: str) -> _Scheme:
    name, separator, _ = uri.partition("://")
    if not separator or name not in _SCHEMES:
        raise ConfigError(
            f"storage URI {uri!r} has no known scheme; known are "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}"
        )
    return _SCHEMES[name]


def _local_path(uri: str) -> Path:
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise ConfigError(f"storage URI {uri!r} must be file:///absolute/path, with nothing else")
    if not path.is_absolute():
        raise ConfigError(f"storage URI {uri!r} needs an absolute path: file:///absolute/path")
    return path


def _local_root(uri: str, runtime: Runtime) -> LocalStorage:
    storage = LocalStorage(_local_path(uri), runtime=runtime)
    storage.clean_temporary(older_than_ms=CLEAN_TEMPORARY_MS, now_ms=runtime.wall_ms())
    return storage


def _locate_local(uri: str) -> tuple[LocalStorage, str]:
    return LocalStorage(Path("/")), str(_local_path(uri)).lstrip("/")


_SCHEMES = {"file": _Scheme(_local_root, _locate_local, _local_path)}
