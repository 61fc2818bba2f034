"""`memq produce`: lines become LogMessages."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import click

from memq.cli.command import Command
from memq.cli.input import read_lines, split_key
from memq.cli.options import connection_options, option, output_option, table_options
from memq.cli.output import show_one
from memq.client.producer_options import LINGER, MAX_IN_FLIGHT, MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from io import BufferedReader

    from memq.cli.tally import Tally
    from memq.client.delivery import Delivery

acks_option = option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    help="all: stored and published; 1: received by the broker; 0: sent.",
)
compression_option = option(
    "--compression",
    type=click.Choice(["zstd", "lz4"]),
    help="Compress each Message; it stays compressed in storage.",
)


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
@acks_option
@option("--key-separator", help="What stands between key and value; without it there are no keys.")
@option(
    "--producer-id",
    help="Makes sending the same lines again harmless: what is published already is not published "
    "twice, within the topic's dedup_window.",
)
@compression_option
@table_options([LINGER, MESSAGE_BYTES, MAX_IN_FLIGHT])
@connection_options
@output_option
def produce(
    topic: str,
    stream: BufferedReader,
    acks: str,
    key_separator: str | None,
    producer_id: str | None,
    compression: str | None,
    given: dict[str, str],
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Send each line of a file or of stdin to TOPIC as a LogMessage.

    Ends when the input ends and every line is acked or has failed, and prints how many there were
    of each. The exit code is 1 when a line was not acked.
    """
    from memq import Producer  # noqa: PLC0415 - loads Arrow
    from memq.cli.tally import Tally  # noqa: PLC0415

    tally = Tally()
    started_s = time.monotonic()
    with Producer(
        bootstrap,
        topic=topic,
        acks=acks,
        compression=compression,
        producer_id=producer_id,
        token=token,
        **given,
    ) as producer:
        send = (
            producer.write if key_separator is None else _with_keys(producer.write, key_separator)
        )
        try:
            _send_lines(read_lines(stream), send, tally)
        finally:
            tally.finish()
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


def _with_keys(write: Callable[..., Delivery], separator: str) -> Callable[[bytes], Delivery]:
    numbers = count(1)
    between = separator.encode()

    def send(line: bytes) -> Delivery:
        key, value = split_key(line, between, next(numbers))
        return write(value, key)

    return send


def _show(topic: str, tally: Tally, seconds: float, output: str) -> None:
    show_one(
        {
            "topic": topic,
            "records": tally.records,
            "acked": tally.acked,
            "failed": tally.failed,
            "seconds": round(seconds, 3),
            "records_per_s": round(tally.records / seconds),
        },
        output,
    )
