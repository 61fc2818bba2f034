"""A topic whose two read partitions have nothing in common: for whatever reads a topic.

It is the second of its name. Partition 0 has all that was ever published to it; of partition 1,
retention has removed the first Batches, objects too. Offsets have gaps, as in Kafka, and a group
has committed in one partition alone. Batches differ in rows and in the epoch of their producer.

What takes one partition for the other, an offset for a count, or the start for 0, reads something
else here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from memq.client.sync import EventLoopThread
from memq.core.wire import messages as m
from memq.queue.kafka.queue import KafkaQueue
from tests.fakes.kafka import InMemoryKafka
from tests.fakes.queue import InMemoryQueue
from tests.topics.reading import World, world

TOPIC = "t"
GROUP = "g"
BATCHES = 13  # so that one partition has one more
REMOVED = 2  # Batches of partition 1
EPOCHS = {0: 3, 1: 5}  # of their producers, by read partition


class Row(NamedTuple):
    """Where a LogMessage is, and its value."""

    partition: int
    offset: int
    value: bytes


class Lopsided(NamedTuple):
    """The topic.

    Attributes:
        address: of its broker.
        topic_id: of the topic; there was another one before.
        rows: that are retained, in the order of partitions and offsets.
        removed: that were there before those.
        starts: first offset that is retained, by read partition.
        ends: one past the last, likewise.
        committed: next offset of `GROUP`, in the partitions where it has one.
        world: what is behind it.
        loop: on which the broker runs.
    """

    address: str
    topic_id: str
    rows: list[Row]
    removed: list[Row]
    starts: dict[int, int]
    ends: dict[int, int]
    committed: dict[int, int]
    world: World
    loop: EventLoopThread

    def of(self, partition: int, start: int = 0, end: int = 1 << 40) -> list[Row]:
        """The rows of a range of offsets."""
        return [row for row in self.rows if row[0] == partition and start <= row.offset < end]

    def batches(self, partition: int) -> list[int]:
        """The offsets of a partition, which are not all between its start and its end."""
        return sorted({row.offset for row in self.of(partition)})


@contextmanager
def lopsided(folder: Path, queue: str) -> Iterator[Lopsided]:
    """The topic `t` on a broker in a thread of this process, with notifications in this queue."""
    loop = EventLoopThread("broker")
    running = loop.run(_start(folder, queue))
    try:
        yield loop.run(_filled(running, loop))
    finally:
        loop.run(running.stop())
        loop.close()


class _Running:
    def __init__(self, manager) -> None:
        self._manager = manager
        self.world: World

    async def stop(self) -> None:
        await self._manager.__aexit__(None, None, None)


async def _start(folder: Path, queue: str) -> _Running:
    found = InMemoryQueue()
    if queue == "kafka":
        found = KafkaQueue(InMemoryKafka().client(), cluster_id="memq", broker_id="broker-1")
        await found.start()
    running = _Running(world(folder, queue=found, read_partitions=2))
    running.world = await running._manager.__aenter__()
    return running


async def _filled(running: _Running, loop: EventLoopThread) -> Lopsided:
    w = running.world
    for _ in range(3):
        await w.write(b"of the topic before")
    await w.writer.ask(m.DeleteTopic(topic=TOPIC))
    w.info = await w.writer.create(TOPIC, read_partitions=2, batch_age="1ms")
    w.queue_topic, w.sent = f"{TOPIC}.{w.info.topic_id}", []
    rows: list[Row] = []
    for number in range(BATCHES):
        values = [b"%d.%d" % (number, row) for row in range(number % 3 + 1)]
        partition, offset = await w.write(
            *values, producer_id=f"p{number % 2}", epoch=EPOCHS[number % 2]
        )
        rows += [Row(partition, offset, value) for value in values]
    rows.sort()
    ours = sorted({row.offset for row in rows if row.partition == 1})
    for offset in ours[:REMOVED]:
        (await w.path(1, offset)).unlink()
    await w.queue.truncate(w.queue_topic, 1, ours[REMOVED - 1] + 1)
    bounds = {each: await w.queue.offsets(w.queue_topic, each) for each in (0, 1)}
    committed = {0: sorted({row.offset for row in rows if row.partition == 0})[2] + 1}
    offsets = [m.PartitionOffset(*each) for each in committed.items()]
    await w.writer.ask(m.CommitOffsets(group=GROUP, topic=TOPIC, member_id="", offsets=offsets))
    return Lopsided(
        address=w.address,
        topic_id=w.info.topic_id,
        rows=[row for row in rows if row.offset >= bounds[row.partition][0]],
        removed=[row for row in rows if row.offset < bounds[row.partition][0]],
        starts={each: start for each, (start, _) in bounds.items()},
        ends={each: end for each, (_, end) in bounds.items()},
        committed=committed,
        world=w,
        loop=loop,
    )
