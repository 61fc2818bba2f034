"""A reader that follows a topic through all lives of the broker, and reads it again at the end.

The follower records what only the course of time can show: what an offset names, whether the object
of a notification is there as soon as the notification is, the watermark and the end behind it, and
its commits. At the end it records all that is held once more.
"""

import asyncio
import hashlib
import time
from contextlib import aclosing
from typing import NamedTuple

import pyarrow as pa

from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.format.index import IndexEntry
from memq.core.format.reader import BatchReader
from memq.core.format.verify import verify
from memq.core.notification import Notification, decode_notification
from memq.core.ranges import OffsetRange
from memq.core.wire import messages as m
from memq.errors import MemqError
from memq.storage.open import open_uri
from tests.simulation import history as h
from tests.simulation.checkers.violation import Violation
from tests.simulation.recording import Asking
from tests.system.checker import contradictions
from tests.system.ledger import Ledger, Row, now_us

GROUP = "followers"
FOLLOWER = "follower"
PAGE_ENTRIES = 500
ROUND_S = 0.02


class Seen(NamedTuple):
    """A Batch as it was found.

    Attributes:
        entry: its notification, as it was fetched.
        notification: the payload of that, decoded.
        digest: of the object; empty when there is none.
        size_bytes: of the object.
        findings: what is wrong with the object.
        entries: of its index.
        values: of each Message, what its rows are for the history: long values would fill memory
            in a long run; empty when the object cannot be read.
        timestamps_us: of all rows.
    """

    entry: m.NotificationEntry
    notification: Notification
    digest: bytes
    size_bytes: int
    findings: tuple[str, ...]
    entries: list[IndexEntry]
    values: list[tuple[h.Value, ...]]
    timestamps_us: list[int]


class Follower:
    """Follows one topic, and records what it sees.

    Args:
        cluster: to ask.
        topic: to follow.
        ledger: of the run; it has the history.

    Attributes:
        seen: every Batch, by read partition and offset.
        violations: (kind, text) of what must not be and no history shows.
    """

    def __init__(self, cluster: Cluster, topic: str, ledger: Ledger) -> None:
        self.seen: dict[tuple[int, int], Seen] = {}
        self.violations: list[Violation] = []
        self._client = TopicClient(cluster, topic)
        self._topic = topic
        self._ledger = ledger
        self._add = ledger.history.add
        self._next: dict[int, int] = {}
        self._asking = Asking(self._client, FOLLOWER, ledger.history, now_us)

    async def follow(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop`, then once more."""
        last = False
        while not last:
            last = stop.is_set()
            try:
                await self.look()
            except MemqError as exc:
                if not exc.retriable:
                    text = f"{self._topic}: {type(exc).__name__}: {exc}"
                    self.violations.append(Violation("refused", text))
                    return
            await asyncio.sleep(ROUND_S)

    async def read_again(self) -> None:
        """Read everything from the start on.

        Raises:
            MemqError: it cannot be read.
        """
        begun_us = now_us()
        found: list[Seen] = []
        asked: list[h.Asked] = []
        for part in await self._asking.offsets():
            wanted = h.Asked(part.partition, part.start, part.end)
            asked.append(wanted)
            async with aclosing(self._client.entries([OffsetRange(*wanted)])) as entries:
                found += [self._again(entry) async for entry in entries]
            self._note_removals(part)
        self._polled(begun_us, found, mode=h.RANGE, asked=tuple(asked))
        self._add(h.Drained(now_us(), FOLLOWER, self._topic, self._client.topic_id))

    # -- one look ---------------------------------------------------------------------------

    async def look(self) -> None:
        """Take in what is new.

        Raises:
            MemqError: the broker did not answer in time, or refused.
        """
        if not self._client.topic_id:
            await self._client.info()
        await self._asking.watermark()
        await self._asking.committed(GROUP)
        for part in await self._asking.offsets():
            self._next.setdefault(part.partition, part.start)
        begun_us = now_us()
        page = await self._client.page(self._next, max_entries=PAGE_ENTRIES)
        self._polled(begun_us, list(map(self._take, page.entries)), mode=h.ASSIGNED)
        await self._commit()

    async def _commit(self) -> None:
        commit = h.Commit(
            FOLLOWER, now_us(), None, h.INFO, self._topic, self._client.topic_id, GROUP, "",
            tuple(self._next.items()),
        )  # fmt: skip
        try:
            await self._client.commit(GROUP, "", self._next)
            commit = commit._replace(outcome=h.OK)
        finally:
            self._add(commit._replace(end_us=now_us()))

    def _take(self, entry: m.NotificationEntry) -> Seen:
        self._next[entry.partition] = entry.offset + 1
        seen = self._read(entry)
        if not seen.findings:
            wrong = tuple(contradictions(self._topic, seen, self._ledger))
            seen = seen._replace(findings=wrong)
        self.seen.setdefault((entry.partition, entry.offset), seen)
        self._found(seen)
        return seen

    def _read(self, entry: m.NotificationEntry) -> Seen:
        """The Batch of a notification, taken apart."""
        notification = decode_notification(entry.payload)
        content = _content(notification)
        if content is None:
            return Seen(entry, notification, b"", 0, ("no object",), [], [], [])
        findings = verify(content).findings
        entries: list[IndexEntry] = []
        rows: list[list[Row]] = []
        if not findings:
            reader = BatchReader(content)
            entries = reader.entries
            rows = [_rows(reader.read(position)) for position in range(len(reader))]
        values = [tuple(self._ledger.value_of(self._topic, row) for row in each) for each in rows]
        return Seen(
            entry,
            notification,
            _digest(content),
            len(content),
            findings,
            entries,
            values,
            [row.timestamp_us for each in rows for row in each],
        )

    def _again(self, entry: m.NotificationEntry) -> Seen:
        before = self.seen.get((entry.partition, entry.offset))
        if before is None:
            return self._take(entry)
        content = _content(before.notification)
        if content is None:
            self._found(before._replace(digest=b"", findings=("no object",)))
        else:
            self._found(before._replace(entry=entry, digest=_digest(content)))
        return before

    def _found(self, seen: Seen) -> None:
        entry, notification = seen.entry, seen.notification
        digest = hashlib.sha256(entry.payload + seen.digest).digest() if seen.digest else b""
        self._add(
            h.Batch(
                now_us(), self._topic, self._client.topic_id, entry.partition, entry.offset,
                entry.timestamp_ms, notification.sealed_ms, notification.batch_id, digest,
                seen.findings,
            )
        )  # fmt: skip

    def _polled(
        self, begun_us: int, found: list[Seen], *, mode: str, asked: tuple[h.Asked, ...] = ()
    ) -> None:
        rows = [
            (seen.entry.partition, seen.entry.offset, position, value)
            for seen in found
            for position, value in enumerate(value for values in seen.values for value in values)
        ]
        if not rows and not asked:
            return
        columns = list(zip(*rows, strict=True)) or [()] * 4
        self._add(
            h.Poll(
                FOLLOWER, begun_us, now_us(), h.OK, self._topic, self._client.topic_id, mode, "",
                FOLLOWER, *columns, asked=asked,
            )
        )  # fmt: skip

    def _note_removals(self, part: m.PartitionOffsets) -> None:
        """What was seen and is before the start now, retention has removed."""
        shift_us = time.time_ns() // 1_000 - now_us()
        for (partition, offset), seen in self.seen.items():
            if partition == part.partition and offset < part.start:
                published_us = seen.entry.timestamp_ms * 1_000 - shift_us
                self._add(
                    h.Removal(
                        now_us(), "notification", self._topic, self._client.topic_id, partition,
                        offset, published_us,
                    )
                )  # fmt: skip


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
