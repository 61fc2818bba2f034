"""What every notification queue refuses, in the same words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memq.errors import (
    InvalidRequestError,
    LimitReachedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.core.notification.queue import Publication

MAX_QUEUE_TOPIC = 249  # characters, where Kafka ends
_QUEUE_TOPIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

MAX_TIME_MS = (1 << 63) - 1
MAX_PARTITIONS = 256  # as many as a topic may have
MAX_STORED_GROUPS = 10_000
"""Groups with stored offsets of one topic. Anybody can make one by a commit, and each is a file."""

MAX_PAYLOAD_BYTES = 2 << 20
"""Largest payload: a Batch of 10,000 Messages, each from another producer, takes about 1 MiB."""


def check_queue_topic(name: str) -> None:
    """Refuse a name that no topic of a queue can have.

    Raises:
        InvalidRequestError: naming the value and what is allowed.
    """
    if len(name) > MAX_QUEUE_TOPIC or _QUEUE_TOPIC.fullmatch(name) is None:
        raise InvalidRequestError(
            f"queue topic {name[:300]!r} is not valid: use 1 to {MAX_QUEUE_TOPIC} of letters, "
            "digits, '.', '_' and '-', starting with a letter, digit or '_'"
        )


def check_partition_count(topic: str, partitions: int) -> None:
    """Refuse a number of read partitions that no topic can have.

    Raises:
        InvalidRequestError: it is not between 1 and `MAX_PARTITIONS`.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(
            f"topic {topic!r} cannot have {partitions} read partitions; choose 1 to "
            f"{MAX_PARTITIONS}"
        )


def check_partition(topic: str, partition: int, partitions: int) -> None:
    """Refuse a read partition that the topic does not have.

    Raises:
        InvalidRequestError: naming those it has.
    """
    if not 0 <= partition < partitions:
        raise InvalidRequestError(
            f"topic {topic!r} has no read partition {partition}; it has 0 to {partitions - 1}"
        )


def check_publications(topic: str, publications: Sequence[Publication], partitions: int) -> None:
    """Refuse publications of which one could never be stored.

    Raises:
        InvalidRequestError: one is for a partition that the topic does not have, or has a
            timestamp before 1970 or a negative running time.
        MessageTooLargeError: one has a payload above `MAX_PAYLOAD_BYTES`.
    """
    for publication in publications:
        check_partition(topic, publication.partition, partitions)
        if not 0 <= publication.running_ms <= MAX_TIME_MS:
            raise InvalidRequestError(
                f"running time {publication.running_ms} ms is not within 0 and {MAX_TIME_MS}"
            )
        if publication.timestamp_ms < 0:
            raise InvalidRequestError(
                f"timestamp {publication.timestamp_ms} ms is before 1970; check the clock"
            )
        if len(publication.payload) > MAX_PAYLOAD_BYTES:
            raise MessageTooLargeError(
                f"a notification of {len(publication.payload)} bytes for {topic!r} exceeds "
                f"{MAX_PAYLOAD_BYTES}; lower the topic's batch_messages"
            )


def check_fetch(max_entries: int, max_bytes: int) -> None:
    """Refuse limits under which nothing could be fetched.

    Raises:
        InvalidRequestError: `max_entries` is below 1 or `max_bytes` below 0.
    """
    if max_entries < 1 or max_bytes < 0:
        raise InvalidRequestError(
            f"cannot fetch at most {max_entries} entries of {max_bytes} bytes; ask for 1 or more"
        )


def check_group_offsets(topic: str, offsets: Mapping[int, int], partitions: int) -> None:
    """Refuse offsets that a group cannot store.

    Raises:
        InvalidRequestError: a partition is not one of the topic's, or an offset is negative.
    """
    for partition, offset in offsets.items():
        check_partition(topic, partition, partitions)
        if offset < 0:
            raise InvalidRequestError(f"offset {offset} of {topic!r}/{partition} is negative")


def check_group_count(topic: str, group: str, stored: int) -> None:
    """Refuse to store the offsets of one more group.

    Args:
        topic: the topic.
        group: the new group.
        stored: how many groups have stored offsets.

    Raises:
        LimitReachedError: that is as many as there may be.
    """
    if stored >= MAX_STORED_GROUPS:
        raise LimitReachedError(
            f"group {group!r} cannot store offsets: topic {topic!r} has its most of "
            f"{MAX_STORED_GROUPS} groups. Delete those that nobody uses: memq group delete"
        )


def out_of_range(
    topic: str, partition: int, offset: int, start: int, end: int
) -> OffsetOutOfRangeError:
    """The error for an offset that a partition does not hold."""
    return OffsetOutOfRangeError(
        f"offset {offset} of {topic!r}/{partition} is outside {start} to {end}: retention removed "
        "it, or it was never published"
    )
