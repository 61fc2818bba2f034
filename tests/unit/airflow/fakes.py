"""A cluster for tests of what looks at one."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

from memq.client.lag import Lag
from memq.core.notification import Notification, PublishedBatch
from memq.errors import TopicRecreatedError, UnavailableError


class FakeTopic:
    """A client of a topic with one record of 100 bytes at each offset; counts the notifications
    that it gave, and may fail after some.
    """

    def __init__(
        self,
        ends,
        *,
        starts=None,
        watermark_ms=0,
        committed=None,
        topic_id="a" * 16,
        fails_after=None,
    ):
        self.topic = "t"
        self.ends = dict(ends)
        self.starts = starts or dict.fromkeys(ends, 0)
        self.watermark_ms = watermark_ms
        self.group = committed or {}
        self.read = 0
        self.topic_id = topic_id
        self.fails_after = fails_after

    async def watermark(self):
        return SimpleNamespace(stored_through_ms=self.watermark_ms)

    async def offsets(self):
        return [
            SimpleNamespace(partition=p, start=self.starts[p], end=end)
            for p, end in self.ends.items()
        ]

    async def committed(self, group):
        return dict(self.group)

    async def lag(self, positions):
        return {
            p: Lag(n := max(0, self.ends[p] - max(at, self.starts[p])), n, n * 100, n * 0.5)
            for p, at in positions.items()
        }

    async def batches(self, ranges):
        for partition, start, end, _ in ranges:
            for offset in range(start, end):
                if self.read == self.fails_after:
                    raise UnavailableError("down")
                self.read += 1
                yield published(offset, partition=partition)


class FakeHook:
    """A hook whose looks do in turn what the test says: an error to raise, or a topic."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.open = 0

    async def atopic(self, topic, topic_id=""):
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        if topic_id not in ("", look.topic_id):
            raise TopicRecreatedError(topic)
        return self._opened(look)

    @asynccontextmanager
    async def _opened(self, topic):
        self.open += 1
        try:
            yield topic
        finally:
            self.open -= 1


def published(offset, timestamp_ms=0, size_bytes=100, records=1, *, partition=0):
    """A Batch of one Message."""
    notification = Notification(
        version=2,
        topic="t",
        topic_id="0" * 16,
        write_partition=0,
        batch_id="b",
        uri="file:///b",
        size_bytes=size_bytes,
        index_offset=50,
        messages=1,
        records=records,
        min_timestamp_us=0,
        max_timestamp_us=0,
        producers=[],
        schema_id="s",
        broker_id="b",
        sealed_ms=0,
        stored_through_ms=0,
    )
    return PublishedBatch(partition, offset, timestamp_ms, notification)
