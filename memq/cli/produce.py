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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import click

from memq.cli.command import (
    Command,
    DelimiterType,
    HeaderType,
    InputType,
    SeparatorType,
    TimeType,
    check_reachable,
    check_together,
    connection_options,
    option,
    output_option,
    table_options,
    zone_option,
)
from memq.cli.completion import TopicType
from memq.cli.output import notice, progress_bar, show_one
from memq.client.producer.options import PRODUCER_OPTIONS
from memq.core.units import counted
from memq.errors import (
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    SchemaMismatchError,
)
from memq.reading.log import time_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from memq import Producer
    from memq.cli.json_rows import Rows
    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments

BLOCK_BYTES = 1 << 20  # splitting much less costs more per line; much more only waits in memory
_JSON_NAMES_BYTES = 64 << 10  # of a line, beside its values

_SHAPING = ("acks", "linger", "message_bytes", "compression", "max_in_flight")
SHAPING_OPTIONS = [row for row in PRODUCER_OPTIONS if row.name in _SHAPING]
"""Options of a producer that shape what it sends."""

_PLACING = ("epoch", "partition_by", "delivery_timeout")

_OF_CSV = ("--format lines", "--format json")
_CONFLICTS = (
    ("--key-separator", ("--format json", "--format csv"), "it is for --format lines"),
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
@click.argument("topic", type=TopicType())
@option("--input", "stream", type=InputType("rb"), default="-", help="File to read; - for stdin.")
@option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "csv"]),
    default="lines",
    help="lines: each line is a value; json: each line is an object as memq consume prints it, or, "
    "for a typed topic, a row; csv: the first line names the columns.",
)
@option(
    "--key-separator",
    type=SeparatorType(),
    help=r"Of lines: what stands between key and value, such as : or \t; without it no keys.",
)
@option("--key", help="Of every LogMessage that has none of its own.")
@option(
    "--header",
    "headers",
    type=HeaderType(),
    multiple=True,
    help="Of every LogMessage, besides its own; may be given again.",
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
@table_options(SHAPING_OPTIONS)
@table_options([row for row in PRODUCER_OPTIONS if row.name in _PLACING])
@zone_option
@connection_options
@output_option
def produce(
    *,
    topic: str,
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
    output: str,
) -> None:
    """Send the lines of a file or of stdin to TOPIC.

    Each is a LogMessage or, with --format csv and for a typed topic, a row. Ends when the input has
    ended and every line is acked or has failed, and prints how many there were. The exit code is 1
    when a line was not acked, or does not fit.
    """
    check_together(_CONFLICTS)
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
        "client": "memq produce",
    }
    producer = Producer(bootstrap, topic=topic, **(options | cast("ProducerArguments", given)))
    same = Same(
        None if key is None else os.fsencode(key),
        list(headers),
        None if timestamp is None else time_us(timestamp),
    )
    tally = Tally()
    started_s = time.monotonic()
    try:
        with producer, watched(stream) as source:
            _check_topic(topic, producer.schema, form, same)
            # In a second run the Messages must be cut as they were in the first.
            whole = producer_id is not None
            if form == "lines":
                _send_lines(producer, source, key_separator, same, tally)
            elif form == "json":
                rows = _json_rows(producer, source, same, whole=whole)
                _send_rows(producer, rows, same, "line", tally)
            else:
                rows = _csv_rows(producer, source, same, delimiter or ",", null or "")
                _send_rows(producer, rows, same, "row", tally)
            tally.finish()
    except BaseException:
        tally.collect()
        if tally.records:
            with suppress(OSError):  # of a reader that has gone: why nothing more is sent says more
                _show(topic, tally, time.monotonic() - started_s, output)
        raise
    try:
        _show(topic, tally, time.monotonic() - started_s, output)
    finally:
        tally.check()


class Same(NamedTuple):
    """What all LogMessages have that have none of their own.

    Attributes:
        key: a key.
        headers: headers, which come besides their own.
        timestamp_us: a time; None for that of writing.
    """

    key: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_us: int | None

    def now_us(self) -> int:
        """The time of what has none, in microseconds since 1970 UTC."""
        return time.time_ns() // 1_000 if self.timestamp_us is None else self.timestamp_us


def _check_topic(topic: str, schema: pa.Schema, form: str, same: Same) -> None:
    """Refuse what a topic with columns of its own cannot take.

    Raises:
        InvalidRequestError: naming the way out.
    """
    from memq.core.format.schema import DEFAULT_SCHEMA  # noqa: PLC0415 - loads Arrow

    if schema.equals(DEFAULT_SCHEMA):
        return
    if form == "lines":
        raise InvalidRequestError(
            f"topic {topic!r} has a schema of its own ({', '.join(schema.names)}); its rows are "
            "given with --format json or --format csv"
        )
    if same.key is not None or same.headers:
        raise InvalidRequestError(
            f"topic {topic!r} has a schema of its own, and neither keys nor headers; leave out "
            "--key and --header"
        )


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


def _send_lines(
    producer: Producer,
    stream: io.BufferedReader,
    separator: bytes | None,
    same: Same,
    tally: Tally,
) -> None:
    """Send each line of a stream.

    Raises:
        MessageTooLargeError: a line fits no Message; those before it are sent.
        InvalidRequestError: a line has no key; likewise.
    """
    most = producer.max_value_bytes
    lines = chain.from_iterable(read_lines(stream, max_line_bytes=most + len(separator or b"")))
    key, headers, timestamp_us = same.key, same.headers or None, same.timestamp_us
    try:
        for line in lines:
            value = line
            if separator is not None:
                key, value = split_key(line, separator, tally.records + 1)
            tally.add(producer.write(value, key, headers, timestamp_us), 1)
    except MessageTooLargeError as exc:
        raise _too_large(tally.records + 1, most) from exc


# -- rows -----------------------------------------------------------------------------------


def _json_rows(
    producer: Producer, stream: io.BufferedReader, same: Same, *, whole: bool
) -> Iterator[Rows]:
    from memq.cli.json_rows import json_rows  # noqa: PLC0415 - loads Arrow

    most = 6 * producer.max_value_bytes + _JSON_NAMES_BYTES  # a byte that is escaped takes six
    blocks = read_lines(stream, max_line_bytes=most, whole=whole)
    return json_rows(blocks, producer.schema, same.now_us)


def _csv_rows(
    producer: Producer, stream: io.BufferedReader, same: Same, delimiter: str, null: str
) -> Iterator[Rows]:
    from memq.cli.csv_rows import Dialect, csv_rows  # noqa: PLC0415 - loads Arrow

    return csv_rows(
        stream,
        producer.schema,
        dialect=Dialect(delimiter, null),
        block_bytes=max(BLOCK_BYTES, 2 * producer.max_value_bytes),  # a quoted byte may take two
        now_us=same.now_us,
    )


def _send_rows(
    producer: Producer, parts: Iterable[Rows], same: Same, unit: str, tally: Tally
) -> None:
    """Send rows, each part as Messages of its own.

    Raises:
        MemqError: a row does not fit; those before it are sent.
    """
    from memq.cli.json_rows import take_fitting  # noqa: PLC0415 - loads Arrow

    conform = partial(producer.conformed, first_row=None)
    for part in parts:
        table = _with_same(part.table, same)
        batches, good, why = take_fitting(
            table, conform, (SchemaMismatchError, MessageTooLargeError)
        )
        for batch in batches or ():
            (delivery,) = producer.write_table(batch)  # of one Message
            tally.add(delivery, batch.num_rows)
        if why is not None:
            raise type(why)(f"{unit} {part.numbers[good]}: {why}") from why


def _with_same(table: pa.Table, same: Same) -> pa.Table:
    """Return rows of LogMessages with the key and the headers that all of them are to have."""
    if same.key is None and not same.headers:
        return table
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    from memq.core.format.schema import DEFAULT_SCHEMA  # noqa: PLC0415 - loads Arrow

    for name in {"key", "headers"} - {*table.column_names}:
        field = DEFAULT_SCHEMA.field(name)
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))

    def replace(name: str, values: Any) -> pa.Table:
        field = DEFAULT_SCHEMA.field(name)
        return table.set_column(table.schema.get_field_index(name), field, values)

    if same.key is not None:
        table = replace("key", table["key"].fill_null(same.key))
    if same.headers:
        headers = [[*(each or ()), *same.headers] for each in table["headers"].to_pylist()]
        table = replace(
            "headers", pa.chunked_array([headers], DEFAULT_SCHEMA.field("headers").type)
        )
    return table


def _show(topic: str, tally: Tally, seconds: float, output: str) -> None:
    show_one(
        {
            "topic": topic,
            "records": tally.records,
            "acked": tally.acked,
            "failed": tally.records - tally.acked,
            "seconds": round(seconds, 3),
            "records_per_s": round(tally.records / seconds),
        },
        output,
    )


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


# -- what becomes of them -------------------------------------------------------------------


class Tally:
    """Counts records and how many of them were acked.

    What is open is bounded by the producer's memory, as each delivery is a Message that it holds.

    Attributes:
        records: that were written.
        acked: of these, whose Message was acked.
        error: why the first Message that failed did so.
    """

    def __init__(self) -> None:
        self.records = 0
        self.acked = 0
        self.error: MemqError | None = None
        self._open: dict[Delivery, int] = {}  # records of each, the first written first

    def add(self, delivery: Delivery, records: int) -> None:
        """Count so many more records that share this delivery."""
        if delivery not in self._open:
            self.collect()
        # Where records are placed by key, many Messages are open and written to in turn.
        total = self._open.get(delivery, 0) + records
        # Between calls Python interrupts nothing, so these two are one step.
        self._open[delivery] = total
        self.records += records

    def collect(self) -> None:
        """Count what has ended."""
        while self._open and next(iter(self._open)).done():
            self._count_first()

    def finish(self) -> None:
        """Wait for what is open and count it; every delivery ends at its deadline."""
        while self._open:
            self._count_first()

    def check(self) -> None:
        """Refuse to call it done when something was not acked.

        Raises:
            MemqError: naming how many records, and the first reason.
        """
        if self.error is not None:
            failed = self.records - self.acked
            raise MemqError(
                f"not acked: {failed} of {counted(self.records, 'record')}: {self.error}"
            ) from self.error

    def _count_first(self) -> None:
        delivery = next(iter(self._open))
        error = delivery.exception()
        # An interrupted wait may be taken up again. Nothing is called here: these are one step.
        if error is None:
            self.acked += self._open[delivery]
        else:
            self.error = self.error or error
        del self._open[delivery]
