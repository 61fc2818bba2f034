"""Ten thousand ranges, pauses, and kills between any two steps: each in one successful run."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from airflow_provider_memq.planning.ranges import Limits
from tests.unit.airflow.planning_world import KilledError, World

RANGES = 10_000
LARGE = Limits(max_bytes=200, linger_ms=60_000, min_bytes=120, max_ranges=20)
SMALL = Limits(max_offsets=3, max_ranges=50)


def live(world, ranges, *, most, runs, step=None):
    """Let everything happen until so many ranges are planned; then let it come to its end."""
    randomness = world.randomness
    while len(world.runs) < ranges:
        world.publish(most)
        world.tick()
        world.paused = randomness.random() < 0.2
        if step:
            step(world)
        for _ in range(randomness.randint(1, 3)):
            world.plan()
        for _ in range(randomness.randint(0, runs)):
            world.run()
    world.drain()
    return world


@pytest.mark.parametrize("limits", [LARGE, SMALL], ids=["large", "small"])
def test_ten_thousand_ranges_each_in_one_successful_run(limits):
    """Planner, runs and commits die between any two steps, and the DAG is paused again and again.

    Whatever waits, grows, is missed and is emitted again: no offset is lost, and none is twice.
    """
    world = World(Random(11), 0.08, limits)
    live(world, RANGES, most=20, runs=60)

    world.check()
    assert len(world.runs) >= RANGES
    assert world.died > RANGES / 10
    assert world.waits > 0 or limits is SMALL


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_crashes(seed):
    """Fewer ranges and more kinds of trouble."""
    randomness = Random(seed)
    limits = Limits(
        max_bytes=randomness.choice([100, 400, 2**62]),
        max_records=randomness.choice([5, 2**62]),
        max_ranges=randomness.choice([1, 5, 100]),
        linger_ms=randomness.choice([0, 60_000]),
        min_bytes=randomness.choice([0, 90]),
        longest_ms=randomness.choice([200_000, 2**62]),
    )
    world = World(randomness, randomness.choice([0.0, 0.05, 0.3]), limits)
    live(world, 60, most=10, runs=20)

    world.check()


def events_outlive_the_task(world):
    """A planner whose events are stored though it dies."""
    store = world._store

    def stored_and_killed(*given):
        store(*given)
        if world.randomness.random() < world.crashes:
            world.plans.pop()  # the ledger is not
            raise KilledError

    if not hasattr(world, "broken"):
        world.broken, world._store = True, stored_and_killed


def nothing_is_emitted_again(world):
    """A planner that does not look for ranges without a run."""
    world._again = list


def everything_is_judged_at_once(world):
    """Ranges are judged though their runs may still be made."""
    if not hasattr(world, "broken"):
        world.broken, store = True, world._store

        def twice(ledger, again):
            store(ledger, [*again, *[key for key in world.runs if key in world.queued][:1]])

        world._store = twice


@pytest.mark.parametrize(
    "bug", [events_outlive_the_task, nothing_is_emitted_again, everything_is_judged_at_once]
)
def test_the_check_sees_a_bug(bug):
    """What would lose or double a range is found: the simulation can fail."""
    with pytest.raises(AssertionError):
        live(World(Random(3), 0.1, SMALL), 500, most=10, runs=40, step=bug).check()


def test_a_backlog_becomes_few_large_ranges():
    """While as many runs wait as may, what is published grows: bytes decide, and not wake-ups."""
    world = World(Random(1), 0.0, Limits(max_bytes=1_000, max_ranges=100))
    for _ in range(1_000):
        world.publish(2)
        world.now += timedelta(seconds=10)
        world.plan()
        if world.randomness.random() < 0.05:  # processing is much slower than the topic
            world.run()
    planned = len(world.runs)
    world.drain()
    world.check()

    size_bytes = sum(b.notification.size_bytes for found in world.batches for b in found)
    assert planned < 1.3 * size_bytes / 1_000
