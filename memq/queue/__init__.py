"""Notification queues, and which one the option `queue` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import ConfigError
from memq.queue.kafka.client import log_failure
from memq.runtime.system import SYSTEM, Runtime

if TYPE_CHECKING:
    from memq.core.named_values import NamedValues
    from memq.core.queue import NotificationQueue
    from memq.queue.kafka.client import OnFailure

_KAFKA = "kafka://"


def is_embedded(queue: str) -> bool:
    """Return whether the option `queue` names the embedded queue.

    Raises:
        ConfigError: it names nothing that is known.
    """
    if queue and (not queue.startswith(_KAFKA) or not queue.removeprefix(_KAFKA).strip("/")):
        raise ConfigError(
            f"queue = {queue!r}: write kafka://host:port,host:port for Kafka, or nothing for the "
            "embedded queue"
        )
    return not queue


async def open_kafka(
    queue: str,
    options: NamedValues,
    *,
    cluster_id: str,
    broker_id: str,
    runtime: Runtime = SYSTEM,
    on_failure: OnFailure = log_failure,
) -> NotificationQueue:
    """Open the queue in Kafka that the option `queue` names.

    Args:
        queue: such as `kafka://kafka-1:9092,kafka-2:9092`.
        options: see `ConfluentClient`.
        cluster_id: of the cluster, which shares what is in Kafka under this name.
        broker_id: of this broker.
        runtime: clocks, chance and threads.
        on_failure: told, on the event loop, of what nothing expected, and where it was; the queue
            does not work any more then. As `FatalErrors.report`.

    Raises:
        ConfigError: an option is wrong, or Kafka's client is not installed.
        QueueError: Kafka is away, or does not let us in.
    """
    try:
        from memq.queue.kafka.confluent import ConfluentClient  # noqa: PLC0415 - optional
    except ImportError as exc:
        raise ConfigError(
            f"queue = {queue!r} needs Kafka's client: pip install 'memq[kafka]' ({exc})"
        ) from exc
    from memq.queue.kafka.queue import KafkaQueue  # noqa: PLC0415 - with its client

    address = queue.removeprefix(_KAFKA).strip("/")
    client = ConfluentClient(address, dict(options), runtime, on_failure)
    found = KafkaQueue(
        client,
        cluster_id=cluster_id,
        broker_id=broker_id,
        runtime=runtime,
        on_failure=on_failure,
    )
    try:
        await found.start()
    except BaseException:
        await found.close()
        raise
    return found
