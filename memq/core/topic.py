"""A topic's name and configuration."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from memq.core.names import check_name
from memq.core.options import Option, defaults, options_of, parse_options
from memq.core.units import (
    DAY_MS,
    GIB,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    format_duration_ms,
    format_size_bytes,
)
from memq.errors import ConfigError, InvalidRequestError

MAX_TOPIC_NAME = 200  # it becomes part of file names and object keys, which end at 255 bytes

TOPIC_ID_DIGITS = 16
"""Hex digits of a topic id: the random name of one life of a topic, from its creation to its
deletion. A topic that is recreated under the same name has another one."""
_TOPIC_ID = re.compile(rf"[0-9a-f]{{{TOPIC_ID_DIGITS}}}")

AUDIT_TOPIC = "_memq_audit"
"""Internal topic to which clients report what they produced."""
AUDIT_OPTIONS: dict[str, Any] = {
    "batch_age": "100ms", "retention": "30d", "audited": False, "dedup_window": "10m"
}  # fmt: skip


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one topic.

    Attributes:
        name: of the topic.
        batch_bytes: A Batch is sealed at this size.
        batch_age_ms: A Batch is sealed this long after its first Message; the floor of acks=all
            latency.
        batch_messages: A Batch is sealed at this number of Messages.
        message_bytes: Largest Message, as sent and as decoded.
        ring_slots: Open and uploading Batches of a write partition; at the limit producers wait.
        write_partitions: Streams that build Batches in parallel. It can grow, not shrink.
        read_partitions: Partitions of the notification queue: the most members of a group. Fixed at
            creation.
        ordering: producer: each producer's Messages keep their order. Fixed at creation.
        retention_ms: Batches and notifications are deleted this long after sealing; only time with
            a running broker counts.
        retention_bytes: The oldest Batches are deleted while the topic has more bytes in storage;
            0B for no limit. Those younger than `dedup_window` stay.
        upload_deadline_ms: A sealed Batch that is not stored in this time fails, and so do its
            Messages.
        dedup_window_ms: Duplicates of what was published within this time are recognized; producers
            must give up sooner.
        audited: Producers and groups report to the audit topic, so that `memq audit` can name
            losses.
        time_column: Timestamp column for reads by time; in a typed topic any with a time zone.
            Fixed at creation.
        schema: serialized Arrow schema of a typed topic.
    """

    name: str
    batch_bytes: Annotated[int, Option("size", "8MiB", KIB, GIB)]
    batch_age_ms: Annotated[int, Option("duration", "200ms", 1, 10 * MINUTE_MS)]
    batch_messages: Annotated[int, Option("count", 10_000, 1, 100_000)]
    message_bytes: Annotated[int, Option("size", "4MiB", KIB, 64 * MIB)]
    ring_slots: Annotated[int, Option("count", 8, 1, 64)]
    write_partitions: Annotated[int, Option("count", 1, 1, 256)]
    read_partitions: Annotated[int, Option("count", 1, 1, 256)]
    ordering: Annotated[str, Option("text", "none", choices=("none", "producer"))]
    retention_ms: Annotated[int, Option("duration", "7d", 10 * SECOND_MS, 3650 * DAY_MS)]
    upload_deadline_ms: Annotated[int, Option("duration", "30s", 100, 10 * MINUTE_MS)]
    dedup_window_ms: Annotated[int, Option("duration", "1h", 10 * SECOND_MS, 30 * DAY_MS)]
    audited: Annotated[bool, Option("flag", default=True)]
    time_column: Annotated[str, Option("text", "timestamp")] = "timestamp"
    retention_bytes: Annotated[int, Option("size", "0B", 0, 1 << 60)] = 0
    schema: bytes | None = None

    @classmethod
    def create(cls, name: str, /, *, schema: bytes | None = None, **options: object) -> TopicConfig:
        """Make a configuration from human option values, checked.

        Raises:
            InvalidRequestError: the name cannot be a topic.
            ConfigError: an option is unknown or out of its limits.
        """
        fields: dict[str, Any] = defaults(TOPIC_OPTIONS) | parse_options(TOPIC_OPTIONS, options)
        return cls(name=name, schema=schema, **fields).checked()

    def altered(self, /, **options: object) -> TopicConfig:
        """Return this configuration with some options replaced by human values, checked.

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
        for fixed in ("ordering", "time_column"):
            if (old := getattr(self, fixed)) != getattr(new, fixed):
                raise ConfigError(f"{fixed} of {self.name!r} is fixed at {old!r}")
        return new

    def checked(self) -> TopicConfig:
        """Check that every field is inside its limits and that they fit together; return it.

        Raises:
            InvalidRequestError: the name cannot be a topic.
            ConfigError: a field is out of its limits, or two do not fit together.
        """
        check_topic_name(self.name)
        for option in TOPIC_OPTIONS:
            option.check(getattr(self, option.field))
        self._check_fit()
        return self

    def read_partitions_of(self, write_partition: int) -> list[int]:
        """Return the read partitions over which a write partition spreads its notifications.

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
                f"{format_duration_ms(settled_ms)}, or a retry could be published twice"
            )
        if self.retention_ms < self.dedup_window_ms:
            # A restart rebuilds the window from the notifications that are still retained.
            raise ConfigError(
                f"retention = {format_duration_ms(self.retention_ms)} must be at least "
                f"dedup_window = {window}, or a retry after a restart could be published twice; "
                "raise the first or lower the second"
            )


TOPIC_OPTIONS = options_of(TopicConfig)
"""Every option of a topic but its schema, which is Arrow and not text."""


def check_topic_id(topic_id: str) -> None:
    """Refuse what cannot be the topic id.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    if _TOPIC_ID.fullmatch(topic_id) is None:
        raise InvalidRequestError(
            f"topic_id {topic_id[:80]!r} is not valid: it has {TOPIC_ID_DIGITS} "
            "lower-case hex digits"
        )


def check_topic_name(name: str) -> None:
    """Refuse a name that cannot be a topic.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    check_name("topic name", name, MAX_TOPIC_NAME)
