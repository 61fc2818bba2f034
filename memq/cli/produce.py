"""`memq produce`: lines become LogMessages."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, cast

import click

from memq.cli.command import Command
from memq.cli.input import read_lines, split_key
from memq.cli.options import (
    TimeType,
    connection_options,
    option,
    output_option,
    table_options,
)
from memq.cli.output import show_one
from memq.cli.tally import Tally
from memq.cli.times import to_us
from memq.client.producer.options import PRODUCER_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from io import BufferedReader

    from memq import Producer
    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments

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
@click.argument("topic")
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
    from memq.cli.connect import check_reachable  # noqa: PLC0415

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
            _send_lines(read_lines(stream), _sender(producer, key_separator, timestamp), tally)
            tally.finish()
    finally:
        tally.collect()
        _show(topic, tally, time.monotonic() - started_s, output)
    tally.check()


def _send_lines(
    blocks: Iterable[list[bytes]], send: Callable[[bytes], Delivery], tally: Tally
) -> None:
    """Write every line; the tally learns of each Message when the next one begins."""
    delivery = None
    records = 0
    try:
        for lines in blocks:
            for line in lines:
                latest = send(line)
                if latest is not delivery:
                    if delivery is not None:
                        tally.add(delivery, records)
                    delivery, records = latest, 0
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
