"""Keys of objects: what a key may look like, and the layout of a Batch's key.

Layout: `<hh>/<cluster>/topics/<topic>/<write partition>/<sealed ms>-<batch id>.arrows`

- `hh`, two hex digits of a hash of the batch id, spreads the objects over 256 base prefixes: object
  stores scale by prefix, so a busy topic must not live under one.
- The time comes first in the name, so that names sort by age inside a folder.
- The batch id makes the key unique for ever: no two attempts, brokers or lives of a topic share
  one, so a key is never written with other bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

from memq.core.topic import check_topic_name
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.core.storage.handler import ObjectInfo, StorageHandler

MAX_KEY_BYTES = 1024  # S3 ends there
MAX_PART_BYTES = 255  # a part becomes a file name, and file systems end there
TEMPORARY_FOLDER = ".tmp"
"""First part of keys that no object may have: unfinished writes of a file system live there."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_BATCH_KEY = re.compile(
    r"(?P<hh>[0-9a-f]{2})/(?P<cluster>[^/]+)/topics/(?P<topic>[^/]+)/(?P<partition>0|[1-9][0-9]*)/"
    r"(?P<sealed>[0-9]{13,})-(?P<batch>[^/]+)\.arrows"
)


_KEY_PARTS = 6  # hh, cluster, "topics", topic, write partition, name


class BatchKey(NamedTuple):
    """What the key of a Batch object says.

    Attributes:
        cluster_id: cluster that wrote it.
        topic: the topic.
        write_partition: the write partition that sealed the Batch.
        sealed_ms: when, milliseconds since 1970 UTC.
        batch_id: unique name of the Batch.
    """

    cluster_id: str
    topic: str
    write_partition: int
    sealed_ms: int
    batch_id: str


def object_key(
    cluster_id: str, topic: str, write_partition: int, sealed_ms: int, batch_id: str
) -> str:
    """The key of a Batch object.

    Raises:
        InvalidRequestError: a name holds characters that do not belong into a key, or a number is
            negative.
    """
    check_topic_name(topic)
    if write_partition < 0 or sealed_ms < 0:
        raise InvalidRequestError(
            f"write partition {write_partition} and time {sealed_ms} of a key must not be negative"
        )
    for name in (cluster_id, batch_id):
        if _NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                f"{name!r} cannot be part of an object key: use letters, digits, '.', '_' and '-'"
            )
    key = (
        f"{_spread(batch_id)}/{cluster_id}/topics/{topic}/{write_partition}/"
        f"{sealed_ms:013d}-{batch_id}.arrows"
    )
    return check_key(key)


def parse_object_key(key: str) -> BatchKey | None:
    """What the key of a Batch object says; None when the key is not that of a Batch."""
    match = _BATCH_KEY.fullmatch(key)
    if match is None or match["hh"] != _spread(match["batch"]):
        return None
    return BatchKey(
        match["cluster"],
        match["topic"],
        int(match["partition"]),
        int(match["sealed"]),
        match["batch"],
    )


def key_of_uri(uri: str) -> str:
    """The key of a Batch object from its complete URI, whatever the storage.

    Raises:
        InvalidRequestError: the URI does not end like the key of a Batch.
    """
    key = "/".join(uri.rsplit("/", _KEY_PARTS)[-_KEY_PARTS:])
    if parse_object_key(key) is None:
        raise InvalidRequestError(f"{uri[:MAX_KEY_BYTES]!r} is not the URI of a Batch")
    return key


def topic_prefixes(cluster_id: str, topic: str) -> list[str]:
    """The 256 prefixes under which a topic's Batches lie."""
    return [f"{spread:02x}/{cluster_id}/topics/{topic}/" for spread in range(256)]


def topic_objects(storage: StorageHandler, cluster_id: str, topic: str) -> Iterator[ObjectInfo]:
    """Every object of a topic, prefix by prefix, listed as the iteration goes.

    Raises:
        StorageError: a listing failed; what came before is valid.
    """
    for prefix in topic_prefixes(cluster_id, topic):
        yield from storage.list(prefix)


def check_key(key: str) -> str:
    """The key itself, when an object may have it.

    Raises:
        InvalidRequestError: it is empty, absolute, too long, or has an empty, '.', '..', reserved
            or overlong part, a NUL, or characters that UTF-8 cannot carry.
    """
    _check_parts(key, key.split("/"))
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, when keys may start with it; it may end in the middle of a part.

    Raises:
        InvalidRequestError: no key could start with it.
    """
    folders = prefix.split("/")[:-1]
    _check_parts(prefix, folders)
    return prefix


def _check_parts(key: str, parts: list[str]) -> None:
    try:
        sizes = [len(part.encode()) for part in parts]
        size = len(key.encode())
    except UnicodeEncodeError as exc:
        raise InvalidRequestError(f"key {key!r} is not UTF-8: {exc}") from exc
    if size > MAX_KEY_BYTES or max(sizes, default=0) > MAX_PART_BYTES:
        raise InvalidRequestError(
            f"key {key[:80]!r}… of {size} bytes is too long: at most {MAX_KEY_BYTES} bytes, and "
            f"{MAX_PART_BYTES} between two '/'"
        )
    if "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise InvalidRequestError(
            f"key {key!r} is not valid: it is relative, and has no NUL and no empty, '.' or '..' "
            "part"
        )
    if parts and parts[0] == TEMPORARY_FOLDER:
        raise InvalidRequestError(f"key {key!r} is not valid: {TEMPORARY_FOLDER!r} is reserved")


def _spread(batch_id: str) -> str:
    return hashlib.sha256(batch_id.encode()).hexdigest()[:2]
