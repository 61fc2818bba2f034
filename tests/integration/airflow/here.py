"""A broker in the test process, beside it Airflow's memory of events, and operators run on both."""

import asyncio
import time
from datetime import UTC, datetime

from airflow_provider_memq.operators.memq import (
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqRetentionOperator,
)
from airflow_provider_memq.planning.ranges import parse_key
from airflow_provider_memq.range_assets import plan_asset, processed_asset, ranges_asset
from memq.broker.retention import expire
from memq.client.admin import AsyncAdminClient
from memq.core.clock import ClockReading
from tests.integration.airflow.event_store import EventStore

TOPIC = "t"
RANGES, DONE = ranges_asset(TOPIC), processed_asset(TOPIC, "job")
PLAN = plan_asset(RANGES)
RETENTION_S = 10
SHORT = {"retention": f"{RETENTION_S}s", "dedup_window": "10s", "upload_deadline": "8s"}


class World:
    """A topic of one read partition whose retention is short, by a clock that the test moves.

    Attributes:
        store: what Airflow remembers of asset events.
    """

    def __init__(self, running, writer):
        self.broker, self._writer = running, writer
        self._real, self._ahead_s, self._sequence = running.context.now, 0.0, 0
        self.store = EventStore()

    async def create(self):
        await self._writer.create(TOPIC, **SHORT)

    async def create_again(self):
        """Delete the topic, and make another one of its name."""
        async with AsyncAdminClient(self.broker.address) as admin:
            await admin.delete_topic(TOPIC)
        await self.create()

    async def publish(self, batches):
        """Publish Batches of one record each; each at a later time than the one before."""
        for _ in range(batches):
            self.later(0.01)
            await self._writer.write(self._sequence)
            self._sequence += 1

    def later(self, seconds):
        """Let the broker's clock stand later from now on."""
        self._ahead_s += seconds
        ahead_ms = round(self._ahead_s * 1000)
        self.broker.context.now = lambda: ClockReading(*(ms + ahead_ms for ms in self._real()))

    async def expire(self):
        """Have retention remove what it may by now."""
        return await expire(self.broker.topics.get(TOPIC), self.broker.context)

    def at(self, seconds=0.0):
        """Return a time, so much from now; the broker's clock is later than now afterwards."""
        now_s = time.time() + self._ahead_s
        self.later(0.002)
        return datetime.fromtimestamp(now_s + seconds, UTC)

    async def run(self, operator, **context):
        """Try a task once, in a thread as a worker would."""
        return await asyncio.to_thread(self.store.run, operator, **context)


def plan(**options):
    """A task that plans."""
    return MemqPlanRangesOperator(task_id="plan", topic=TOPIC, ranges=RANGES, **options)


def commit():
    """A task that commits what is processed."""
    return MemqCommitOperator(task_id="commit", topic=TOPIC, ranges=RANGES, done=DONE, group="g")


def retention(**options):
    """A task that warns of retention."""
    given = {"group": "g", "warn_before": "1s"} | options
    return MemqRetentionOperator(task_id="retention", topic=TOPIC, ranges=RANGES, **given)


def spans(keys):
    """First offset and end of ranges by their keys."""
    return [parse_key(key)[1:3] for key in keys]
