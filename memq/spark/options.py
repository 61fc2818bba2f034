"""The options of a read, as Spark hands them over: texts under names in any case.

The names follow Spark's Kafka source. A wrong one is refused by name, together with what there is,
before anything is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from memq.client.cluster import parse_bootstrap
from memq.core.topic import check_incarnation, check_topic_name
from memq.core.units import parse_size_bytes
from memq.errors import ConfigError, CorruptDataError, DataLossError, MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memq.client.objects import ReadThrough

DEFAULT_TASK_BYTES = 128 << 20  # of stored bytes; measured best between 64 and 128 MiB
EARLIEST, LATEST = -2, -1  # in place of an offset, as in the JSON of Spark's Kafka source

Mode = Literal["failfast", "permissive"]
View = Literal["records", "messages"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bound:
    """Where a read begins or ends: everywhere at the same word or time, or by read partition.

    Attributes:
        word: `EARLIEST` or `LATEST`.
        at_ms: the first Batch published at this time or later, milliseconds since 1970 UTC.
        offsets: next offset, `EARLIEST` or `LATEST` by read partition; others are not read.
    """

    word: int | None = None
    at_ms: int | None = None
    offsets: Mapping[int, int] | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of one read; what each means stands in `READ_OPTIONS`."""

    topic: str
    starting: Bound
    ending: Bound
    bootstrap: str | None = None
    incarnation: str = ""
    token: str = ""
    columns: tuple[str, ...] | None = None
    view: View = "records"
    mode: Mode = "failfast"
    fail_on_data_loss: bool = True
    read_through: ReadThrough = "storage"
    min_partitions: int | None = None
    max_bytes_per_partition: int = DEFAULT_TASK_BYTES
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None

    @property
    def permissive(self) -> bool:
        """Whether what cannot be read is skipped and counted."""
        return self.mode == "permissive"

    def passes(self, error: MemqError) -> bool:
        """Whether a Batch that cannot be read because of this error is skipped and counted."""
        if isinstance(error, DataLossError):
            return self.permissive or not self.fail_on_data_loss
        return self.permissive and isinstance(error, CorruptDataError)


class ReadOption(NamedTuple):
    """One option of a read.

    Attributes:
        name: as the documentation writes it; any case will do.
        parse: its value from its text.
        default: what holds when it is not given, in words.
        doc: one sentence of meaning.
    """

    name: str
    parse: Callable[[str], Any]
    default: str
    doc: str


def parse_read_options(given: Mapping[str, str], *, stream: bool = False) -> ReadOptions:
    """The options of a read.

    Args:
        given: as Spark has them.
        stream: a stream begins at `latest` unless it is told otherwise, as with Spark's Kafka
            source.

    Raises:
        ConfigError: an option is unknown, missing, wrong, or contradicts another; the message
            names it and what is allowed.
    """
    values = _parse_all(given)
    if "topic" not in values:
        raise ConfigError("option 'topic' is missing: name the topic that is to be read")
    starting = _bound(values, "starting", LATEST if stream else EARLIEST)
    ending = _bound(values, "ending", LATEST)
    _check_bounds(starting, ending)
    return ReadOptions(starting=starting, ending=ending, **values)


def _parse_all(given: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for key, text in given.items():
        name = key.lower()
        if name not in _BY_NAME:
            known = ", ".join(option.name for option in READ_OPTIONS)
            raise ConfigError(f"unknown option {key!r}; a read knows {known}")
        option = _BY_NAME[name]
        try:
            values[_field(option.name)] = option.parse(text)
        except (ValueError, MemqError) as exc:
            raise ConfigError(f"option '{option.name}' = {text!r}: {exc}") from exc
    return values


def _bound(values: dict[str, Any], side: str, default: int) -> Bound:
    """One end of the range from its two options, of which one at most is given."""
    offsets = values.pop(f"{side}_offsets", None)
    at_ms = values.pop(f"{side}_timestamp", None)
    if offsets is not None and at_ms is not None:
        raise ConfigError(f"options '{side}Offsets' and '{side}Timestamp' exclude each other")
    if at_ms is not None:
        return Bound(at_ms=at_ms)
    return offsets or Bound(word=default)


def _check_bounds(starting: Bound, ending: Bound) -> None:
    if starting.word == LATEST and ending.word == EARLIEST:
        raise ConfigError("option 'endingOffsets' = 'earliest' ends before the read starts")
    if starting.offsets is None or ending.offsets is None:
        return
    if set(starting.offsets) != set(ending.offsets):
        raise ConfigError(
            f"options 'startingOffsets' and 'endingOffsets' name different read partitions: "
            f"{sorted(starting.offsets)} and {sorted(ending.offsets)}"
        )
    for partition, start in starting.offsets.items():
        end = ending.offsets[partition]
        if 0 <= end < start:
            raise ConfigError(
                f"option 'endingOffsets' = {end} for read partition {partition}: it is before "
                f"'startingOffsets' = {start}"
            )


def _field(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


# -- values ---------------------------------------------------------------------------------


def _bootstrap(text: str) -> str:
    parse_bootstrap(text)
    return text


def _topic(text: str) -> str:
    check_topic_name(text)
    return text


def _incarnation(text: str) -> str:
    check_incarnation(text)
    return text


def _offsets(text: str) -> Bound:
    words = {"earliest": EARLIEST, "latest": LATEST}
    word = words.get(text.strip().lower())
    if word is not None:
        return Bound(word=word)
    wrong = ValueError(
        'must be earliest, latest, or JSON of read partition to offset such as {"0": 5, "1": 7}, '
        "where -2 is earliest and -1 latest"
    )
    try:
        found = json.loads(text)
        offsets = {int(partition): offset for partition, offset in found.items()}
    except (ValueError, AttributeError) as exc:
        raise wrong from exc
    sound = all(type(offset) is int and offset >= EARLIEST for offset in offsets.values())
    if not offsets or not sound or min(offsets) < 0:
        raise wrong
    return Bound(offsets=offsets)


def _timestamp_ms(text: str) -> int:
    if text.strip().isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as exc:
        raise ValueError(
            "must be milliseconds since 1970 UTC, or a time such as 2025-06-30T12:00:00Z"
        ) from exc
    if moment.tzinfo is None:
        raise ValueError(f"has no time zone; write {text.strip()}Z for UTC")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _count(text: str) -> int:
    if not text.strip().isdigit() or not int(text):
        raise ValueError("must be a whole number, 1 or more")
    return int(text)


def _size(text: str) -> int:
    size = int(text) if text.strip().isdigit() else parse_size_bytes(text)
    if not size:
        raise ValueError('must be more than 0: bytes, or a size such as "64MiB"')
    return size


def _flag(text: str) -> bool:
    return _choice("true", "false")(text) == "true"


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return word

    return parse


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("must name columns, separated by commas")
    if len(set(names)) < len(names):
        raise ValueError("names a column twice")
    return names


READ_OPTIONS = (
    ReadOption(
        "bootstrap",
        _bootstrap,
        "`MEMQ_BOOTSTRAP`, or `127.0.0.1:6367`",
        "Addresses of some brokers, `host:port` separated by commas.",
    ),
    ReadOption("topic", _topic, "required", "The topic."),
    ReadOption(
        "incarnation",
        _incarnation,
        "whichever there is",
        "Of the topic, as `memq topic describe` shows it: one that was deleted and made again is "
        "an error.",
    ),
    ReadOption(
        "startingOffsets",
        _offsets,
        "`earliest`; for a stream `latest`",
        "`earliest`, `latest`, or JSON of read partition to first offset. JSON limits the read "
        "to the partitions it names.",
    ),
    ReadOption(
        "endingOffsets",
        _offsets,
        "`latest`; a stream does not end",
        "Likewise one past the last offset.",
    ),
    ReadOption(
        "startingTimestamp",
        _timestamp_ms,
        "not given",
        "Start with the first Batch published at this time or later: milliseconds since 1970, or "
        "ISO 8601 with a time zone.",
    ),
    ReadOption(
        "endingTimestamp",
        _timestamp_ms,
        "not given",
        "End before the first Batch published at this time or later.",
    ),
    ReadOption(
        "columns",
        _names,
        "all",
        "Names of the columns to read, separated by commas; the others are not moved. "
        "`.schema(...)` does the same.",
    ),
    ReadOption(
        "view",
        _choice("records", "messages"),
        "`records`",
        "`messages` gives one row for each Message in place of its records.",
    ),
    ReadOption(
        "mode",
        _choice("failfast", "permissive"),
        "`failfast`",
        "`permissive` skips what is damaged or gone, counts it in the log, and reads on.",
    ),
    ReadOption(
        "failOnDataLoss",
        _flag,
        "`true`",
        "`false` reads on, and logs it, when offsets asked for were removed by retention.",
    ),
    ReadOption(
        "minPartitions",
        _count,
        "the driver's processors",
        "Least number of tasks; set it to the cluster's slots.",
    ),
    ReadOption(
        "maxBytesPerPartition",
        _size,
        "`128MiB`",
        "Most stored bytes of a task.",
    ),
    ReadOption(
        "maxOffsetsPerTrigger",
        _count,
        "no limit",
        "Most Batches of a micro-batch, over all read partitions; for streams.",
    ),
    ReadOption(
        "maxBytesPerTrigger",
        _size,
        "no limit",
        "Most stored bytes of a micro-batch, but always one Batch; for streams.",
    ),
    ReadOption("token", str, "none", "Credential, where the brokers ask for one."),
    ReadOption(
        "readThrough",
        _choice("storage", "broker"),
        "`storage`",
        "`broker` where the workers cannot reach the storage.",
    ),
)
"""Every option of a read."""

_BY_NAME = {option.name.lower(): option for option in READ_OPTIONS}
