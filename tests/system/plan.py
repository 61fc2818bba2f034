"""What a run does, drawn from its seed: topics, producers, and how each broker ends.

A seed fixes the plan. It does not fix the timing of processes and threads, so a run that failed may
pass when it is run again; the command that replays a seed can repeat it many times.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fakes.crashing import MOMENTS, STEPS, CrashPoint
from tests.fakes.planted import flaky_queue, flaky_storage
from tests.system.lives import Life, Seams

SIZES = ((0,), (10, 100), (100, 1_000), (1_000, 20_000), (0, 50, 200_000))
LATE_STEPS = ("truncate", "delete", "release")  # that no ordinary life of one broker comes to
LOG_IN_S = 0.5  # of all clients of a run, on a busy machine
CUTS_S = 2.0  # with less, clients would do little but log in
REACHED_S = 3.0  # likewise, for a crash point to be reached
RETENTION_S = 15  # what a busy machine needs to ack every Message sooner, and little more


@dataclass(frozen=True)
class ProducerPlan:
    """One producer, or the lives of one with a stable id.

    Attributes:
        seed: of what it does.
        label: of its LogMessages.
        topic: that it writes to.
        stable: it has a producer id of its own choice, and is run again from the start when it is
            abandoned.
        abandoned_after: after how many steps, at least, each life but the last is abandoned.
        steps: of a stable one: how many there are.
        sizes: of the values, in bytes.
        options: of the producer.
    """

    seed: str
    label: str
    topic: str
    stable: bool
    abandoned_after: tuple[int, ...]
    steps: int
    sizes: tuple[int, ...]
    options: dict[str, object]


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        seed: that it was drawn from.
        topics: options by name.
        producers: who writes.
        lives: of the broker, before the one that lives to the end.
        options: of the broker.
        seams: its storage and queue.
        cuts_s: how long a connection lasts on average; 0 for as long as both sides want.
        quiet_s: how long the last broker lives before the producers end.
        secure: brokers speak TLS, and ask who their clients are.
    """

    seed: str
    topics: dict[str, dict[str, object]]
    producers: tuple[ProducerPlan, ...]
    lives: tuple[Life, ...]
    options: dict[str, object]
    seams: Seams
    cuts_s: float = 0.0
    quiet_s: float = 0.0
    secure: bool = False


def draw(seed: str) -> Plan:
    """The plan of a run of some seconds."""
    rng = random.Random(seed)
    topics = {f"t{number}": _topic(rng) for number in range(rng.choice((1, 1, 2)))}
    return Plan(
        seed=seed,
        topics=topics,
        producers=tuple(_producer(rng, number, topics) for number in range(rng.randint(2, 5))),
        lives=tuple(_life(rng) for _ in range(rng.randint(3, 6))),
        options={
            "memory_bytes": "8MiB",
            "park_timeout": rng.choice(("10ms", "10s")),
            "retention_interval": "100ms",
            "log_level": "warning",
        },
        seams=rng.choice((Seams(), Seams(flaky_storage, flaky_queue))),
        cuts_s=rng.choice((0.0, 0.2)),
    )


def over_a_network(plan: Plan) -> Plan:
    """The same run with upload deadlines that a store over a network meets on a busy machine.

    Where no put is in time for half a minute, Messages fail that nothing is wrong with.
    """
    longer = {"upload_deadline": "2s"}
    topics = {
        name: options | (longer if options.get("upload_deadline") == "100ms" else {})
        for name, options in plan.topics.items()
    }
    return replace(plan, topics=topics)


def secured(plan: Plan) -> Plan:
    """The same run by TLS and with users, in which all lasts longer: each client has to log in."""
    plan = over_a_network(plan)
    lives = tuple(
        replace(life, ends_after_s=life.ends_after_s + (REACHED_S if life.crash_at else LOG_IN_S))
        for life in plan.lives
    )
    return replace(plan, lives=lives, cuts_s=plan.cuts_s and CUTS_S, secure=True)


def draw_retention(seed: str) -> Plan:
    """The plan of a run that outlives its first Batches, with crashes while they are removed.

    A topic forgets as quickly as it removes. So no job is run again, for it might come too late,
    and no Message has to ask often for room, for it might be given up.
    """
    rng = random.Random(seed)
    plan = draw(seed)
    window = {"retention": f"{RETENTION_S}s", "dedup_window": f"{RETENTION_S}s"}
    crashes = [
        CrashPoint("truncate", "before", 1),
        CrashPoint("truncate", "after", 1),
        CrashPoint("truncate", "after", rng.randint(2, 4)),
        CrashPoint("delete", rng.choice(MOMENTS), rng.randint(1, 20)),
        CrashPoint("os.unlink", rng.choice(MOMENTS), rng.randint(1, 40)),
    ]
    rng.shuffle(crashes)
    return Plan(
        seed=seed,
        topics={
            name: options | window | {"upload_deadline": "5s"}
            for name, options in plan.topics.items()
        },
        producers=tuple(
            replace(each, abandoned_after=(), options=each.options | {"delivery_timeout": None})
            for each in plan.producers
        ),
        lives=(*plan.lives, Life(None, RETENTION_S), *(Life(point, 2.0) for point in crashes)),
        options=plan.options | {"park_timeout": "10s"},
        seams=plan.seams,
        quiet_s=0.5,
    )


def _topic(rng: random.Random) -> dict[str, object]:
    return {
        "batch_age": f"{rng.choice((1, 5, 20, 50))}ms",
        "batch_bytes": rng.choice(("1MiB", "1MiB", "8MiB")),
        "batch_messages": rng.choice((1, 3, 20, 10_000)),
        "message_bytes": "1MiB",
        "ring_slots": rng.choice((1, 2, 8)),
        "upload_deadline": rng.choice(("100ms", "30s")),
        "write_partitions": rng.choice((1, 1, 2, 3)),
        "read_partitions": rng.choice((1, 1, 2, 4)),
        "ordering": rng.choice(("none", "producer")),
    }


def _producer(
    rng: random.Random, number: int, topics: dict[str, dict[str, object]]
) -> ProducerPlan:
    topic = rng.choice(list(topics))
    # One Message at a time, each after the Batch of the one before, would make a run long.
    in_flight = (1, 4, 64) if topics[topic]["batch_age"] in ("1ms", "5ms") else (16, 64)
    stable = rng.random() < 0.5
    steps = rng.randint(20, 60)
    lives = rng.choice((0, 0, 1, 2)) if stable else 0
    return ProducerPlan(
        seed=str(rng.random()),
        label=f"p{number}",
        topic=topic,
        stable=stable,
        abandoned_after=tuple(rng.randint(1, steps) for _ in range(lives)),
        steps=steps,
        sizes=rng.choice(SIZES),
        options={
            "linger": f"{rng.choice((0, 1, 10))}ms",
            "message_bytes": rng.choice(("1KiB", "16KiB", "256KiB", "1MiB")),
            "max_in_flight": rng.choice(in_flight),
            "compression": rng.choice((None, None, "zstd", "lz4")),
            "delivery_timeout": "80s",  # of a busy machine; less than CLOSE_TIMEOUT_S
        },
    )


def _life(rng: random.Random) -> Life:
    if rng.random() < 0.65:
        step = rng.choice([step for step in STEPS if step not in LATE_STEPS])
        most = 25 if step.startswith("os.") else 6
        point = CrashPoint(step, rng.choice(MOMENTS), rng.randint(1, most))
        return Life(point, 0.6)
    by = rng.choice(("kill", "kill", "kill", "term", "term+kill"))
    return Life(None, rng.uniform(0.01, 0.5), by)


def folder_of(root: Path, seed: str) -> Path:
    """Where a run keeps its data."""
    return root / f"chaos-{seed.replace('/', '-')}"
