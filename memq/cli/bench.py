"""`memq bench`: load on a running broker, and the figures with all that they depend on."""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from memq.cli.command import Command, Group
from memq.cli.options import connection_options, option, output_option, table_options
from memq.cli.output import show_one
from memq.cli.produce import SHAPING_OPTIONS

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.client.producer.options import ProducerArguments

value_bytes_option = option(
    "--value-bytes", type=click.IntRange(0, 16 << 20), default=1_000, help="Size of each value."
)


@click.group(cls=Group)
def bench() -> None:
    """Put load on a running broker and print rates and latencies.

    The topic is made when there is none. Give these commands a topic of their own.
    """


@bench.command(
    cls=Command,
    epilog="""
memq bench produce load
memq bench produce load --records 10000000 --value-bytes 100 --linger 50ms -o json
""",
)
@click.argument("topic")
@option("--records", type=click.IntRange(min=1), default=1_000_000, help="How many to write.")
@value_bytes_option
@table_options(SHAPING_OPTIONS)
@connection_options
@output_option
def produce(
    *,
    topic: str,
    records: int,
    value_bytes: int,
    given: dict[str, str],
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Write random values to TOPIC as fast as they are taken.

    Latencies are those of Messages, from their first record to their ack.
    """
    from memq import Producer  # noqa: PLC0415 - loads Arrow
    from memq.cli.load import Latencies, write_all  # noqa: PLC0415

    _, about = _prepare(bootstrap, token, topic, given)
    latencies = Latencies()
    with Producer(bootstrap, topic=topic, **_arguments(given, token)) as producer:
        started_s = time.monotonic()
        tally = write_all(producer, records, value_bytes, latencies)
        seconds = time.monotonic() - started_s
    rates = _rates(records, records * value_bytes, seconds)
    show_one(rates | latencies.quantiles_ms() | about, output)
    tally.check()


@bench.command(
    cls=Command,
    epilog="""
memq bench consume load
memq bench consume load --each
""",
)
@click.argument("topic")
@option("--records", type=click.IntRange(min=1), help="End after so many; without it, at the end.")
@option("--each", is_flag=True, help="Make a Python object of each LogMessage.")
@connection_options
@output_option
def consume(
    *, topic: str, records: int | None, each: bool, bootstrap: str, token: str, output: str
) -> None:
    """Read TOPIC from its beginning, with all checks, as columns or as objects."""
    from memq import Consumer  # noqa: PLC0415 - loads Arrow

    ends, about = _prepare(bootstrap, token, topic)
    read = stored_bytes = 0
    with Consumer(bootstrap, topic=topic, token=token) as consumer:
        consumer.assign(list(ends))
        started_s = time.monotonic()
        while any(consumer.position(number) < end for number, end in ends.items()):
            batch = consumer.poll()
            if batch is None:
                continue
            read += sum(1 for _ in batch) if each else len(batch)
            stored_bytes += batch.notification.size_bytes
            if records is not None and read >= records:
                break
        seconds = time.monotonic() - started_s
    show_one(_rates(read, stored_bytes, seconds) | {"each": each} | about, output)


@bench.command(cls=Command, epilog="memq bench e2e load --rate 50000 --seconds 30")
@click.argument("topic")
@option("--rate", type=click.IntRange(min=1), default=10_000, help="Records a second.")
@option("--seconds", type=click.FloatRange(0.1, 86_400), default=10.0, help="For how long.")
@value_bytes_option
@table_options(SHAPING_OPTIONS)
@connection_options
@output_option
def e2e(
    *,
    topic: str,
    rate: int,
    seconds: float,
    value_bytes: int,
    given: dict[str, str],
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Write to TOPIC at a steady rate and read it at the same time.

    Latencies are those of records, from being written to being in the hands of the reader.
    """
    from memq import Consumer, Producer  # noqa: PLC0415 - loads Arrow
    from memq.cli.load import Latencies, PacedWriter, read_all  # noqa: PLC0415

    ends, about = _prepare(bootstrap, token, topic, given)
    latencies = Latencies()
    with (
        Consumer(bootstrap, topic=topic, token=token) as consumer,
        Producer(bootstrap, topic=topic, **_arguments(given, token)) as producer,
    ):
        consumer.assign(ends)
        writer = PacedWriter(producer, rate=rate, seconds=seconds, value_bytes=value_bytes)
        started_s = time.monotonic()
        writer.start()
        read_all(consumer, writer, latencies)
        took_s = time.monotonic() - started_s
        writer.join()
    rates = _rates(writer.records, writer.records * value_bytes, took_s)
    show_one(rates | latencies.quantiles_ms() | about, output)


class Bench(NamedTuple):
    """What a figure depends on.

    Attributes:
        ends: where each read partition ended before.
        row: the rest, ready to show.
    """

    ends: dict[int, int]
    row: Row


def _prepare(bootstrap: str, token: str, topic: str, given: dict[str, str] | None = None) -> Bench:
    """Make the topic if there is none, and note what the figures depend on."""
    from memq.cli.connect import connect_admin  # noqa: PLC0415 - loads the client

    with connect_admin(bootstrap, token) as admin:
        if topic not in [info.config.name for info in admin.list_topics()]:
            admin.create_topic(topic)
        config = admin.describe_topic(topic).config
        ends = {held.partition: held.end for held in admin.offsets(topic)}
    row = {} if given is None else _settings(given)
    row |= {
        "batch_bytes": config.batch_bytes,
        "batch_age_ms": config.batch_age_ms,
        "write_partitions": config.write_partitions,
        "read_partitions": config.read_partitions,
        "cpus": len(os.sched_getaffinity(0)),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return Bench(ends, row)


def _settings(given: dict[str, str]) -> Row:
    """What the producer goes by: plain numbers, and words as they are written."""
    values = [(row, given.get(row.name, row.default)) for row in SHAPING_OPTIONS]
    return {row.field: value if row.kind == "text" else row.parse(value) for row, value in values}


def _arguments(given: dict[str, str], token: str) -> ProducerArguments:
    return cast("ProducerArguments", given | {"token": token, "client": "memq bench"})


def _rates(records: int, size_bytes: int, seconds: float) -> Row:
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "megabytes_per_s": round(size_bytes / seconds / 1e6, 1),
    }
