"""A cluster for tests of what looks at one."""

from __future__ import annotations

from contextlib import asynccontextmanager

from airflow_provider_memq.session import Found, TopicState
from memq.core.notification.notification import Notification
from memq.errors import TopicRecreatedError


class FakeSession:
    """One topic with one record of 100 bytes at each offset; counts the notifications it gave."""

    def __init__(self, ends, *, starts=None, watermark_ms=0, committed=None, incarnation="a" * 16):
        self.ends = dict(ends)
        self.starts = starts or dict.fromkeys(ends, 0)
        self.watermark_ms = watermark_ms
        self.group = committed or {}
        self.read = 0
        self.incarnation = incarnation

    async def state(self, topic, incarnation=""):
        if incarnation not in ("", self.incarnation):
            raise TopicRecreatedError(topic)
        return TopicState(
            topic, self.incarnation, dict(self.starts), dict(self.ends), self.watermark_ms
        )

    async def committed(self, group, topic, incarnation=""):
        return dict(self.group)

    async def pages(self, topic, partition, start, end):
        for offset in range(start, end):
            self.read += 1
            yield [Found(offset, notification(topic))]


class FakeHook:
    """A hook whose looks do in turn what the test says: an error to raise, or a session."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.open = 0

    @asynccontextmanager
    async def session(self):
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        self.open += 1
        try:
            yield look
        finally:
            self.open -= 1


def notification(topic):
    return Notification(
        version=1,
        topic=topic,
        incarnation="0" * 16,
        write_partition=0,
        batch_id="b",
        uri="file:///b",
        size_bytes=100,
        index_offset=50,
        messages=1,
        records=1,
        min_timestamp_us=0,
        max_timestamp_us=0,
        producers=[],
        schema_id="s",
        broker_id="b",
        sealed_ms=0,
        stored_through_ms=0,
    )
