"""`memq produce`: lines become LogMessages."""

from __future__ import annotations

import time
from collections import deque
from itertools import chain, count
from typing import TYPE_CHECKING, cast

import click

from memq.cli.command import (
    Command,
    TimeType,
    check_reachable,
    connection_options,
    option,
    output_option,
    table_options,
    to_us,
)
from memq.cli.completion import TopicType
from memq.cli.output import show_one
from memq.client.producer.options import PRODUCER_OPTIONS
from memq.errors import InvalidRequestError, MemqError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from io import BufferedReader

    from memq import Producer
    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments

BLOCK_BYTES = 1 << 20  # splitting much less costs more per line; much more only waits in memory
MAX_LINE_BYTES = 64 << 20  # no topic takes a larger Message

_SHAPING = ("acks", "linger", "message_bytes", "compression", "max_in_flight")
SHAPING_OPTIONS = [row for row in PRODUCER_OPTIONS if row.name in _SHAPING]
"""Options of a producer that shape what it sends."""


@click.command(
    cls=Command,
    epilog="""
seq 1000000 | memq produce hello
memq produce clicks --input clicks.jsonl --compression zstd
echo 'user-1:{"page": "/"}' | memq produce clicks --key-separator :
""",
)
@click.argument("topic", type=TopicType())
@option("--input", "stream", type=click.File("rb"), default="-", help="File to read; - for stdin.")
@option("--key-separator", help="What stands between key and value; without it there are no keys.")
@option(
    "--producer-id",
    help="Makes it harmless to send the same lines once more: what is published already is not "
    "published twice, within the topic's dedup_window. Needs --timestamp.",
)
@option(
    "--timestamp",
    type=TimeType(),
    help="Of every LogMessage; without it, the time at which it was written.",
)
@table_options(SHAPING_OPTIONS)
@table_options([row for row in PRODUCER_OPTIONS if row.name == "delivery_timeout"])
@connection_options
@output_option
def produce(
    *,
    topic: str,
    stream: BufferedReader,
    key_separator: str | None,
    producer_id: str | None,
    timestamp: datetime | None,
    given: dict[str, str],
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Send each line of a file or of stdin to TOPIC as a LogMessage.

    Ends when the input has ended and every line is acked or has failed, and prints how many there
    were. The exit code is 1 when a line was not acked.
    """
    if producer_id is not None and timestamp is None:
        raise click.UsageError(
            "--producer-id needs --timestamp: only with equal timestamps are the lines of a second "
            "run known to be the same"
        )
    from memq import Producer  # noqa: PLC0415 - loads Arrow

    check_reachable(bootstrap)
    options: ProducerArguments = {
        "producer_id": producer_id,
        "token": token,
        "client": "memq produce",
    }
    producer = Producer(bootstrap, topic=topic, **(options | cast("ProducerArguments", given)))
    tally = Tally()
    started_s = time.monotonic()
    try:
        with producer:
            lines = chain.from_iterable(read_lines(stream))
            send_all(lines, _sender(producer, key_separator, timestamp), tally)
            tally.finish()
    finally:
        tally.collect()
        _show(topic, tally, time.monotonic() - started_s, output)
    tally.check()


def send_all(
    values: Iterable[bytes],
    send: Callable[[bytes], Delivery],
    tally: Tally,
    begun: Callable[[Delivery], object] = lambda _: None,
) -> None:
    """Send every value; the tally learns of each Message when the next one begins.

    Args:
        values: to send.
        send: sends one.
        tally: to count with.
        begun: called with each Message's delivery, once its first value is sent.
    """
    delivery = None
    records = 0
    try:
        for value in values:
            latest = send(value)
            if latest is not delivery:
                if delivery is not None:
                    tally.add(delivery, records)
                delivery, records = latest, 0
                begun(latest)
            records += 1
    finally:
        if delivery is not None:
            tally.add(delivery, records)


def _sender(
    producer: Producer, key_separator: str | None, timestamp: datetime | None
) -> Callable[[bytes], Delivery]:
    """What writes one line; without keys and timestamp, the producer itself."""
    if key_separator is None and timestamp is None:
        return producer.write
    timestamp_us = None if timestamp is None else to_us(timestamp)
    separator = (key_separator or "").encode()
    numbers = count(1)

    def send(line: bytes) -> Delivery:
        if not separator:
            return producer.write(line, timestamp=timestamp_us)
        key, value = split_key(line, separator, next(numbers))
        return producer.write(value, key, timestamp=timestamp_us)

    return send


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
    stream: BufferedReader, *, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    """Lines without their newline, as many as arrive at a time; the last one may lack it.

    Raises:
        MessageTooLargeError: a line is longer than any topic takes.
    """
    rest = b""
    while block := stream.read1(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if len(rest) > max_line_bytes:
            raise MessageTooLargeError(
                f"a line is longer than {max_line_bytes} bytes, the most that a topic takes; "
                "is the input text?"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


def split_key(line: bytes, separator: bytes, number: int) -> tuple[bytes, bytes]:
    """Key and value of a line.

    Raises:
        InvalidRequestError: the separator is not in it.
    """
    key, found, value = line.partition(separator)
    if not found:
        raise InvalidRequestError(
            f"line {number} has no key separator {separator.decode()!r}: {line[:80]!r}"
        )
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
        self._open: deque[tuple[Delivery, int]] = deque()

    def __repr__(self) -> str:
        return f"<Tally [{self.acked} of {self.records} records acked | {len(self._open)} open]>"

    def add(self, delivery: Delivery, records: int) -> None:
        """So many records share this delivery."""
        self.records += records
        self._open.append((delivery, records))
        self.collect()

    def collect(self) -> None:
        """Count what has ended."""
        while self._open and self._open[0][0].done():
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
                f"{failed} of {self.records} records were not acked: {self.error}"
            ) from self.error

    def _count_first(self) -> None:
        delivery, records = self._open[0]
        error = delivery.exception()
        self._open.popleft()  # not before: an interrupted wait may be taken up again
        if error is None:
            self.acked += records
        else:
            self.error = self.error or error
