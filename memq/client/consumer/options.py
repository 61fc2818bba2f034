"""Options of a consumer: one row each, for the constructor, the command line and the reference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, TypedDict, get_args

from memq.client.consumer.fetcher import OnOutOfRange
from memq.client.security import security_values
from memq.core.group import (
    MAX_CLIENT_TEXT,
    MAX_SESSION_TIMEOUT_MS,
    MIN_SESSION_TIMEOUT_MS,
    check_group_name,
)
from memq.core.named_values import GivenValues, parse_storage_options
from memq.core.options import Option, defaults, options_of, parse_options
from memq.core.topic import check_topic_name
from memq.core.units import GIB, HOUR_MS, SECOND_MS
from memq.errors import ConfigError
from memq.reading.batch import Order
from memq.reading.objects import ReadThrough
from memq.reading.start import Start, check_start

if TYPE_CHECKING:
    from typing import Unpack

OnPartitions = Callable[[list[int]], Awaitable[None] | None]
"""Called with partitions that come or go."""


def _start(start: Start) -> Start:
    check_start(start)
    return start


def _group(group: str) -> str:
    check_group_name(group)
    return group


def _client(client: str) -> str:
    if len(client) > MAX_CLIENT_TEXT:
        raise ConfigError(f"client has {len(client)} characters; at most {MAX_CLIENT_TEXT}")
    return client


class ConsumerArguments(TypedDict, total=False):
    """The keyword arguments of a consumer.

    Attributes:
        group: Consumer group that shares the partitions and stores offsets. Without one all
            partitions are read and no offset is stored.
        start: Where to begin without a committed offset: "earliest", "latest", a datetime with a
            time zone, or offsets by partition.
        order: Order of the LogMessages within each Batch. none: as received; producer: as each
            producer sent them; key: by key, then timestamp.
        auto_commit: Commit the Batches of earlier polls, at a later poll or at `close`. Otherwise
            call `commit`.
        audit: Report commits to the audit, for groups on audited topics. Turn it off for
            experiments.
        on_out_of_range: What to do if retention removed the next offset: raise, or continue at the
            earliest or latest.
        on_assign: Called with newly assigned partitions.
        on_revoke: Called with partitions to give up, while commits still work.
        on_lost: Called with partitions that others may already read; `on_revoke` if not given.
        read_through: broker: for machines that cannot reach the storage.
        prefetch_bytes: Memory for prefetched Batches. A larger Batch is fetched alone.
        fetch_threads: Batches fetched and decoded in parallel.
        session_timeout: A group member without a heartbeat for this long loses its partitions.
        max_poll_interval: A group member without a poll for this long loses its partitions.
        auto_commit_interval: Shortest time between automatic commits.
        request_timeout: How long to retry brokers and storage before a call fails.
        zone: Zone of this client, such as eu-west-1a, to prefer its brokers. Empty for `MEMQ_ZONE`
            or the profile's.
        storage_options: Options of the object store, such as region or credentials, as the broker's
            option of this name. Empty for `MEMQ_STORAGE_OPTIONS` or the profile's.
        token: Credential; empty if the brokers ask for none.
        security: What TLS needs, such as `ca=ca.pem`; see Security. Empty for `MEMQ_SECURITY` or
            the profile's.
        client: Name of this consumer in the brokers' logs and in the group.
    """

    group: Annotated[str | None, Option("text", None, read=_group)]
    start: Annotated[Start, Option("value", "earliest", read=_start)]
    order: Annotated[Order, Option("text", "none", choices=get_args(Order))]
    auto_commit: Annotated[bool, Option("flag", default=False)]
    audit: Annotated[bool, Option("flag", default=True)]
    on_out_of_range: Annotated[
        OnOutOfRange, Option("text", "error", choices=get_args(OnOutOfRange))
    ]
    on_assign: Annotated[OnPartitions | None, Option("value", None)]
    on_revoke: Annotated[OnPartitions | None, Option("value", None)]
    on_lost: Annotated[OnPartitions | None, Option("value", None)]
    read_through: Annotated[ReadThrough, Option("text", "storage", choices=get_args(ReadThrough))]
    prefetch_bytes: Annotated[str | int, Option("size", "64MiB", 1, 64 * GIB)]
    fetch_threads: Annotated[int, Option("count", 4, 1, 64)]
    session_timeout: Annotated[
        str, Option("duration", "10s", MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS)
    ]
    max_poll_interval: Annotated[str, Option("duration", "5m", SECOND_MS, 24 * HOUR_MS)]
    auto_commit_interval: Annotated[str, Option("duration", "5s", 0, HOUR_MS)]
    request_timeout: Annotated[str, Option("duration", "30s", 100, HOUR_MS)]
    zone: Annotated[str, Option("text", "")]
    storage_options: Annotated[GivenValues, Option("text", "", read=parse_storage_options)]
    token: Annotated[str, Option("text", "")]
    security: Annotated[GivenValues, Option("text", "", read=security_values)]
    client: Annotated[str, Option("text", "", read=_client)]


CONSUMER_OPTIONS = options_of(ConsumerArguments)


class ConsumerOptions(SimpleNamespace):
    """The topic, and a consumer's options in plain units, by the names of their fields."""

    __repr__ = object.__repr__  # does not show the token

    @classmethod
    def parse(cls, *, topic: str, **given: Unpack[ConsumerArguments]) -> ConsumerOptions:
        """Options from human values, checked.

        Raises:
            ConfigError: an option is unknown, of the wrong type, or out of its limits.
            InvalidRequestError: topic or group cannot be a name.
        """
        check_topic_name(topic)
        fields = defaults(CONSUMER_OPTIONS) | parse_options(CONSUMER_OPTIONS, given)
        options = cls(topic=topic, **fields)
        if options.auto_commit and options.group is None:
            raise ConfigError("auto_commit needs a group to commit for")
        options.on_lost = options.on_lost or options.on_revoke
        return options
