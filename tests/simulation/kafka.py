"""The Kafka of a run, whose commits and truncations are noted when they are true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.notification import decode_notification
from memq.queue.kafka.client import Place
from memq.queue.kafka.queue import START_S, KafkaQueue
from tests.fakes.kafka import InMemoryKafka
from tests.simulation.history import Durable, Removal, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.config import BrokerConfig
    from memq.queue.kafka.client import KafkaRecord
    from tests.fakes.kafka import InMemoryClient
    from tests.fakes.loop import ProcessLoop
    from tests.simulation.run import Run
    from tests.simulation.world import Process

OF_KAFKA_USUALLY = {
    "latency_s": (0.0002, 0.01),
    "marker_s": (0.0002, 0.02),
    "told_s": (0.0, 0.1),
    "cuts": 0.05,
    "away": "",
    "loses": 0.0,
    "drops": 0.0,
    "refuses": 0.0,
}
CLUSTER = "memq."  # before the names of its topics
STATE = "memq.memq-state"


def kafka_of(run: Run) -> InMemoryKafka:
    """The Kafka of a run."""
    starts: dict[Place, int] = {}

    def at(place: Place, offset: int) -> tuple[str, str, int, int]:
        return (*split(place.topic.removeprefix(CLUSTER)), place.partition, offset)

    def committed(place: Place, record: KafkaRecord) -> None:
        if place.topic != STATE:
            durable = Durable(run.now_us, *at(place, record.offset))
            notification = decode_notification(record.value)
            run.published(durable, notification)
            if run.cluster is not None:
                queue_topic = place.topic.removeprefix(CLUSTER)
                run.cluster.published(place, queue_topic, notification)

    def truncated(place: Place, start: int) -> None:
        for offset in range(starts.get(place, 0), start):
            found = run.publications.get(at(place, offset))
            if found is not None:
                run.forgotten.add(found[1:])
                run.history.add(Removal(run.now_us, "notification", *found[1:], found.time_us))
        starts[place] = start

    def schedule(delay_s: float, call: Callable[[], None]) -> None:
        run.world.timeline.after(int(delay_s * 1e6), call)

    kafka = InMemoryKafka(schedule, run.world.rng("kafka"), committed, truncated)
    be_usual(kafka)
    return kafka


def be_usual(kafka: InMemoryKafka) -> None:
    """Let a Kafka be as it usually is."""
    for name, usual in OF_KAFKA_USUALLY.items():
        setattr(kafka, name, usual)


def client_in(kafka: InMemoryKafka, loop: ProcessLoop) -> InMemoryClient:
    """A client that one life of a process has."""

    def schedule(delay_s: float, call: Callable[[], None]) -> None:
        loop.timeline.after(int(delay_s * 1e6), lambda: loop.alive and loop.call_soon(call))

    return kafka.client(schedule)


def serves(queue: KafkaQueue, at: tuple[str, str, int, int]) -> bool:
    """Whether a broker's queue gives a notification by what it knows, without a look at Kafka."""
    topic, topic_id, partition, offset = at
    tail = queue._tails.get(Place(f"{CLUSTER}{topic}.{topic_id}", partition))
    fresh = tail is not None and queue._runtime.mono_s() - tail.looked_s <= START_S
    return fresh and tail.start <= offset < tail.end


async def open_kafka(run: Run, process: Process, config: BrokerConfig) -> KafkaQueue:
    """The queue in it, as one life of a broker has it."""
    client = client_in(run.kafka, process.loop)
    if run.cluster is not None:
        run.cluster.has_client(process, client)
    queue = KafkaQueue(
        client,
        cluster_id=config.cluster_id,
        broker_id=config.broker_id,
        runtime=process.runtime,
    )
    await queue.start()
    return queue
