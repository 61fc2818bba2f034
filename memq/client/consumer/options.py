"""Options of a consumer: one row each, for the constructor, the command line and the reference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

from memq.client.consumer.fetcher import OnOutOfRange
from memq.client.objects import ReadThrough
from memq.client.order import Order
from memq.client.start import Start, check_start
from memq.core.group import (
    MAX_CLIENT_TEXT,
    MAX_SESSION_TIMEOUT_MS,
    MIN_SESSION_TIMEOUT_MS,
    check_group_name,
)
from memq.core.options import Option
from memq.core.topic import check_topic_name
from memq.errors import ConfigError

OnPartitions = Callable[[list[int]], Awaitable[None] | None]
"""Called with partitions that come or go."""

_MIB, _GIB = 1 << 20, 1 << 30
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000

PREFETCH_BYTES = Option(
    "prefetch_bytes",
    "size",
    "64MiB",
    "Memory for Batches fetched ahead. A Batch larger than that is fetched alone.",
    1,
    64 * _GIB,
)
FETCH_THREADS = Option(
    "fetch_threads", "count", 4, "Batches that are fetched and decoded at a time.", 1, 64
)
SESSION_TIMEOUT = Option(
    "session_timeout",
    "duration",
    "10s",
    "A group member that is not heard of for this long loses its partitions.",
    MIN_SESSION_TIMEOUT_MS,
    MAX_SESSION_TIMEOUT_MS,
)
MAX_POLL_INTERVAL = Option(
    "max_poll_interval",
    "duration",
    "5m",
    "A group member that does not poll for this long is taken to be stuck and loses them too.",
    _SECOND,
    24 * _HOUR,
)
AUTO_COMMIT_INTERVAL = Option(
    "auto_commit_interval",
    "duration",
    "5s",
    "How often auto_commit commits, at most.",
    0,
    _HOUR,
)
REQUEST_TIMEOUT = Option(
    "request_timeout",
    "duration",
    "30s",
    "How long brokers and storage are tried before a call fails.",
    100,
    _HOUR,
)
CONSUMER_OPTIONS = (
    PREFETCH_BYTES,
    FETCH_THREADS,
    SESSION_TIMEOUT,
    MAX_POLL_INTERVAL,
    AUTO_COMMIT_INTERVAL,
    REQUEST_TIMEOUT,
)


class ConsumerArguments(TypedDict, total=False):
    """The keyword arguments of a consumer.

    Attributes:
        group: consumer group that shares the topic's partitions and remembers how far it has read;
            None (default) to read all partitions alone.
        start: where to begin where the group has committed nothing; "earliest" (default), "latest",
            a datetime with a time zone, or offsets by partition. See `memq.client.start.Start`.
        order: of the LogMessages within each Batch: "none" (default), "producer" or "key"; see
            `memq.client.order`.
        auto_commit: commit what earlier polls handed out, at a later poll or at `close`; False
            (default) to call `commit`.
        audit: tell the audit what was committed (default); it matters for groups that read audited
            topics. False for a group that reads for a try.
        on_out_of_range: where to go on when retention has overtaken the reader: "error" (default)
            raises, "earliest" or "latest" skip.
        on_assign: called with partitions that this member takes up.
        on_revoke: called with partitions that it gives up, while it may still commit for them.
        on_lost: called with partitions that others may hold already; `on_revoke` when not given.
        read_through: "storage" (default) reads Batches directly, "broker" through a broker.
        prefetch_bytes: memory for Batches fetched ahead; "64MiB".
        fetch_threads: Batches fetched at a time; 4.
        session_timeout: a member that is not heard of for this long is out; "10s".
        max_poll_interval: a member that does not poll for this long is out; "5m".
        auto_commit_interval: how often `auto_commit` commits, at most; "5s".
        request_timeout: how long brokers and storage are tried before a call fails; "30s".
        token: credential; empty (default) where the brokers ask for none.
        client: names this consumer in the brokers' logs and in the group.
    """

    group: str | None
    start: Start
    order: Order
    auto_commit: bool
    audit: bool
    on_out_of_range: OnOutOfRange
    on_assign: OnPartitions | None
    on_revoke: OnPartitions | None
    on_lost: OnPartitions | None
    read_through: ReadThrough
    prefetch_bytes: str | int
    fetch_threads: int
    session_timeout: str
    max_poll_interval: str
    auto_commit_interval: str
    request_timeout: str
    token: str
    client: str


@dataclass(frozen=True)
class ConsumerOptions:
    """A consumer's options in plain units; what they mean stands above."""

    topic: str
    group: str | None
    start: Start
    order: Order
    auto_commit: bool
    audit: bool
    on_out_of_range: OnOutOfRange
    on_assign: OnPartitions | None
    on_revoke: OnPartitions | None
    on_lost: OnPartitions | None
    read_through: ReadThrough
    prefetch_bytes: int
    fetch_threads: int
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_commit_interval_ms: int
    request_timeout_ms: int
    token: str
    client: str

    @classmethod
    def parse(
        cls,
        *,
        topic: str,
        group: str | None = None,
        start: Start = "earliest",
        order: Order = "none",
        auto_commit: bool = False,
        audit: bool = True,
        on_out_of_range: OnOutOfRange = "error",
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        read_through: ReadThrough = "storage",
        prefetch_bytes: str | int = "64MiB",
        fetch_threads: int = 4,
        session_timeout: str = "10s",
        max_poll_interval: str = "5m",
        auto_commit_interval: str = "5s",
        request_timeout: str = "30s",
        token: str = "",
        client: str = "",
    ) -> ConsumerOptions:
        """Options from human values, checked.

        Raises:
            ConfigError: a value is of the wrong type, or out of its limits.
            InvalidRequestError: topic or group cannot be a name.
        """
        check_topic_name(topic)
        if group is not None:
            check_group_name(group)
        elif auto_commit:
            raise ConfigError("auto_commit needs a group to commit for")
        check_start(start)
        _check_choice("order", order, Order)
        _check_choice("on_out_of_range", on_out_of_range, OnOutOfRange)
        _check_choice("read_through", read_through, ReadThrough)
        if len(client) > MAX_CLIENT_TEXT:
            raise ConfigError(f"client has {len(client)} characters; at most {MAX_CLIENT_TEXT}")
        return cls(
            topic=topic,
            group=group,
            start=start,
            order=order,
            auto_commit=auto_commit,
            audit=audit,
            on_out_of_range=on_out_of_range,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost or on_revoke,
            read_through=read_through,
            prefetch_bytes=PREFETCH_BYTES.parse(_text(prefetch_bytes)),
            fetch_threads=FETCH_THREADS.parse(fetch_threads),
            session_timeout_ms=SESSION_TIMEOUT.parse(session_timeout),
            max_poll_interval_ms=MAX_POLL_INTERVAL.parse(max_poll_interval),
            auto_commit_interval_ms=AUTO_COMMIT_INTERVAL.parse(auto_commit_interval),
            request_timeout_ms=REQUEST_TIMEOUT.parse(request_timeout),
            token=token,
            client=client,
        )


def _text(size: str | int) -> str | int:
    """A size as text, or as a number of bytes."""
    return f"{size}B" if type(size) is int else size


def _check_choice(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigError(f"{name} = {value!r}: must be one of {', '.join(get_args(choices))}")
