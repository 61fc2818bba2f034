"""Backups of a cluster in its own bucket: what the objects say, and what they say together.

Theory of operation
-------------------
Batches are in the bucket already. What is not: at which offset each was published, how far groups
have come, and which topics, users and rules there are. Brokers add that, every `backup_interval`:

    backup/CLUSTER/notifications/RUNNING-BROKER-CHANCE   notifications, with their offsets
    backup/CLUSTER/state/BROKER/RUNNING-CHANCE           how far they reach, and the groups
    backup/CLUSTER/catalog/RUNNING-BROKER-CHANCE         topics, users, rules, quotas: all of them

`RUNNING` is running time (`memq.core.clock`) in hex, so that names sort by age.

Rule 1. The owner of a topic's groups backs the topic up. Its state is written after the
    notifications that it speaks of, so what a state says is backed up is in the bucket.
Rule 2. Group offsets are read before the ends, so none is past what is backed up with it.
Rule 3. An object may repeat what another has, as after a take-over. Of two that say something else
    of one offset, as where Kafka has lost its end, the later one holds.
Rule 4. A topic is there if the latest catalog has it, or its writer may not have heard of it yet
    (`merged_catalog`). Of its states, the latest one holds.

What was published after the last backup is in no backup, and its Batches are still in the bucket.
`memq.broker.restore` says what becomes of these.

Each object ends with the CRC32C of what is before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from memq.core.access.document import AccessDocument
from memq.core.checksum import crc32c
from memq.core.decoding import UNDECODABLE, check_version, decode_stored
from memq.core.governor.topics import Topic
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memq.core.queue import QueueEntry

VERSION = 1
FOLDER = "backup"
UNHEARD_MS = 60_000
"""A broker has heard of a topic after so long, or it writes no backups: its session is over."""

_MAGIC = b"MQBACKUP"
_TAIL = 4 + len(_MAGIC)
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("running_ms", pa.int64()),
        ("payload", pa.binary()),
    ]
)
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")

T = TypeVar("T")


class Span(NamedTuple):
    """What a read partition had at a backup.

    Attributes:
        start: first offset that was retained.
        end: one past the last that is backed up.
    """

    start: int
    end: int


class StateBackup(msgspec.Struct, frozen=True, kw_only=True):
    """How far the backups of a broker reach.

    Attributes:
        version: of this format.
        broker_id: who wrote it.
        running_ms: when, in running time.
        wall_ms: when; no watermark was told that is later.
        spans: of each topic of the queue that the broker coordinated: of its read partitions.
        groups: of these: next offsets by group and read partition.
    """

    version: int = VERSION
    broker_id: str
    running_ms: int
    wall_ms: int
    spans: dict[str, list[Span]]
    groups: dict[str, dict[str, dict[int, int]]]


class CatalogBackup(msgspec.Struct, frozen=True, kw_only=True):
    """Topics, users, rules and quotas.

    Attributes:
        version: of this format.
        broker_id: who wrote it.
        running_ms: when, in running time.
        wall_ms: when it was.
        level: the active feature level.
        topics: all of them.
        access: users, rules and quotas.
    """

    version: int = VERSION
    broker_id: str
    running_ms: int
    wall_ms: int
    level: int
    topics: list[Topic]
    access: AccessDocument


class BackedUp(NamedTuple):
    """Where the newest state holds a topic of the queue.

    Attributes:
        spans: of its read partitions.
        groups: next offsets by group and read partition.
    """

    spans: list[Span]
    groups: dict[str, dict[int, int]]


_decode_state = msgspec.json.Decoder(StateBackup).decode
_decode_catalog = msgspec.json.Decoder(CatalogBackup).decode


# -- keys ------------------------------------------------------------------------------------


def notifications_folder(cluster_id: str) -> str:
    """Return the prefix of the notifications' objects."""
    return f"{FOLDER}/{cluster_id}/notifications/"


def states_folder(cluster_id: str, broker_id: str = "") -> str:
    """Return the prefix of the states of all brokers, or of one."""
    return f"{FOLDER}/{cluster_id}/state/" + (f"{broker_id}/" if broker_id else "")


def catalogs_folder(cluster_id: str) -> str:
    """Return the prefix of the catalogs."""
    return f"{FOLDER}/{cluster_id}/catalog/"


def object_name(running_ms: int, *parts: str) -> str:
    """Name an object below its prefix; names sort by the running time."""
    return "-".join([f"{running_ms:012x}", *parts])


def running_ms_of(key: str) -> int:
    """Return the running time in the key of a backup; 0 where it has none."""
    try:
        return int(key.rpartition("/")[2][:12], 16)
    except ValueError:
        return 0


# -- objects ---------------------------------------------------------------------------------


def encode_json(backup: StateBackup | CatalogBackup) -> bytes:
    """Encode a state, or a catalog."""
    return _sealed(msgspec.json.encode(backup))


def decode_state(key: str, data: memoryview) -> StateBackup:
    """Decode a state.

    Raises:
        CorruptDataError: it is damaged, or of a version this reader does not know.
    """
    found = decode_stored(_decode_state, bytes(_opened(key, data)), f"a state of a backup ({key})")
    check_version(found.version, VERSION, f"state {key}")
    return found


def decode_catalog(key: str, data: memoryview) -> CatalogBackup:
    """Decode a catalog; raises as `decode_state`."""
    opened = bytes(_opened(key, data))
    found = decode_stored(_decode_catalog, opened, f"a catalog of a backup ({key})")
    check_version(found.version, VERSION, f"catalog {key}")
    return found


def encode_notifications(entries: Sequence[tuple[str, int, QueueEntry]]) -> bytes:
    """Encode entries of the queue, each with its topic and read partition, as an Arrow stream."""
    columns = [
        [topic for topic, _, _ in entries],
        [partition for _, partition, _ in entries],
        [entry.offset for _, _, entry in entries],
        [entry.timestamp_ms for _, _, entry in entries],
        [entry.running_ms for _, _, entry in entries],
        [entry.payload for _, _, entry in entries],
    ]
    table = pa.Table.from_arrays(
        [pa.array(column, each.type) for column, each in zip(columns, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=_COMPRESSED) as stream:
        stream.write_table(table)
    return _sealed(sink.getvalue().to_pybytes())


def decode_notifications(key: str, data: memoryview) -> pa.Table:
    """Decode what `encode_notifications` has made; raises as `decode_state`."""
    opened = _opened(key, data)
    try:
        with pa.ipc.open_stream(opened) as stream:
            table = stream.read_all()
    except (pa.ArrowException, *UNDECODABLE) as exc:
        raise CorruptDataError(f"{key} holds no backup of notifications: {exc}") from exc
    if table.schema != _SCHEMA:
        raise CorruptDataError(
            f"{key} is a backup of another version, with {table.schema}: upgrade memq"
        )
    return table


def _sealed(content: bytes) -> bytes:
    return content + crc32c(content).to_bytes(4, "little") + _MAGIC


def _opened(key: str, data: memoryview) -> memoryview:
    """Return the content of an object.

    Raises:
        CorruptDataError: it is not whole.
    """
    content, tail = data[:-_TAIL], bytes(data[-_TAIL:])
    if len(tail) < _TAIL or tail[4:] != _MAGIC:
        raise CorruptDataError(f"{key} is no backup, or not whole")
    if crc32c(content) != int.from_bytes(tail[:4], "little"):
        raise CorruptDataError(f"{key} is damaged: its CRC32C does not match")
    return content


# -- what they say together ------------------------------------------------------------------


def newest_states(states: Iterable[StateBackup]) -> dict[str, BackedUp]:
    """Return what the latest state says of each topic of the queue."""
    found: dict[str, BackedUp] = {}
    for state in sorted(states, key=lambda each: each.running_ms):
        for topic, spans in state.spans.items():
            found[topic] = BackedUp(spans, state.groups.get(topic, {}))
    return found


def merged_catalog(newest_first: Sequence[CatalogBackup]) -> CatalogBackup:
    """Return the newest catalog, with topics that its writer had not heard of yet.

    Those are of the newest catalogs of others.
    """
    newest = newest_first[0]
    topics = {topic.name: topic for topic in newest.topics}
    of_brokers = {each.broker_id: each for each in reversed(newest_first)}
    for catalog in of_brokers.values():
        for topic in catalog.topics:
            if topic.created_ms > newest.wall_ms - UNHEARD_MS:
                topics.setdefault(topic.name, topic)
    return msgspec.structs.replace(newest, topics=[topics[name] for name in sorted(topics)])


def reach(states: Iterable[StateBackup]) -> dict[str, list[int]]:
    """Return one past the last offset that any state says is backed up, by read partition."""
    found: dict[str, list[int]] = {}
    for state in states:
        for topic, spans in state.spans.items():
            ends = found.setdefault(topic, [0] * len(spans))
            for partition, span in enumerate(spans):
                ends[partition] = max(ends[partition], span.end)
    return found
