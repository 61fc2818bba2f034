"""Options of a producer: one row each, for the constructor, the command line and the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from memq.core.options import Option
from memq.errors import ConfigError

if TYPE_CHECKING:
    from memq.core.topic import TopicConfig

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
"""Ack levels as they are written, and as they travel."""

COMPRESSIONS = (None, "zstd", "lz4")
MAX_PRODUCER_ID_BYTES = 200  # it stands in every notification
MAX_EPOCH = (1 << 31) - 1
DELIVERY_MARGIN_MS = 30 * _SECOND  # for retries, beyond what a Batch takes at most to be stored
ANSWER_MARGIN_MS = 10 * _SECOND  # a broker answers this long after the Batch's own deadline

LINGER = Option(
    "linger",
    "duration",
    "10ms",
    "How long a Message gathers records at least before it is sent.",
    0,
    _MINUTE,
)
MESSAGE_BYTES = Option(
    "message_bytes",
    "size",
    "1MiB",
    "A Message is sent when it holds this much; never more than the topic accepts.",
    _KIB,
    64 * _MIB,
)
BUFFER_BYTES = Option(
    "buffer_bytes",
    "size",
    "64MiB",
    "Memory for Messages that are gathered or not acked; at the limit writing waits.",
    _KIB,
    64 * _GIB,
)
# Acks of `all` come with whole Batches, 200 ms after the first Message by default: at a Message
# each 10 ms, the default linger, some 25 are in flight; at full speed a few Batches of 8 MiB are.
MAX_IN_FLIGHT = Option(
    "max_in_flight",
    "count",
    64,
    "Messages per broker that may be without an ack at a time.",
    1,
    1_000,
)
DELIVERY_TIMEOUT = Option(
    "delivery_timeout",
    "duration",
    "1m",
    "How long delivery of a Message is tried. Unless given: batch_age + upload_deadline of the "
    "topic + 30 s. It must be less than the topic's dedup_window.",
    1,
    24 * _HOUR,
)
MAX_BLOCK = Option(
    "max_block",
    "duration",
    "60s",
    "How long a write waits for memory, and the start for a broker, before it fails.",
    0,
    _HOUR,
)


class ProducerArguments(TypedDict, total=False):
    """The keyword arguments of a producer.

    Attributes:
        acks: "all" (default): acked when stored and notified; 1: when the broker has it; 0: never.
        linger: how long a Message gathers records at least; "10ms".
        message_bytes: size at which a Message is full; "1MiB".
        compression: of Messages: None (default), "zstd" or "lz4".
        buffer_bytes: bound on the memory for Messages not acked yet; "64MiB".
        max_in_flight: Messages without an ack per broker at a time; 64.
        delivery_timeout: how long delivery is tried; None (default) to derive it from the topic.
        max_block: how long a write waits for memory, and the start for a broker; "60s".
        producer_id: stable name, for exactly-once across restarts, which turns linger off; None
            (default) for a random one.
        epoch: of the producer id; a higher one fences the lower; 0.
        token: credential; empty (default) where the brokers ask for none.
        client: names this producer in the brokers' logs.
    """

    acks: str | int
    linger: str
    message_bytes: str | int
    compression: str | None
    buffer_bytes: str | int
    max_in_flight: int
    delivery_timeout: str | None
    max_block: str
    producer_id: str | None
    epoch: int
    token: str
    client: str


@dataclass(frozen=True)
class ProducerOptions:
    """A producer's options in plain units; what they mean stands in the rows above.

    Attributes:
        topic: to write to.
        acks: -1 (all), 1 or 0.
        compression: None, "zstd" or "lz4".
        producer_id: given by the user; None for one that is made up.
        epoch: of the producer id.
        linger_ms: 0 to send what there is at once.
        message_bytes: size of a full Message.
        buffer_bytes: bound on memory.
        max_in_flight: bound per broker.
        delivery_timeout_ms: None to derive it from the topic.
        max_block_ms: longest wait for memory.
        token: credential; empty where the brokers ask for none.
        client: names the producer in the brokers' logs.
    """

    topic: str
    acks: int
    compression: str | None
    producer_id: str | None
    epoch: int
    linger_ms: int
    message_bytes: int
    buffer_bytes: int
    max_in_flight: int
    delivery_timeout_ms: int | None
    max_block_ms: int
    token: str
    client: str

    @classmethod
    def parse(
        cls,
        *,
        topic: str,
        acks: str | int = "all",
        linger: str = "10ms",
        message_bytes: str | int = "1MiB",
        compression: str | None = None,
        buffer_bytes: str | int = "64MiB",
        max_in_flight: int = 64,
        delivery_timeout: str | None = None,
        max_block: str = "60s",
        producer_id: str | None = None,
        epoch: int = 0,
        token: str = "",
        client: str = "",
    ) -> ProducerOptions:
        """Options from human values, checked.

        Raises:
            ConfigError: a value is of the wrong type, or out of its limits.
        """
        if isinstance(acks, bool) or str(acks) not in ACKS:
            raise ConfigError(f"acks = {acks!r}: must be 'all', 1 or 0")
        if compression not in COMPRESSIONS:
            raise ConfigError(f"compression = {compression!r}: must be None, 'zstd' or 'lz4'")
        _check_identity(producer_id, epoch)
        options = cls(
            topic=topic,
            acks=ACKS[str(acks)],
            compression=compression,
            producer_id=producer_id,
            epoch=epoch,
            linger_ms=LINGER.parse(linger),
            message_bytes=_size(MESSAGE_BYTES, message_bytes),
            buffer_bytes=_size(BUFFER_BYTES, buffer_bytes),
            max_in_flight=MAX_IN_FLIGHT.parse(max_in_flight),
            delivery_timeout_ms=(
                None if delivery_timeout is None else DELIVERY_TIMEOUT.parse(delivery_timeout)
            ),
            max_block_ms=MAX_BLOCK.parse(max_block),
            token=token,
            client=client,
        )
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
        """The delivery deadline for a topic, in seconds.

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
    """How long a healthy broker may take to answer a Write to this topic, in seconds."""
    return (config.batch_age_ms + config.upload_deadline_ms + ANSWER_MARGIN_MS) / 1_000


def _size(option: Option, value: str | int) -> int:
    """A size as text, or as a number of bytes."""
    size: int = option.parse(f"{value}B" if type(value) is int else value)
    return size


def _check_identity(producer_id: str | None, epoch: int) -> None:
    if producer_id is not None and not 0 < len(producer_id.encode()) <= MAX_PRODUCER_ID_BYTES:
        raise ConfigError(
            f"producer_id {producer_id[:250]!r} must have 1 to {MAX_PRODUCER_ID_BYTES} bytes"
        )
    if type(epoch) is not int or not 0 <= epoch <= MAX_EPOCH:
        raise ConfigError(f"epoch = {epoch!r}: must be a number from 0 to {MAX_EPOCH}")
    if epoch and producer_id is None:
        raise ConfigError(f"epoch = {epoch} needs a producer_id whose epoch it is")
