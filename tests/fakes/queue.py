"""A notification queue in memory: the queue in Kafka, on a model of Kafka that takes no time."""

from __future__ import annotations

from memq.queue.kafka.queue import KafkaQueue
from tests.fakes.kafka import InMemoryKafka


class InMemoryQueue(KafkaQueue):
    """A queue in memory, whose offsets have no gaps. It grows without bound.

    Args:
        broker_id: of the broker that has it.
        kafka: where the notifications are, if another process has made them.
    """

    def __init__(self, broker_id: str = "first", kafka: InMemoryKafka | None = None) -> None:
        self.kafka = kafka or InMemoryKafka(markers=False)
        super().__init__(self.kafka.client(), cluster_id="memory", broker_id=broker_id)
        try:
            self.start().send(None)
        except StopIteration:
            return
        raise AssertionError("a Kafka that takes no time has let a start wait")

    def another_process(self, broker_id: str = "second") -> InMemoryQueue:
        """Return the same queue as another process has it: open, and owner of nothing."""
        return InMemoryQueue(broker_id, self.kafka)
