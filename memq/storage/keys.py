"""Keys of objects: what a key may look like, and the layout of a Batch's key.

Layout:
`<hh>/<cluster>/topics/<topic>/<topic_id>/<write partition>/<sealed>-<running>-<batch id>.arrows`

- `hh`, two hex digits of a hash of the batch id, spreads the objects over 256 base prefixes: object
  stores scale by prefix, so a busy topic must not live under one.
- The topic id tells a topic from a later one of the same name: what belongs to the one can be
  deleted while the other is written.
- The time comes first in the name, so that names sort by age inside a folder.
- `running`, 12 hex digits, is the running time (`memq.core.clock`) of sealing, in milliseconds.
  That, and not the wall clock's time before it, says how old an object is.
- The batch id makes the key unique for ever: no two attempts, brokers or lives of a topic share
  one, so a key is never written with other bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

from memq.core.topic import check_topic_id, check_topic_name
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memq.storage.handler import ObjectInfo, StorageHandler

MAX_KEY_BYTES = 1024  # S3 ends there
MAX_PART_BYTES = 255  # a part becomes a file name, and file systems end there
MAX_RUNNING_MS = (1 << 48) - 1  # 12 hex digits: 8,900 years
LISTINGS = 16  # of a topic at a time: one after the other they take seconds
TEMPORARY_FOLDER = ".tmp"
"""First part of keys that no object may have: unfinished writes of a file system live there."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # object stores refuse them, or answer with others
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_BATCH_KEY = re.compile(
    r"(?P<hh>[0-9a-f]{2})/(?P<cluster>[^/]+)/topics/(?P<topic>[^/]+)/(?P<topic_id>[0-9a-f]{16})/"
    r"(?P<partition>0|[1-9][0-9]*)/(?P<sealed>[0-9]{13,})-(?P<running>[0-9a-f]{12})-(?P<batch>[^/]+)"
    r"\.arrows"
)

_OPENED_DIGITS = 12  # hex digits of a Batch's id that say when it was opened

KEY_PARTS = 7
"""Parts of the key of a Batch: hh, cluster, "topics", topic, topic id, write partition, name."""


class BatchKey(NamedTuple):
    """What the key of a Batch object says.

    Attributes:
        cluster_id: cluster that wrote it.
        topic: the topic.
        topic_id: of the topic.
        write_partition: the write partition that sealed the Batch.
        sealed_ms: when, milliseconds since 1970 UTC.
        batch_id: unique name of the Batch.
        running_ms: when it was sealed, in running time.
    """

    cluster_id: str
    topic: str
    topic_id: str
    write_partition: int
    sealed_ms: int
    batch_id: str
    running_ms: int = 0


def batch_id_at(opened_ms: int, token: str) -> str:
    """Make the id of a Batch that was opened at this running time; ids sort by it.

    Args:
        opened_ms: milliseconds of running time.
        token: random hex digits.
    """
    return f"{opened_ms:0{_OPENED_DIGITS}x}{token}"


def opened_ms(batch_id: str) -> int:
    """Return the running time in the id of a Batch; 0 for an id that was made otherwise."""
    try:
        return int(batch_id[:_OPENED_DIGITS], 16)
    except ValueError:
        return 0


def object_key(batch: BatchKey) -> str:
    """Return the key of a Batch object.

    Raises:
        InvalidRequestError: a name holds characters that do not belong into a key, or a number is
            negative.
    """
    check_topic_name(batch.topic)
    check_topic_id(batch.topic_id)
    numbers = (batch.write_partition, batch.sealed_ms, batch.running_ms)
    if min(numbers) < 0 or batch.running_ms > MAX_RUNNING_MS:
        raise InvalidRequestError(
            f"write partition {batch.write_partition}, time {batch.sealed_ms} and running time "
            f"{batch.running_ms} of a key must not be negative, the last at most {MAX_RUNNING_MS}"
        )
    for name in (batch.cluster_id, batch.batch_id):
        if _NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                f"{name!r} cannot be part of an object key: use letters, digits, '.', '_' and '-'"
            )
    return check_key(
        f"{_spread(batch.batch_id)}/{batch.cluster_id}/topics/{batch.topic}/{batch.topic_id}/"
        f"{batch.write_partition}/{batch.sealed_ms:013d}-{batch.running_ms:012x}-{batch.batch_id}.arrows"
    )


def parse_object_key(key: str) -> BatchKey | None:
    """Parse the key of a Batch object; None when the key is not that of a Batch."""
    match = _BATCH_KEY.fullmatch(key)
    if match is None or match["hh"] != _spread(match["batch"]):
        return None
    return BatchKey(
        match["cluster"],
        match["topic"],
        match["topic_id"],
        int(match["partition"]),
        int(match["sealed"]),
        match["batch"],
        int(match["running"], 16),
    )


def key_of_uri(uri: str) -> str:
    """Return the key of a Batch object from its complete URI, whatever the storage.

    Raises:
        InvalidRequestError: the URI does not end like the key of a Batch.
    """
    key = "/".join(uri.rsplit("/", KEY_PARTS)[-KEY_PARTS:])
    if parse_object_key(key) is None:
        raise InvalidRequestError(f"{uri[:MAX_KEY_BYTES]!r} is not the URI of a Batch")
    return key


def cluster_prefixes(cluster_id: str) -> list[str]:
    """List the 256 prefixes under which the Batches of a cluster lie."""
    return [f"{spread:02x}/{cluster_id}/topics/" for spread in range(256)]


def topic_prefixes(cluster_id: str, topic: str, topic_id: str) -> list[str]:
    """List the 256 prefixes under which the Batches of one topic id lie."""
    return [f"{prefix}{topic}/{topic_id}/" for prefix in cluster_prefixes(cluster_id)]


def topic_objects(
    storage: StorageHandler,
    cluster_id: str,
    topic: str,
    topic_id: str,
    check: Callable[[], None] = lambda: None,
) -> Iterator[ObjectInfo]:
    """Yield every object of one topic id, prefix by prefix, listed as the iteration goes.

    Args:
        storage: that has them.
        cluster_id: of the topic.
        topic: its name.
        topic_id: of it.
        check: called before each prefix, or each `LISTINGS` of a remote storage; it raises to give
            up.

    Raises:
        StorageError: a listing failed; what came before is valid.
    """
    prefixes = topic_prefixes(cluster_id, topic, topic_id)
    at_a_time = LISTINGS if storage.remote else 1
    for first in range(0, len(prefixes), at_a_time):
        check()
        yield from storage.list(*prefixes[first : first + at_a_time])


def check_key(key: str) -> str:
    """Check that an object may have the key, and return it.

    Raises:
        InvalidRequestError: it is empty, absolute, too long, or has an empty, '.', '..', reserved
            or overlong part, a control character, or characters that UTF-8 cannot carry.
    """
    _check_parts(key, key.split("/"))
    return key


def check_prefix(prefix: str) -> str:
    """Check that keys may start with the prefix, and return it; it may end in the middle of a part.

    Raises:
        InvalidRequestError: no key could start with it.
    """
    folders = prefix.split("/")[:-1]
    _check_parts(prefix, folders)
    return prefix


def _check_parts(key: str, parts: list[str]) -> None:
    try:
        sizes = [len(each) if each.isascii() else len(each.encode()) for each in (key, *parts)]
    except UnicodeEncodeError as exc:
        raise InvalidRequestError(f"key {key!r} is not UTF-8: {exc}") from exc
    size = sizes.pop(0)
    if size > MAX_KEY_BYTES or max(sizes, default=0) > MAX_PART_BYTES:
        raise InvalidRequestError(
            f"key {key[:80]!r}… of {size} bytes is too long: at most {MAX_KEY_BYTES} bytes, and "
            f"{MAX_PART_BYTES} between two '/'"
        )
    if _CONTROL.search(key) or not {"", ".", ".."}.isdisjoint(parts):
        raise InvalidRequestError(
            f"key {key!r} is not valid: it is relative, and has no control character and no empty, "
            "'.' or '..' part"
        )
    if parts and parts[0] == TEMPORARY_FOLDER:
        raise InvalidRequestError(f"key {key!r} is not valid: {TEMPORARY_FOLDER!r} is reserved")


def _spread(batch_id: str) -> str:
    return hashlib.sha256(batch_id.encode()).hexdigest()[:2]
