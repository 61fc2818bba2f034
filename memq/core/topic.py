"""A topic's name and configuration."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from memq.core.options import Option, defaults, parse_options
from memq.core.units import format_duration_ms, format_size_bytes
from memq.errors import ConfigError, InvalidRequestError

MAX_TOPIC_NAME = 200  # it becomes part of file names and object keys, which end at 255 bytes
_TOPIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

INCARNATION_DIGITS = 16
"""Hex digits of an incarnation: the random name of one life of a topic, from its creation to its
deletion. A topic that is made again under the same name has another one."""
_INCARNATION = re.compile(rf"[0-9a-f]{{{INCARNATION_DIGITS}}}")

AUDIT_TOPIC = "_memq_audit"
"""Internal topic to which clients report what they produced."""
AUDIT_OPTIONS: dict[str, Any] = {
    "batch_age": "100ms", "retention": "30d", "audited": False, "dedup_window": "10m"
}  # fmt: skip

_SECOND, _MINUTE, _DAY = 1_000, 60_000, 86_400_000
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

TOPIC_OPTIONS = (
    Option("batch_bytes", "size", "8MiB", "A Batch is sealed when it holds this much.", _KIB, _GIB),
    Option(
        "batch_age",
        "duration",
        "200ms",
        "A Batch is sealed this long after its first Message; the floor of acks=all latency.",
        1,
        10 * _MINUTE,
    ),
    Option(
        "batch_messages",
        "count",
        10_000,
        "A Batch is sealed when it holds this many Messages.",
        1,
        100_000,
    ),
    Option(
        "message_bytes",
        "size",
        "4MiB",
        "Largest Message accepted, as sent and as decoded.",
        _KIB,
        64 * _MIB,
    ),
    Option(
        "ring_slots",
        "count",
        8,
        "Batches that one write partition may hold at a time: the open one and those that upload. "
        "At the limit the partition stops accepting, and producers wait.",
        1,
        64,
    ),
    Option(
        "write_partitions",
        "count",
        1,
        "TopicProcessors that build Batches side by side. It can grow, not shrink.",
        1,
        256,
    ),
    Option(
        "read_partitions",
        "count",
        1,
        "Partitions of the notification queue: the most members of a group that can share the "
        "topic. Fixed at creation.",
        1,
        256,
    ),
    Option(
        "ordering",
        "text",
        "none",
        "producer: each producer's Messages appear in the order they were sent.",
        choices=("none", "producer"),
    ),
    Option(
        "retention",
        "duration",
        "7d",
        "Batches and their notifications are deleted this long after the Batch was sealed; only "
        "the time that the broker runs counts.",
        10 * _SECOND,
        3650 * _DAY,
    ),
    Option(
        "upload_deadline",
        "duration",
        "30s",
        "A sealed Batch that is not stored by then fails, and so do its Messages.",
        100,
        10 * _MINUTE,
    ),
    Option(
        "dedup_window",
        "duration",
        "1h",
        "How long a published sequence is remembered. A repeat inside it is never published "
        "twice; producers must give up sooner than this.",
        10 * _SECOND,
        30 * _DAY,
    ),
    Option(
        "audited",
        "flag",
        True,
        "Producers report what they sent, and groups what they read, to the audit topic, so that "
        "`memq audit` can name losses.",
    ),
)
"""Every option of a topic but its schema, which is Arrow and not text."""


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one topic; what each field means stands in `TOPIC_OPTIONS`.

    Attributes:
        name: the topic.
        schema: serialized Arrow schema of a typed topic; None for the default schema.
    """

    name: str
    batch_bytes: int
    batch_age_ms: int
    batch_messages: int
    message_bytes: int
    ring_slots: int
    write_partitions: int
    read_partitions: int
    ordering: str
    retention_ms: int
    upload_deadline_ms: int
    dedup_window_ms: int
    audited: bool
    schema: bytes | None = None

    @classmethod
    def create(cls, name: str, /, *, schema: bytes | None = None, **options: object) -> TopicConfig:
        """A configuration from human option values, checked.

        Raises:
            InvalidRequestError: the name cannot be a topic.
            ConfigError: an option is unknown or out of its limits.
        """
        fields: dict[str, Any] = defaults(TOPIC_OPTIONS) | parse_options(TOPIC_OPTIONS, options)
        return cls(name=name, schema=schema, **fields).checked()

    def altered(self, /, **options: object) -> TopicConfig:
        """This configuration with some options replaced by human values, checked.

        Raises:
            ConfigError: an option is unknown, out of its limits, or may not change that way.
        """
        new = msgspec.structs.replace(self, **parse_options(TOPIC_OPTIONS, options)).checked()
        if new.read_partitions != self.read_partitions:
            raise ConfigError(
                f"read_partitions of {self.name!r} is fixed at {self.read_partitions}; "
                "create another topic"
            )
        if new.write_partitions < self.write_partitions:
            raise ConfigError(
                f"write_partitions of {self.name!r} cannot shrink from {self.write_partitions} "
                f"to {new.write_partitions}: producers belong to them for life"
            )
        if new.ordering != self.ordering:
            raise ConfigError(f"ordering of {self.name!r} is fixed at {self.ordering!r}")
        return new

    def checked(self) -> TopicConfig:
        """This configuration, when every field is inside its limits and they fit together.

        Raises:
            InvalidRequestError: the name cannot be a topic.
            ConfigError: a field is out of its limits, or two do not fit together.
        """
        check_topic_name(self.name)
        for option in TOPIC_OPTIONS:
            value = getattr(self, option.field)
            option.parse(option.show(value) if option.kind in ("duration", "size") else value)
        self._check_fit()
        return self

    def read_partitions_of(self, write_partition: int) -> list[int]:
        """The read partitions over which a write partition spreads its notifications.

        A write partition has its share of them, at least one; with `ordering="producer"` just one.
        """
        share = list(range(write_partition, self.read_partitions, self.write_partitions))
        if not share:
            share = [write_partition % self.read_partitions]
        return share[:1] if self.ordering == "producer" else share

    def _check_fit(self) -> None:
        """Refuse fields that are each inside their limits but do not fit together."""
        message, batch = format_size_bytes(self.message_bytes), format_size_bytes(self.batch_bytes)
        if self.message_bytes > self.batch_bytes:
            raise ConfigError(
                f"message_bytes = {message} exceeds batch_bytes = {batch}: a Message must fit into "
                "a Batch; lower the first or raise the second"
            )
        settled_ms = self.batch_age_ms + self.upload_deadline_ms
        window = format_duration_ms(self.dedup_window_ms)
        if settled_ms >= self.dedup_window_ms:
            raise ConfigError(
                f"dedup_window = {window} must exceed batch_age + upload_deadline = "
                f"{format_duration_ms(settled_ms)}, or a retry could be doubled"
            )
        if self.retention_ms < self.dedup_window_ms:
            # A restart rebuilds the window from the notifications that are still held.
            raise ConfigError(
                f"retention = {format_duration_ms(self.retention_ms)} must be at least "
                f"dedup_window = {window}, or a retry after a restart could be doubled; raise the "
                "first or lower the second"
            )


def check_incarnation(incarnation: str) -> None:
    """Refuse what cannot be the incarnation of a topic.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    if _INCARNATION.fullmatch(incarnation) is None:
        raise InvalidRequestError(
            f"incarnation {incarnation[:80]!r} is not valid: it has {INCARNATION_DIGITS} "
            "lower-case hex digits"
        )


def check_topic_name(name: str) -> None:
    """Refuse a name that cannot be a topic.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    if len(name) > MAX_TOPIC_NAME or _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"topic name {name[:250]!r} is not valid: use 1 to {MAX_TOPIC_NAME} of letters, "
            "digits, '.', '_' and '-', starting with a letter, digit or '_'"
        )
