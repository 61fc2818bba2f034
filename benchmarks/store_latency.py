"""Latency of acks and reads on an object store with stalls: `python -m benchmarks.store_latency`.

The real broker, producer and consumer, in the simulated time of `tests/simulation`, so that
thousands of Batches take seconds. The store answers a put of 8 MiB as S3 is published to (half
within 160 ms, 1 in 100 above 400 ms; a read within 63 ms), and one request in a thousand stalls for
1 to 10 s. Beside it stands the same without hedging.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import msgspec

from memq.runtime import hedging
from tests.simulation import broker as simulated
from tests.simulation import history as h
from tests.simulation import plan as plans
from tests.simulation.run import Run
from tests.simulation.world import World

if TYPE_CHECKING:
    import random

Figures = list[tuple[str, str, str]]

SECONDS = 600.0
STALLS = 0.001
SPREAD = 0.38  # of the logarithm: p99 is 2.4 times the median
PUT_S, READ_S = 0.16, 0.063  # medians
PRODUCERS = 8
PAUSE_S = 0.5  # of each between two Messages, on average; each Message is a Batch, mostly
USUAL = hedging.MIN_KNOWN, hedging.EXTRA_SHARE  # the simulation has others
STORM_S = 60.0  # in which one request in ten is refused, from the start on


def answer_s(rng: random.Random, median_s: float) -> float:
    """How long an answer takes."""
    if rng.random() < STALLS:
        return rng.uniform(1.0, 10.0)
    return median_s * rng.lognormvariate(0.0, SPREAD)


def latencies(
    *, batch_age: str, hedged: bool = True, storm: bool = False
) -> tuple[list[float], list[float], float]:
    """Seconds to each ack and to each read, sorted, and puts for each Batch."""
    topic = plans.Topic(name="t0", options={"batch_age": batch_age, "ring_slots": 32})
    producers = [
        plans.Producer(name=f"p{number}", topic="t0", burst=1, records=1, pause_s=PAUSE_S)
        for number in range(PRODUCERS)
    ]
    readers = [plans.Reader(name="r0", topic="t0")]
    plan = msgspec.structs.replace(plans.calm(7, SECONDS, topic, producers, readers), store=True)
    simulated.HEDGING = USUAL if hedged else (1 << 40, 0.0)
    with World(plan.seed) as world:
        run = Run(plan, world)
        store = run.store
        assert store is not None
        # What comes after is no measurement, and need not take long.
        store.put_s = lambda rng: 0.001 if run.quiet else answer_s(rng, PUT_S)
        store.read_s = lambda rng: 0.001 if run.quiet else answer_s(rng, READ_S)
        if storm:
            store.refuses = 0.1
            world.timeline.after(int(STORM_S * 1e6), setattr, store, "refuses", 0.0)
        with store.entered():
            run.carry_out()
        assert not run.violations, run.violations
        return _found(run.history, run)


def _found(history: h.History, run: Run) -> tuple[list[float], list[float], float]:
    sends = [each for each in history.sends if each.outcome == h.OK]
    sent = {value: each.start_us for each in sends for value in each.values}
    reads = [
        (poll.end_us - sent[value]) / 1e6
        for poll in history.polls
        if poll.process.startswith("r0")
        for value in poll.values
        if value in sent
    ]
    acks = [(each.end_us - each.start_us) / 1e6 for each in sends]
    return sorted(acks), sorted(reads), run.store.puts / len(run.publications)


def _row(what: str, found: list[float], note: str) -> tuple[str, str, str]:
    at = {share: found[int(share * len(found))] * 1e3 for share in (0.5, 0.99, 0.999)}
    figure = ", ".join(
        f"p{100 * share:g} {milliseconds:.0f} ms" for share, milliseconds in at.items()
    )
    return what, f"{figure}, longest {found[-1] * 1e3:.0f} ms", f"of {len(found)}; {note}"


def run() -> Figures:
    """Name, figure and note of each measurement."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    rows = []
    for what, options in (
        ("ack, full Batches", {"batch_age": "5ms"}),
        ("the same without hedging", {"batch_age": "5ms", "hedged": False}),
        ("the same, 10 % refused in the first minute", {"batch_age": "5ms", "storm": True}),
        ("ack, batch_age 100ms", {"batch_age": "100ms"}),
    ):
        acks, reads, puts = latencies(**options)
        rows.append(_row(what, acks, f"{puts:.3f} puts for each Batch"))
    rows.append(_row("from write() to poll(), batch_age 100ms", reads, "through the store"))
    gc.enable()
    logging.disable(logging.NOTSET)
    return rows


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
