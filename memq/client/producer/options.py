"""Options of a producer: one row each, for the constructor, the command line and the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypedDict

from memq.client.security import security_values
from memq.core.named_values import GivenValues, NamedValues, parse_storage_options
from memq.core.names import MAX_PRODUCER_ID, is_producer_id
from memq.core.options import Option, defaults, options_of, parse_options
from memq.core.units import GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS
from memq.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from memq.core.topic import TopicConfig

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
"""Ack levels as they are written, and as they travel."""

MAX_EPOCH = (1 << 31) - 1
DELIVERY_MARGIN_MS = 30 * SECOND_MS  # for retries, beyond what a Batch takes at most to be stored
ANSWER_MARGIN_MS = 10 * SECOND_MS  # a broker answers this long after the Batch's own deadline


def _acks(value: object) -> int:
    if isinstance(value, bool) or str(value) not in ACKS:
        raise ConfigError(f"acks = {value!r}: must be 'all', 1 or 0")
    return ACKS[str(value)]


def _producer_id(value: str) -> str:
    if not is_producer_id(value):
        raise ConfigError(
            f"producer_id {value[:250]!r} must have 1 to {MAX_PRODUCER_ID} printable ASCII "
            "characters"
        )
    return value


def _partition_by(value: str) -> str | None:
    if not value:
        raise ConfigError("partition_by is empty; write none, key, or the name of a column")
    return None if value == "none" else value


class ProducerArguments(TypedDict, total=False):
    """The keyword arguments of a producer.

    Attributes:
        acks: When a Message is acked. all: stored and published; 1: received and checked by the
            broker; 0: sent.
        linger: How long a Message collects records before it is sent.
        message_bytes: A Message is sent at this size, or at the topic's limit if that is less.
        compression: Compression of each Message, kept in storage.
        buffer_bytes: Memory for open and unacked Messages; at the limit writing waits.
        max_in_flight: Unacked Messages per broker.
        delivery_timeout: How long to try to deliver a Message; by default the topic's batch_age +
            upload_deadline + 30 s. Must be less than its dedup_window.
        max_block: How long a write waits for memory, and the start for a broker, before it fails.
        partition_by: Choice of the write partition. none: Messages take turns; key: by Kafka's
            default hash of the key, without a key in turns. In a typed topic, the name of the key
            column.
        producer_id: Stable name for exactly-once across restarts; turns linger off.
        epoch: Of the producer id; a higher one fences the lower.
        zone: Zone of this client, such as eu-west-1a, to prefer its brokers. Empty for `MEMQ_ZONE`
            or the profile's.
        storage_options: Ignored: a producer reads no objects. Lets a profile be passed to any
            client.
        token: Credential; empty if the brokers ask for none.
        security: What TLS needs, such as `ca=ca.pem`; see Security. Empty for `MEMQ_SECURITY` or
            the profile's.
        client: Name of this producer in the brokers' logs.
    """

    acks: Annotated[str | int, Option("text", "all", choices=("all", "1", "0"), read=_acks)]
    linger: Annotated[str, Option("duration", "10ms", 0, MINUTE_MS)]
    message_bytes: Annotated[str | int, Option("size", "1MiB", KIB, 64 * MIB)]
    compression: Annotated[str | None, Option("text", None, choices=("zstd", "lz4"))]
    buffer_bytes: Annotated[str | int, Option("size", "64MiB", KIB, 64 * GIB)]
    # Acks of `all` come with whole Batches, 200 ms after the first Message by default: at a Message
    # each 10 ms, the default linger, some 25 are in flight; at full speed a few Batches of 8 MiB.
    max_in_flight: Annotated[int, Option("count", 64, 1, 1_000)]
    delivery_timeout: Annotated[
        str | None, Option("duration", None, 1, 24 * HOUR_MS, shown="derived from the topic")
    ]
    max_block: Annotated[str, Option("duration", "60s", 0, HOUR_MS)]
    partition_by: Annotated[str, Option("text", "none", read=_partition_by)]
    producer_id: Annotated[str | None, Option("text", None, read=_producer_id, shown="random")]
    epoch: Annotated[int, Option("count", 0, 0, MAX_EPOCH)]
    zone: Annotated[str, Option("text", "")]
    storage_options: Annotated[GivenValues, Option("text", "", read=parse_storage_options)]
    token: Annotated[str, Option("text", "")]
    security: Annotated[GivenValues, Option("text", "", read=security_values)]
    client: Annotated[str, Option("text", "")]


PRODUCER_OPTIONS = options_of(ProducerArguments)


@dataclass(frozen=True)
class ProducerOptions:
    """A producer's options in plain units; `ProducerArguments` says what they mean."""

    topic: str
    acks: int
    linger_ms: int
    message_bytes: int
    compression: str | None
    buffer_bytes: int
    max_in_flight: int
    delivery_timeout_ms: int | None
    max_block_ms: int
    partition_by: str | None
    producer_id: str | None
    epoch: int
    zone: str
    storage_options: NamedValues
    token: str = field(repr=False)
    security: NamedValues
    client: str

    @classmethod
    def parse(cls, *, topic: str, **given: Unpack[ProducerArguments]) -> ProducerOptions:
        """Options from human values, checked.

        Raises:
            ConfigError: an option is unknown, of the wrong type, or out of its limits.
        """
        fields = defaults(PRODUCER_OPTIONS) | parse_options(PRODUCER_OPTIONS, given)
        options = cls(topic=topic, **fields)
        if options.epoch and options.producer_id is None:
            raise ConfigError(f"epoch = {options.epoch} needs a producer_id whose epoch it is")
        if options.buffer_bytes < options.message_bytes:
            raise ConfigError(
                f"buffer_bytes = {options.buffer_bytes} must hold at least one Message of "
                f"message_bytes = {options.message_bytes}"
            )
        return options

    @property
    def linger_s(self) -> float | None:
        """None with a producer id of the user's: its Messages must be cut the same in every run."""
        return None if self.producer_id is not None else self.linger_ms / 1_000

    def delivery_timeout_s(self, config: TopicConfig) -> float:
        """Return the delivery deadline for a topic, in seconds.

        Raises:
            ConfigError: it does not end before the topic forgets what was published.
        """
        if self.delivery_timeout_ms is None:
            wanted_ms = config.batch_age_ms + config.upload_deadline_ms + DELIVERY_MARGIN_MS
            return min(wanted_ms, config.dedup_window_ms - 1) / 1_000
        if self.delivery_timeout_ms >= config.dedup_window_ms:
            raise ConfigError(
                f"delivery_timeout = {self.delivery_timeout_ms}ms must be less than the "
                f"dedup_window = {config.dedup_window_ms}ms of topic {config.name!r}, or a retry "
                "could be published twice"
            )
        return self.delivery_timeout_ms / 1_000


def answer_timeout_s(config: TopicConfig) -> float:
    """Return how long a healthy broker may take to answer a Write to this topic, in seconds."""
    return (config.batch_age_ms + config.upload_deadline_ms + ANSWER_MARGIN_MS) / 1_000
