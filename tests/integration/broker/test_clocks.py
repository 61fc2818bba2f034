"""A wall clock that steps, or is wrong at the start: nothing is lost, doubled or untrue."""

import time

import pytest

from memq.core.clock import CONFIRM_MS
from memq.queue.embedded.queue import EmbeddedQueue
from memq.runtime.system import Runtime
from memq.testing.storage import InMemoryStorage
from tests.integration.broker.support import broker, client, until

HOUR_S, DAY_S = 3_600, 86_400
YEARS_S = 10 * 365 * DAY_S
STEPS_S = [8 * DAY_S, YEARS_S, -8 * DAY_S]
OFTEN = {"retention_interval": "100ms", "orphan_interval": "100ms"}
TOPIC = {"retention": "7d", "dedup_window": "1h", "batch_messages": 1, "read_partitions": 2}


class Machine:
    """The machine's clocks, as far as the test has moved them."""

    def __init__(self) -> None:
        self.mono_ahead_s = self.wall_ahead_s = 0.0
        self.runtime = Runtime(
            mono_s=lambda: time.monotonic() + self.mono_ahead_s,
            wall_ns=lambda: time.time_ns() + int(self.wall_ahead_s * 1e9),
        )

    def pass_time(self, seconds: float) -> None:
        self.mono_ahead_s += seconds
        self.wall_ahead_s += seconds


async def tidy(b) -> None:
    """Let the broker see the clock, and then do once all that it does now and then."""
    b.context.times.clock.look()
    for _ in range(2):
        saved = b.context.times.saved
        await until(lambda before=saved: b.context.times.saved is not before)


async def held(b) -> int:
    """Batches that can still be read."""
    offsets = [
        await b.context.queue.offsets(b.topics.get("t").topic.queue_topic, p) for p in (0, 1)
    ]
    return sum(end - start for start, end in offsets)


@pytest.mark.parametrize("step_s", [*STEPS_S, 0])
async def test_a_clock_that_steps_or_is_wrong_at_the_start(tmp_path, step_s) -> None:
    """Whatever it shows, for however long, in each life: repeats are known and data is held."""
    machine, storage = Machine(), InMemoryStorage()
    for life in range(4):
        queue = EmbeddedQueue(tmp_path / "q")
        async with (
            broker(tmp_path, storage=storage, queue=queue, runtime=machine.runtime, **OFTEN) as b,
            client(b) as c,
        ):
            if not life:
                await c.create(**TOPIC)
            c.schema_id = b.topics.get("t").topic.schema_id
            for stays in (False, True):
                machine.wall_ahead_s += step_s
                await tidy(b)
                if stays:
                    machine.pass_time(CONFIRM_MS / 1000)
                    await tidy(b)
                for sequence in range(life):
                    assert (await c.write(sequence)).duplicate
                machine.wall_ahead_s -= step_s
                await tidy(b)
            await c.write(life)
            assert await held(b) == len(list(storage.list(""))) == life + 1
        machine.wall_ahead_s += step_s if life % 2 else -step_s
        machine.mono_ahead_s = -1_000.0 * life  # it starts anew as well
