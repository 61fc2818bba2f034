"""A reader that follows a topic through all lives of the broker, and one that reads it at the end.

The follower looks at what only the course of time can show: that an offset, once seen, never names
another thing; that the object of a notification is there as soon as the notification is; that the
watermark never goes back, and nothing older than it turns up; that a commit that was acked holds.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from memq.core.format.reader import BatchReader
from memq.core.format.verify import verify
from memq.core.notification.notification import Notification, decode_notification
from memq.core.storage.open import open_uri
from memq.core.wire import messages as m
from memq.errors import MemqError
from tests.system.ledger import Row

if TYPE_CHECKING:
    from memq.client.cluster import Cluster
    from memq.core.format.index import IndexEntry

GROUP = "followers"
CALL_TIMEOUT_S = 5.0
ROUND_S = 0.02

_decode_entries = msgspec.msgpack.Decoder(list[m.NotificationEntry]).decode


class Seen(NamedTuple):
    """A Batch as it was found.

    Attributes:
        partition: read partition.
        offset: of its notification.
        timestamp_ms: of its notification.
        payload: of its notification.
        notification: the payload, decoded.
        digest: of the object; empty when there is none.
        size_bytes: of the object.
        findings: what is wrong with the object.
        entries: of its index.
        rows: of each Message; empty when the object cannot be read.
    """

    partition: int
    offset: int
    timestamp_ms: int
    payload: bytes
    notification: Notification
    digest: bytes
    size_bytes: int
    findings: tuple[str, ...]
    entries: list[IndexEntry]
    rows: list[list[Row]]


class Follower:
    """Follows one topic.

    Args:
        cluster: to ask.
        topic: to follow.

    Attributes:
        seen: every Batch, by read partition and offset.
        violations: (kind, text) of what must not be.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.seen: dict[tuple[int, int], Seen] = {}
        self.violations: list[tuple[str, str]] = []
        self._cluster = cluster
        self._topic = topic
        self._next: dict[int, int] = {}
        self._marks: list[int] = []
        self._promises: dict[int, tuple[int, int]] = {}  # watermark, end: by read partition
        self._asked: dict[int, int] = {}  # commit that was sent last
        self._committed: dict[int, int] = {}  # commit that was acked last

    async def follow(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop`, then once more."""
        last = False
        while not last:
            last = stop.is_set()
            try:
                await self.look()
            except MemqError as exc:
                if not exc.retriable:
                    self._violated("refused", f"{type(exc).__name__}: {exc}")
                    return
            await asyncio.sleep(ROUND_S)

    async def read_again(self) -> list[Seen]:
        """Everything from the start on, compared with what was seen before.

        Raises:
            MemqError: it cannot be read.
        """
        found: list[Seen] = []
        for part in await self._offsets():
            offset = part.start
            while offset < part.end:
                for entry in await self._fetch({part.partition: offset}):
                    found.append(self._again(entry))
                    if entry.offset != offset:
                        self._violated("offsets", f"offset {entry.offset} came for {offset}")
                    offset += 1
        held = {(each.partition, each.offset) for each in found}
        starts = {part.partition: part.start for part in await self._offsets()}
        for place, before in self.seen.items():
            if place not in held and place[1] >= starts[place[0]]:
                self._violated("offsets", f"{_where(before)} was seen, and is gone")
        return found

    # -- one look ---------------------------------------------------------------------------

    async def look(self) -> None:
        """Take in what is new, and check what was promised.

        Raises:
            MemqError: the broker did not answer in time, or refused.
        """
        marks = await self._check_watermark()
        await self._check_commit()
        parts = await self._offsets()
        for part in parts:
            self._promises[part.partition] = (marks[part.partition], part.end)
            self._next.setdefault(part.partition, part.start)
        for entry in await self._fetch(self._next):
            self._take(entry)
        self._asked = dict(self._next)
        await self._ask(
            m.CommitOffsets(
                group=GROUP,
                topic=self._topic,
                member_id="",
                offsets=[m.Position(*each) for each in self._asked.items()],
            )
        )
        self._committed = self._asked

    async def _check_watermark(self) -> list[int]:
        answer = await self._ask(m.FetchWatermark(topic=self._topic))
        marks = [*answer.write_partitions, *answer.read_partitions]
        before = self._marks or marks
        if any(after < mark for after, mark in zip(marks, before, strict=True)):
            self._violated("watermark", f"it went back from {before} to {marks}")
        self._marks = marks
        return answer.read_partitions

    async def _check_commit(self) -> None:
        answer = await self._ask(m.FetchCommitted(group=GROUP, topic=self._topic))
        held = {position.partition: position.offset for position in answer.offsets}
        if held not in (self._committed, self._asked):
            self._violated(
                "commits", f"{held} is stored; {self._committed} was acked, {self._asked} sent"
            )
        self._committed = held

    def _take(self, entry: m.NotificationEntry) -> None:
        expected = self._next[entry.partition]
        if entry.offset != expected:
            self._violated(
                "offsets", f"offset {entry.offset} of {entry.partition} came for {expected}"
            )
        self._next[entry.partition] = entry.offset + 1
        seen = self.seen[entry.partition, entry.offset] = _read(entry)
        mark, end = self._promises.get(entry.partition, (0, 0))
        if entry.offset >= end and seen.notification.sealed_ms < mark:
            self._violated("watermark", f"{_where(seen)} came after the watermark {mark}")

    def _again(self, entry: m.NotificationEntry) -> Seen:
        before = self.seen.get((entry.partition, entry.offset))
        if before is None:
            return _read(entry)
        content = _content(before.notification)
        digest = b"" if content is None else _digest(content)
        if (before.payload, before.digest) != (entry.payload, digest):
            self._violated("changed", f"{_where(before)} is not what it was")
        return before

    async def _offsets(self) -> list[m.PartitionOffsets]:
        return (await self._ask(m.FetchOffsets(topic=self._topic))).partitions

    async def _fetch(self, positions: dict[int, int]) -> list[m.NotificationEntry]:
        request = m.FetchNotifications(
            topic=self._topic, positions=[m.Position(*each) for each in positions.items()]
        )
        _, body = await self._cluster.call(None, request, timeout_s=CALL_TIMEOUT_S)
        return _decode_entries(body)

    async def _ask(self, request: m.Struct):
        answer, _ = await self._cluster.call(None, request, timeout_s=CALL_TIMEOUT_S)
        return answer

    def _violated(self, kind: str, text: str) -> None:
        self.violations.append((kind, f"{self._topic}: {text}"))


def _read(entry: m.NotificationEntry) -> Seen:
    """The Batch of a notification, taken apart."""
    notification = decode_notification(entry.payload)
    content = _content(notification)
    if content is None:
        return Seen(*_fields(entry), notification, b"", 0, ("no object",), [], [])
    findings = verify(content).findings
    entries: list[IndexEntry] = []
    rows: list[list[Row]] = []
    if not findings:
        reader = BatchReader(content)
        entries = reader.entries
        rows = [_rows(reader.read(position)) for position in range(len(reader))]
    return Seen(
        *_fields(entry), notification, _digest(content), len(content), findings, entries, rows
    )


def _fields(entry: m.NotificationEntry) -> tuple[int, int, int, bytes]:
    return entry.partition, entry.offset, entry.timestamp_ms, entry.payload


def _content(notification: Notification) -> memoryview | None:
    storage, key = open_uri(notification.uri)
    try:
        return memoryview(storage.get(key))
    except MemqError:
        return None


def _digest(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()


def _rows(batch: pa.RecordBatch) -> list[Row]:
    return [
        Row(*row)
        for row in zip(
            batch["key"].to_pylist(),
            batch["value"].to_pylist(),
            batch["headers"].to_pylist(),
            batch["timestamp"].cast(pa.int64()).to_pylist(),
            strict=True,
        )
    ]


def _where(seen: Seen) -> str:
    return f"offset {seen.offset} of read partition {seen.partition}"
