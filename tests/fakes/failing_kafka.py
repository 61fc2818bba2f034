"""A Kafka for chaos: a real one, which is frozen and killed now and then."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from memq.core.queue import NotificationQueue
from memq.queue import open_kafka
from tests.harness.services.jars import Jars
from tests.harness.services.kafka import Kafka
from tests.system.plan import Plan

PAUSE_S = (4.0, 12.0)  # between two faults
FREEZES_S = (0.3, 1.0, 4.0)
KILLED = 0.3  # of all faults; the others freeze it
START_S = 3.0  # that a broker takes longer to start than with the embedded queue


@contextmanager
def kafka(folder: Path, jars: Jars | None = None, seed: object = 0) -> Iterator[str]:
    """Where a Kafka listens that fails for everybody."""
    with Kafka(folder / "kafka", jars=jars) as server:
        end = threading.Event()
        failing = threading.Thread(target=_fail, args=(server, random.Random(seed), end))
        failing.start()
        try:
            yield f"kafka://{server.address}"
        finally:
            end.set()
            failing.join()


def _fail(server: Kafka, rng: random.Random, end: threading.Event) -> None:
    while not end.wait(rng.uniform(*PAUSE_S)):
        if rng.random() < KILLED:
            server.kill()
            server.start()
        else:
            server.freeze()
            end.wait(rng.choice(FREEZES_S))
            server.thaw()


def in_kafka(plan: Plan, address: str) -> Plan:
    """The same run with its notifications in Kafka."""
    later = [replace(life, ends_after_s=life.ends_after_s + START_S) for life in plan.lives]
    seams = plan.seams._replace(queue=partial(queue_of, address), supervised=True)
    return replace(plan, seams=seams, lives=tuple(later))


async def queue_of(address: str, folder: Path) -> NotificationQueue:
    """The queue of a broker, under a name that only the run with this folder has."""
    cluster = f"chaos-{sha256(str(folder).encode()).hexdigest()[:12]}"
    return await open_kafka(address, frozenset(), cluster_id=cluster, broker_id="b")
