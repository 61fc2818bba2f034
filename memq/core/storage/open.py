"""From a URI to the storage that holds it.

A scheme is one row of `_SCHEMES`; nothing else knows which kinds of storage there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from memq.core.storage.local import LocalStorage
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.core.storage.handler import StorageHandler


class _Scheme(NamedTuple):
    """How one scheme is opened.

    Attributes:
        root: the storage whose root is a URI.
        locate: the widest storage that holds the object of a URI, and the object's key in it.
    """

    root: Callable[[str], StorageHandler]
    locate: Callable[[str], tuple[StorageHandler, str]]


def open_storage(root_uri: str) -> StorageHandler:
    """The storage whose root is `root_uri`, such as `file:///var/lib/memq/objects`.

    Raises:
        ConfigError: the URI is malformed or its scheme is not known.
    """
    return _scheme(root_uri).root(root_uri)


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


def _local_root(uri: str) -> LocalStorage:
    return LocalStorage(_local_path(uri))


def _locate_local(uri: str) -> tuple[LocalStorage, str]:
    return LocalStorage(Path("/")), str(_local_path(uri)).lstrip("/")


_SCHEMES = {"file": _Scheme(_local_root, _locate_local)}
