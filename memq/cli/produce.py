"""`memq produce`: lines become LogMessages, JSON and CSV become rows.

Whatever is wrong with the input is named by its line, and what comes before it is sent. CSV is the
exception: of the block that has the row at fault nothing is.
"""

from __future__ import annotations

import io
import os
import stat
import time
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from memq.cli.command import (
    Command,
    DelimiterType,
    HeaderType,
    SeparatorType,
    TimeType,
    TopicType,
    check_reachable,
    check_together,
    connection_options,
    option,
    output_option,
    table_options,
    zone_option,
)
from memq.cli.output import notice, progress_bar, show_one
from memq.client.producer.options import PRODUCER_OPTIONS
from memq.core.units import counted
from memq.errors import InvalidRequestError, MemqError, MessageTooLargeError, SchemaMismatchError
from memq.reading.start import time_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from memq import Producer
    from memq.cli.json_rows import Rows
    from memq.cli.output import Row
    from memq.client.producer.options import ProducerArguments
    from memq.core.named_values import NamedValues

BLOCK_BYTES = 1 << 20  # splitting much less costs more per line; much more only waits in memory
_JSON_NAMES_BYTES = 64 << 10  # of a line, besides its values

_SHAPING = ("acks", "linger", "message_bytes", "compression", "max_in_flight")
_PLACING = ("epoch", "partition_by", "delivery_timeout")

_OF_CSV = ("--format lines", "--format json")
_ROWS = ("--format json", "--format csv")
_CONFLICTS = (
    ("--key-separator", _ROWS, "it is for --format lines"),
    ("--key", _ROWS, "give each line a key of its own"),
    ("--header", _ROWS, "give each line headers of its own"),
    ("--key-separator", ("--key",), "each line has a key of its own; leave out one"),
    ("--delimiter", _OF_CSV, "it is for --format csv"),
    ("--null", _OF_CSV, "it is for --format csv"),
)
"""Options that do not go together."""


@click.command(
    cls=Command,
    epilog="""
seq 1000000 | memq produce hello
memq produce clicks --input clicks.log --compression zstd --header source=web-1
echo 'user-1:{"page": "/"}' | memq produce clicks --key-separator : --partition-by key
memq consume clicks --format json --exit-at-end --from-beginning | memq produce copy --format json
memq produce rides --input rides.csv --format csv --delimiter ';'
""",
)
@click.argument("topic", type=TopicType(), required=False)
@option("-t", "--topic", "also_topic", type=TopicType(), help="Like TOPIC.")
@option("--input", "stream", type=click.File("rb"), default="-", help="File to read; - for stdin.")
@option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "csv"]),
    default="lines",
    help="lines: each line is a value; json: each line is an object as memq consume prints it, or, "
    "for a typed topic, a row; csv: the first line names the columns.",
)
@option(
    "-K",
    "--key-separator",
    type=SeparatorType(),
    help=r"Of lines: what stands between key and value, such as : or \t; without it no keys.",
)
@option("-k", "--key", help="Of every line.")
@option(
    "-H",
    "--header",
    "headers",
    type=HeaderType(),
    multiple=True,
    help="Of every line; may be given again.",
)
@option(
    "--delimiter", type=DelimiterType(), help=r"Of CSV: between cells, such as \t. [default: ,]"
)
@option("--null", help="Of CSV: a cell without quotes that is null. [default: an empty one]")
@option(
    "--producer-id",
    help="Makes it harmless to send the same lines once more: what is published already is not "
    "published twice, within the topic's dedup_window. Needs --timestamp.",
)
@option(
    "--timestamp",
    type=TimeType(),
    help="Of every LogMessage that has none of its own; without it, the time of writing.",
)
@table_options([row for row in PRODUCER_OPTIONS if row.name in _SHAPING])
@table_options([row for row in PRODUCER_OPTIONS if row.name in _PLACING])
@zone_option
@connection_options
@output_option
def produce(
    *,
    topic: str | None,
    also_topic: str | None,
    stream: io.BufferedReader,
    form: Literal["lines", "json", "csv"],
    key_separator: bytes | None,
    key: str | None,
    headers: tuple[tuple[str, bytes], ...],
    delimiter: str | None,
    null: str | None,
    producer_id: str | None,
    timestamp: datetime | None,
    given: dict[str, str],
    zone: str,
    bootstrap: str,
    token: str,
    security: NamedValues,
    output: str,
) -> None:
    """Send the lines of a file or of stdin to TOPIC.

    Each is a LogMessage or, with --format csv and for a typed topic, a row. Ends when the input has
    ended and every line is acked or has failed, and prints how many there were. The exit code is 1
    when a line was not acked, or does not fit.
    """
    check_together(_CONFLICTS)
    topic = topic or also_topic or ""
    if not topic:
        raise click.UsageError("Missing argument 'TOPIC'.")
    if producer_id is not None and timestamp is None:
        raise click.UsageError(
            "--producer-id needs --timestamp: only with equal timestamps are the lines of a second "
            "run known to be the same"
        )
    from memq import Producer  # noqa: PLC0415 - loads Arrow

    check_reachable(bootstrap)
    if stream.isatty():
        notice("memq: reading lines from the terminal; Ctrl-D ends")
    options: ProducerArguments = {
        "producer_id": producer_id,
        "zone": zone,
        "token": token,
        "security": security,
        "client": "memq produce",
    }
    producer = Producer(bootstrap, topic=topic, **(options | cast("ProducerArguments", given)))
    timestamp_us = None if timestamp is None else time_us(timestamp)
    now_us = partial(_now_us, timestamp_us)
    started_s = time.monotonic()
    try:
        with producer, watched(stream) as source:
            if form == "lines":
                _check_untyped(topic, producer.schema)
                _send_lines(
                    producer,
                    source,
                    key_separator,
                    key=None if key is None else os.fsencode(key),
                    headers=list(headers) or None,
                    timestamp=timestamp_us,
                )
            elif form == "json":
                # In a second run the Messages must be cut as they were in the first.
                rows = _json_rows(producer, source, now_us, whole=producer_id is not None)
                _send_rows(producer, rows, "line")
            else:
                rows = _csv_rows(producer, source, now_us, delimiter or ",", null or "")
                _send_rows(producer, rows, "row")
            _finish(producer)
    except BaseException:
        # Why nothing more is sent says more than a reader that has gone, or a start that failed.
        with suppress(OSError, MemqError):
            row = _row(topic, producer, time.monotonic() - started_s)
            if row["records"]:
                show_one(row, output)
        raise
    show_one(_row(topic, producer, time.monotonic() - started_s), output)


@contextmanager
def watched(stream: io.BufferedReader) -> Iterator[io.BufferedReader]:
    """Show how far the stream is read, when it is a file."""
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode):
        yield stream
        return
    with progress_bar("Bytes", status.st_size) as advance:
        yield io.BufferedReader(_Watched(stream, advance), BLOCK_BYTES)


class _Watched(io.RawIOBase):
    """A stream that tells how much was read of it."""

    def __init__(self, stream: io.BufferedReader, tell: Callable[[int], None]) -> None:
        self._stream = stream
        self._tell = tell

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto1(buffer)
        self._tell(count)
        return count


def _now_us(given_us: int | None) -> int:
    """Return the time of what has none, in microseconds since 1970 UTC."""
    return time.time_ns() // 1_000 if given_us is None else given_us


def _finish(producer: Producer) -> None:
    """Wait for the acks; each Message is acked or fails by its deadline.

    Raises:
        MemqError: naming how many records were not acked, and the first reason.
    """
    try:
        producer.flush()
    except MemqError as exc:
        counts = producer.stats
        total = counted(counts.acked_records + counts.failed_records, "record")
        raise MemqError(f"not acked: {counts.failed_records} of {total}: {exc}") from exc


def _check_untyped(topic: str, schema: pa.Schema) -> None:
    """Refuse lines for a topic with columns of its own.

    Raises:
        InvalidRequestError: naming the way out.
    """
    from memq.core.format.schema import DEFAULT_SCHEMA  # noqa: PLC0415 - loads Arrow

    if not schema.equals(DEFAULT_SCHEMA):
        raise InvalidRequestError(
            f"topic {topic!r} has a schema of its own ({', '.join(schema.names)}); its rows are "
            "given with --format json or --format csv"
        )


def _send_lines(
    producer: Producer,
    stream: io.BufferedReader,
    separator: bytes | None,
    *,
    key: bytes | None,
    **others: Any,
) -> None:
    """Send each line of a stream.

    Raises:
        MessageTooLargeError: a line fits no Message; those before it are sent.
        InvalidRequestError: a line has no key; those before it are sent.
    """
    most = producer.max_value_bytes
    blocks = read_lines(stream, max_line_bytes=most + len(separator or b""))
    for number, line in enumerate(chain.from_iterable(blocks), 1):
        value = line
        if separator is not None:
            key, value = split_key(line, separator, number)
        try:
            producer.write(value, key, **others)
        except MessageTooLargeError as exc:
            raise _too_large(number, most) from exc


# -- rows -----------------------------------------------------------------------------------


def _json_rows(
    producer: Producer, stream: io.BufferedReader, now_us: Callable[[], int], *, whole: bool
) -> Iterator[Rows]:
    from memq.cli.json_rows import json_rows  # noqa: PLC0415 - loads Arrow

    most = 6 * producer.max_value_bytes + _JSON_NAMES_BYTES  # a byte that is escaped takes six
    blocks = read_lines(stream, max_line_bytes=most, whole=whole)
    return json_rows(blocks, producer.schema, now_us)


def _csv_rows(
    producer: Producer,
    stream: io.BufferedReader,
    now_us: Callable[[], int],
    delimiter: str,
    null: str,
) -> Iterator[Rows]:
    from memq.cli.csv_rows import Dialect, csv_rows  # noqa: PLC0415 - loads Arrow

    return csv_rows(
        stream,
        producer.schema,
        dialect=Dialect(delimiter, null),
        block_bytes=max(BLOCK_BYTES, 2 * producer.max_value_bytes),  # a quoted byte may take two
        now_us=now_us,
    )


def _send_rows(producer: Producer, parts: Iterable[Rows], unit: str) -> None:
    """Send rows, each part as Messages of its own.

    Raises:
        MemqError: a row does not fit; those before it are sent.
    """
    from memq.cli.json_rows import take_fitting  # noqa: PLC0415 - loads Arrow

    conform = partial(producer.conformed, first_row=None)
    for table, numbers in parts:
        batches, good, why = take_fitting(
            table, conform, (SchemaMismatchError, MessageTooLargeError)
        )
        for batch in batches or ():
            producer.write_table(batch)  # of one Message
        if why is not None:
            raise type(why)(f"{unit} {numbers[good]}: {why}") from why


def _row(topic: str, producer: Producer, seconds: float) -> Row:
    """Return how many records there were; in a closed producer all are acked or failed."""
    counts = producer.stats
    records = counts.acked_records + counts.failed_records
    return {
        "topic": topic,
        "records": records,
        "acked": counts.acked_records,
        "failed": counts.failed_records,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
    }


# -- lines ----------------------------------------------------------------------------------


def read_lines(
    stream: io.BufferedReader, *, max_line_bytes: int, whole: bool = False
) -> Iterator[list[bytes]]:
    """Lines without their newline; the last one may lack it.

    Args:
        stream: to read.
        max_line_bytes: that a line may have.
        whole: give out full blocks, in place of as many lines as arrive at a time.

    Raises:
        MessageTooLargeError: a line that has not ended is longer than this.
    """
    read = stream.read if whole else stream.read1
    rest = bytearray()  # of a line that has not ended: adding to bytes would copy it each time
    number = 1
    while block := read(BLOCK_BYTES):
        lines = block.split(b"\n")
        rest += lines[0]
        if len(rest) > max_line_bytes:
            raise _too_large(number, max_line_bytes)
        if len(lines) > 1:
            lines[0], rest = bytes(rest), bytearray(lines.pop())
            number += len(lines)
            yield lines
    if rest:
        yield [bytes(rest)]


def _too_large(number: int, most: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"line {number} has more than the {most} bytes that fit into a Message of this topic; cut "
        "it, or raise the topic's message_bytes (64MiB at most) with `memq topic alter`. Is the "
        "input text?"
    )


def split_key(line: bytes, separator: bytes, number: int) -> tuple[bytes, bytes]:
    """Key and value of a line.

    Raises:
        InvalidRequestError: the separator is not in it.
    """
    key, found, value = line.partition(separator)
    if not found:
        shown = separator.decode(errors="backslashreplace")
        raise InvalidRequestError(f"line {number} has no key separator {shown!r}: {line[:80]!r}")
    return key, value
