"""From a URI to the storage that holds it.

A scheme is one row of `_SCHEMES`; nothing else knows which kinds of storage there are.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from memq.core.defaults import STORAGE_OPTIONS_VARIABLE
from memq.core.named_values import NO_VALUES, NamedValues
from memq.errors import ConfigError, InvalidRequestError, StorageError
from memq.runtime.system import SYSTEM, Runtime
from memq.storage.keys import check_prefix
from memq.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.storage.handler import StorageHandler
    from memq.storage.object_store import ObjectStorage

log = logging.getLogger(__name__)

CLEAN_TEMPORARY_MS = 3_600_000  # unfinished writes this old are nobody's
MAX_CONTAINERS = 32  # that are kept open to read from, with their connections


class _Scheme(NamedTuple):
    """How one scheme is opened.

    Attributes:
        root: the storage whose root is a URI, for its writers.
        locate: the widest storage that holds the object of a URI, and the object's key in it.
        folder: where on this machine a root is; None for a service.
        check: asks a storage whether it can be used, and raises if it never could.
    """

    root: Callable[[str, NamedValues, Runtime], StorageHandler]
    locate: Callable[[str, NamedValues], tuple[StorageHandler, str]]
    folder: Callable[[str], Path | None]
    check: Callable[[Any], None] = lambda _: None


def open_storage(
    root_uri: str,
    options: NamedValues = NO_VALUES,
    runtime: Runtime = SYSTEM,
    *,
    opened: Callable[[StorageHandler], None] = lambda _: None,
) -> StorageHandler:
    """Open the storage whose root is `root_uri`, such as `file:///var/lib/memq/objects`, to write
    to it.

    What earlier writers left unfinished is removed when it is nobody's any more.

    Args:
        root_uri: of the storage.
        options: of an object store (`memq.storage.object_store_client`).
        runtime: its clocks and chance.
        opened: told of the storage before it is asked anything, which may take seconds; another
            thread can close it meanwhile.

    Raises:
        ClosedError: it was.
        ConfigError: the URI is malformed, its scheme or an option is not known, or an object store
            has no such bucket or does not let us in. One that is away may come back.
        StorageError: a file system refused.
    """
    scheme = _scheme(root_uri)
    storage = scheme.root(root_uri, options, runtime)
    opened(storage)
    scheme.check(storage)
    return storage


def local_folder(root_uri: str) -> Path | None:
    """Return the folder of this machine that a storage's root is; None when it is a service.

    Raises:
        ConfigError: the URI is malformed or its scheme is not known.
    """
    return _scheme(root_uri).folder(root_uri)


def open_uri(uri: str, options: NamedValues = NO_VALUES) -> tuple[StorageHandler, str]:
    """Open the storage that holds the object `uri`; return it and the object's key in it.

    The storage is the widest one of the scheme: for files its root is '/', so the key is the whole
    path. A reader needs no configuration to follow the URI of a Notification.

    Args:
        uri: of the object.
        options: of an object store. For a file they are ignored: a reader does not choose where the
            objects of a topic are, and they may be moved from a folder into a store one by one.

    Raises:
        ConfigError: the URI is malformed, its scheme is not known, or an option is not.
    """
    return _scheme(uri).locate(uri, options)


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


def _local_root(uri: str, options: NamedValues, runtime: Runtime) -> LocalStorage:
    if options:
        raise ConfigError(
            f"storage_options are for object stores, and {uri!r} is a folder; leave them out, also "
            f"as {STORAGE_OPTIONS_VARIABLE}, which brokers and readers share"
        )
    storage = LocalStorage(_local_path(uri), runtime=runtime)
    storage.clean_temporary(older_than_ms=CLEAN_TEMPORARY_MS, now_ms=runtime.wall_ms())
    return storage


def _locate_local(uri: str, _: NamedValues) -> tuple[LocalStorage, str]:
    return LocalStorage(Path("/")), str(_local_path(uri)).lstrip("/")


def _store_root(uri: str, options: NamedValues, runtime: Runtime) -> ObjectStorage:
    container, root = _store_place(uri)
    return _object_storage()(container, root, dict(options), runtime=runtime)


def _check_store(storage: ObjectStorage) -> None:
    try:
        storage.check()
    except StorageError as exc:
        log.warning("the storage is away, and is tried again when it is needed: %s", exc)


def _locate_in_store(uri: str, options: NamedValues) -> tuple[StorageHandler, str]:
    container, key = _store_place(uri)
    return _container(container, options), key


@lru_cache(MAX_CONTAINERS)
def _container(container: str, options: NamedValues) -> ObjectStorage:
    return _object_storage()(container, "", dict(options))


def _store_place(uri: str) -> tuple[str, str]:
    """Container and key, or root, of a URI such as `s3://logs/some/key`."""
    parts = urlsplit(uri)
    path = unquote(parts.path).strip("/")
    try:
        check_prefix(f"{path}/" if path else "")
    except InvalidRequestError as exc:
        raise ConfigError(f"storage URI {uri!r}: {exc}") from exc
    if not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"storage URI {uri!r} must be {parts.scheme}://bucket/prefix")
    return f"{parts.scheme}://{parts.netloc}", path


def _object_storage() -> type[ObjectStorage]:
    try:
        from memq.storage.object_store import ObjectStorage  # noqa: PLC0415 - optional
    except ImportError as exc:
        raise ConfigError(f"object stores need obstore: pip install 'memq[s3]' ({exc})") from exc
    return ObjectStorage


_STORE = _Scheme(_store_root, _locate_in_store, lambda _: None, _check_store)
_SCHEMES = {
    "file": _Scheme(_local_root, _locate_local, _local_path),
    "s3": _STORE,
    "gs": _STORE,
    "az": _STORE,
    "abfss": _STORE,
}
