"""The options of reads and writes, as Spark hands them over: texts under names in any case.

The names follow Spark's Kafka source. A wrong one is refused by name, together with what there is,
before anything is read or written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from memq.client.cluster import parse_bootstrap
from memq.client.producer.options import PRODUCER_OPTIONS, ProducerOptions
from memq.client.profile import connection_of
from memq.client.security import security_values
from memq.core.defaults import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    SECURITY_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
)
from memq.core.group import check_group_name
from memq.core.named_values import NO_VALUES, NamedValues, parse_storage_options
from memq.core.options import Option, options_of
from memq.core.topic import AUDIT_TOPIC, check_topic_id, check_topic_name
from memq.core.units import format_duration_ms
from memq.errors import ConfigError, CorruptDataError, DataLossError, MemqError
from memq.reading.objects import ReadThrough
from memq.reading.start import EARLIEST, LATEST
from memq.spark.bounds import (
    Bound,
    check_bounds,
    check_topics,
    parse_offsets,
    parse_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memq.client.producer.options import ProducerArguments

SECRET_OPTIONS = ("token", "storageOptions", "security")  # no error has their values
MAX_JOB_ID_BYTES = 128  # a producer id has up to 200, with the words around it

Mode = Literal["failfast", "permissive"]
View = Literal["records", "messages"]
Maps = Literal["map", "pairs"]
Compression = Literal["none", "zstd", "lz4"]


def _text(read: Callable[[str], Any], default: str | None = None, shown: str = "") -> Option:
    return Option("text", default, read=read, shown=shown)


def _chosen(words: Any, default: str | None = None, shown: str = "") -> Option:
    """Make the row of an option that is one of the words of a `Literal`."""
    return Option("text", default, choices=get_args(words), shown=shown)


def _of_producer(name: str) -> Option:
    """Return the row of a producer's option; the producer checks it."""
    return next(row for row in PRODUCER_OPTIONS if row.name == name)


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return what takes each text that a check lets pass."""

    def parse(text: str) -> str:
        check(text)
        return text

    return parse


def _check_job_id(text: str) -> None:
    if not 0 < len(text.encode()) <= MAX_JOB_ID_BYTES:
        raise ValueError(f"must have 1 to {MAX_JOB_ID_BYTES} bytes")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise ValueError("must be names, separated by commas, each once")
    return names


def _topics(text: str) -> tuple[str, ...]:
    for name in (names := _names(text)):
        check_topic_name(name)
    return names


@dataclass(frozen=True, kw_only=True)
class _TopicOptions:
    """Where the data is.

    Attributes:
        bootstrap: Addresses of some brokers, `host:port` separated by commas.
        topic: The topic. To read several, use `subscribe` or `subscribePattern` instead.
        token: Credential, if the brokers ask for one.
        security: What TLS needs, as `NAME=VALUE,NAME=VALUE`; workers need the files as well.
    """

    bootstrap: Annotated[
        str,
        _text(
            _checked(parse_bootstrap),
            shown=f"`{BOOTSTRAP_VARIABLE}`, the profile, or `{DEFAULT_BOOTSTRAP}`",
        ),
    ]
    topic: Annotated[
        str, _text(_checked(check_topic_name), shown="required")
    ]  # empty where several are read
    token: Annotated[str, _text(str, "", shown="none")] = field(repr=False)
    security: Annotated[
        NamedValues,
        _text(security_values, "", shown=f"`{SECURITY_VARIABLE}` of the driver, or the profile"),
    ]


@dataclass(frozen=True, kw_only=True)
class ReadOptions(_TopicOptions):
    """The options of one read.

    Attributes:
        subscribe: Names of topics to read together, separated by commas.
        subscribe_pattern: Python regular expression for full names of topics to read; never matches
            MemQ's own topics.
        topic_id: Topic id, as in `memq topic describe`; a recreated topic is then refused.
        starting_offsets: `earliest`, `latest`, or JSON of read partition to first offset, which
            reads only those partitions. Several topics: `{"clicks": {"0": 5}}`.
        ending_offsets: The same for the end offset.
        starting_timestamp: Start with the first Batch published at this time or later: milliseconds
            since 1970, or ISO 8601 with a time zone.
        ending_timestamp: End before the first Batch published at this time or later.
        columns: Columns to read, separated by commas; `.schema(...)` does the same.
        maps: `pairs`: a map is an array of `key` and `value`, with duplicate keys; `map`: a map, of
            which Spark mostly shows one of duplicate keys.
        view: `messages`: one row for each Message instead of its records.
        mode: `permissive` skips damaged or missing data, counts it in the log, and reads on.
        fail_on_data_loss: `false`: log offsets that retention removed, and read on.
        min_partitions: Minimum number of tasks; use the cluster's slots.
        max_bytes_per_partition: Most stored bytes of a task.
        max_offsets_per_trigger: Most Batches of a micro-batch, over all read partitions.
        max_bytes_per_trigger: Most stored bytes of a micro-batch, but always one Batch.
        min_offsets_per_trigger: A micro-batch waits for this many Batches, for at most
            `maxTriggerDelay`.
        max_trigger_delay_ms: Longest wait of a micro-batch for `minOffsetsPerTrigger`.
        consumer: Name under which a stream reports to the audit.
        read_through: `broker`: for workers that cannot reach the storage.
        storage_options: Options of the object store, as `NAME=VALUE,NAME=VALUE`, for driver and
            workers.
    """

    subscribe: Annotated[tuple[str, ...] | None, _text(_topics)]
    subscribe_pattern: Annotated[re.Pattern[str] | None, _text(re.compile)]
    topic_id: Annotated[str | None, _text(_checked(check_topic_id), shown="whichever there is")]
    starting_offsets: Annotated[
        Bound, _text(parse_offsets, shown="`earliest`; for a stream `latest`")
    ]
    ending_offsets: Annotated[Bound, _text(parse_offsets, shown="`latest`; a stream does not end")]
    starting_timestamp: Annotated[Bound | None, _text(parse_timestamp)]
    ending_timestamp: Annotated[Bound | None, _text(parse_timestamp)]
    columns: Annotated[tuple[str, ...] | None, _text(_names, shown="all")]
    maps: Annotated[Maps | None, _chosen(Maps, shown="`headers` as pairs; a key twice is an error")]
    view: Annotated[View, _chosen(View, "records")]
    mode: Annotated[Mode, _chosen(Mode, "failfast")]
    fail_on_data_loss: Annotated[bool, Option("flag", "true")]
    min_partitions: Annotated[int | None, Option("count", None, 1, shown="the driver's processors")]
    # Of stored bytes; measured best between 64 and 128 MiB.
    max_bytes_per_partition: Annotated[int, Option("size", "128MiB", 1)]
    max_offsets_per_trigger: Annotated[int | None, Option("count", None, 1, shown="no limit")]
    max_bytes_per_trigger: Annotated[int | None, Option("size", None, 1, shown="no limit")]
    min_offsets_per_trigger: Annotated[int | None, Option("count", None, 1, shown="no wait")]
    max_trigger_delay_ms: Annotated[int, Option("duration", "15m")]
    consumer: Annotated[
        str | None, _text(_checked(check_group_name), shown="none: nothing is told")
    ]
    read_through: Annotated[ReadThrough, _chosen(ReadThrough, "storage")]
    storage_options: Annotated[
        NamedValues,
        _text(
            parse_storage_options,
            "",
            shown=f"`{STORAGE_OPTIONS_VARIABLE}` of the driver, or the profile",
        ),
    ]

    @property
    def subject(self) -> str:
        """What is read, in words."""
        if self.subscribe_pattern is not None:
            return f"topics {self.subscribe_pattern.pattern!r}"
        return f"topics {', '.join(self.subscribe)}" if self.subscribe else f"topic {self.topic}"

    def covers(self, topic: str) -> bool:
        """Return whether to read a topic of this name: JSON limits a read to what it names."""
        if self.subscribe_pattern is None:
            named = topic in (self.subscribe or (self.topic,))
        else:
            named = topic != AUDIT_TOPIC and bool(self.subscribe_pattern.fullmatch(topic))
        bounds = (self.starting_offsets, self.ending_offsets)
        return named and all(each.of_topic(topic) is not None for each in bounds)

    def of_topic(self, topic: str, topic_id: str | None) -> ReadOptions:
        """Return the options of a read of one of its topics, which it `covers`."""
        names = ("starting_offsets", "ending_offsets")
        bounds: dict[str, Any] = {name: getattr(self, name).of_topic(topic) for name in names}
        return replace(
            self,
            topic=topic,
            subscribe=None,
            subscribe_pattern=None,
            topic_id=topic_id,
            **bounds,
        )

    @property
    def permissive(self) -> bool:
        """Whether what cannot be read is skipped and counted."""
        return self.mode == "permissive"

    def passes(self, error: MemqError) -> bool:
        """Return whether a Batch that this error makes unreadable is skipped and counted."""
        if isinstance(error, DataLossError):
            return self.permissive or not self.fail_on_data_loss
        return self.permissive and isinstance(error, CorruptDataError)


@dataclass(frozen=True, kw_only=True)
class WriteOptions(_TopicOptions):
    """The options of one write.

    Attributes:
        job_id: Stable name of the write; a rerun with it writes no row twice.
        compression: Compression of Messages.
        message_bytes: Size of Messages.
        partition_by: Choice of the write partition, as `partition_by` of a producer.
        delivery_timeout_ms: How long to try to deliver a Message.
    """

    job_id: Annotated[str | None, _text(_checked(_check_job_id), shown="none")]
    compression: Annotated[Compression, _chosen(Compression, "none")]
    message_bytes: Annotated[int, _of_producer("message_bytes")]
    partition_by: Annotated[str, replace(_of_producer("partition_by"), read=str)]
    delivery_timeout_ms: Annotated[int | None, _of_producer("delivery_timeout")]

    @property
    def producer(self) -> ProducerArguments:
        """What the producer of each task is given."""
        timeout_ms = self.delivery_timeout_ms
        return {
            "compression": None if self.compression == "none" else self.compression,
            "message_bytes": self.message_bytes,
            "partition_by": self.partition_by,
            "delivery_timeout": format_duration_ms(timeout_ms) if timeout_ms else None,
            "token": self.token,
            "security": self.security,
            "client": "spark",
        }


def _named(described: type) -> dict[str, Option]:
    """Return the rows of a class by field, under the names that users write, such as
    `minPartitions`.
    """
    return {
        row.field: replace(row, name=re.sub("_(.)", lambda found: found[1].upper(), row.name))
        for row in options_of(described)
    }


READ_OPTIONS = _named(ReadOptions)
WRITE_OPTIONS = _named(WriteOptions)

TOPIC_NAMES = {"topic", "subscribe", "subscribepattern"}
"""Options that say what is read, in lower case."""

SPARK_OPTIONS = {"checkpointlocation", "queryname"}
"""Spark's own options of a streaming write, in lower case; it hands them over as well."""


def parse_read_options(given: Mapping[str, str], *, stream: bool = False) -> ReadOptions:
    """Parse the options of a read.

    Args:
        given: as Spark has them.
        stream: a stream begins at `latest` unless it is told otherwise, as with Spark's Kafka
            source.

    Raises:
        ConfigError: an option is unknown, missing, wrong, or contradicts another; the message
            names it and what is allowed.
    """
    values = _parse_all(READ_OPTIONS, given, "read")
    for side, default in (("starting", LATEST if stream else EARLIEST), ("ending", LATEST)):
        fields = [f"{side}_{what}" for what in ("offsets", "timestamp")]
        given_bound = _only_one_of(values, *fields)
        values |= dict.fromkeys(fields) | {fields[0]: given_bound or Bound(default)}
    _only_one_of(values, "topic", "subscribe", "subscribe_pattern")
    options = ReadOptions(**values | {"topic": values["topic"] or ""})
    check_bounds(options.starting_offsets, options.ending_offsets)
    read = options.subscribe or ((options.topic,) if options.topic else ())
    check_topics(read, options.subscribe_pattern, options.starting_offsets, "startingOffsets")
    check_topics(read, options.subscribe_pattern, options.ending_offsets, "endingOffsets")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
    if options.topic_id is not None and not options.topic:
        raise ConfigError("option 'topicId' is that of one topic, which 'topic' has to name")
    skips = options.permissive or not options.fail_on_data_loss or options.view == "messages"
    if options.consumer is not None and skips:
        raise ConfigError(
            "option 'consumer' tells the audit that all records were read, which view=messages, "
            "mode=permissive and failOnDataLoss=false do not promise"
        )
    return options.of_topic(options.topic, options.topic_id) if options.topic else options


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write, without those that Spark adds for itself.

    Raises:
        ConfigError: an option is unknown, missing or wrong; the message names it and what is
            allowed.
    """
    own = {key: text for key, text in given.items() if key.lower() not in SPARK_OPTIONS}
    options = WriteOptions(**_parse_all(WRITE_OPTIONS, own, "write"))
    ProducerOptions.parse(topic=options.topic, **options.producer)  # here, not in each task
    return options


def _parse_all(
    table: Mapping[str, Option], given: Mapping[str, str], what: Literal["read", "write"]
) -> dict[str, Any]:
    """Return the values of all fields."""
    texts = {key.lower(): text for key, text in given.items()}
    names = [row.name for row in table.values()]
    unknown = [key for key in given if key.lower() not in map(str.lower, names)]
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}; a {what} knows {', '.join(names)}")
    if not texts.keys() & TOPIC_NAMES:
        hint = "" if given else " (Spark keeps no options of a table that was made with columns)"
        raise ConfigError(f"option 'topic' is missing: name the topic to {what}{hint}")
    values = {field: _value(row, texts.get(row.name.lower())) for field, row in table.items()}
    # Here, on the driver, so that every task asks the same brokers.
    given_options = values.get("storage_options", NO_VALUES)
    found = connection_of(
        values["bootstrap"],
        values["token"],
        storage_options=given_options,
        security=values["security"],
    )
    # Not the zone: executors may be in another one than the driver, and know their own.
    values |= {"bootstrap": found["bootstrap"], "token": found["token"]}
    values["security"] = found.get("security", NO_VALUES)
    if what == "read":
        values["storage_options"] = found.get("storage_options", NO_VALUES)
    return values


def _only_one_of(values: Mapping[str, Any], *fields: str) -> Any:
    """Return the value of the option that is given; refuse several that say the same thing."""
    given = [field for field in fields if values[field]]
    if len(given) > 1:
        first, second = (READ_OPTIONS[field].name for field in given[:2])
        raise ConfigError(f"options '{first}' and '{second}' exclude each other")
    return values[given[0]] if given else None


def _value(row: Option, text: str | None) -> Any:
    try:
        return row.parse(row.default if text is None else _spelled(row, text))
    except (ValueError, re.error, MemqError) as exc:
        if row.read is None:
            raise ConfigError(f"option {exc}") from exc
        shown = "" if row.name in SECRET_OPTIONS else f" = {str(text)[:500]!r}"
        raise ConfigError(f"option '{row.name}'{shown}: {exc}") from exc


_SPARK_SIZE = re.compile("([0-9]{1,20})([kmgt]?)b?", re.IGNORECASE)
"""Sizes as users of Spark write them; it counts by 1024, whatever the case: `64mb` is `64MiB`."""


def _spelled(row: Option, text: str) -> str:
    """Spell a text of Spark as the row has it."""
    if row.choices:
        return text.strip().lower()
    if row.kind != "size" or not (found := _SPARK_SIZE.fullmatch(text.strip())):
        return text
    return f"{found[1]}{found[2].upper()}iB" if found[2] else f"{found[1]}B"
