"""`memq bench`: load on a running broker, and the figures with all that they depend on."""

from __future__ import annotations

import os
import platform
import time
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, cast

import click

from memq.cli.command import (
    Group,
    TopicType,
    connect_admin,
    connection_options,
    option,
    output_option,
    storage_options_option,
    table_options,
)
from memq.cli.output import show_one
from memq.cli.produce import SHAPING_OPTIONS
from memq.core.units import counted
from memq.errors import RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from memq import Consumer, Producer
    from memq.cli.output import Row
    from memq.client.producer.delivery import Delivery
    from memq.client.producer.options import ProducerArguments
    from memq.core.named_values import NamedValues
    from memq.reading.batch import Batch

DISTINCT_VALUES = 4_096  # so that compression finds no more in a Message than in real data
TICK_S = 0.01  # how evenly a rate is kept
PATIENCE_S = 60.0  # more than any Batch takes to be sealed and stored

MOST = 1_000_000_000_000  # records; more would take weeks

value_bytes_option = option(
    "--value-bytes", type=click.IntRange(0, 16 << 20), default=1_000, help="Size of each value."
)


@click.group(cls=Group)
def bench() -> None:
    """Put load on a running broker and print rates and latencies.

    The topic is made when there is none. Give these commands a topic of their own.
    """


@bench.command(
    epilog="""
memq bench produce load
memq bench produce load --records 10000000 --value-bytes 100 --linger 50ms -o json
""",
)
@click.argument("topic", type=TopicType())
@option("--records", type=click.IntRange(1, MOST), default=1_000_000, help="How many to write.")
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

    _, about = _prepare(bootstrap, token, topic, given)
    with Producer(bootstrap, topic=topic, **_arguments(given, token)) as producer:
        started_s = time.monotonic()
        latencies_us = write_all(producer, random_values(records, value_bytes))
        seconds = time.monotonic() - started_s
    rates = _rates(records, records * value_bytes, seconds)
    show_one(rates | _quantiles_ms([latencies_us]) | about, output)


@bench.command(
    epilog="""
memq bench consume load
memq bench consume load --each
""",
)
@click.argument("topic", type=TopicType())
@option(
    "--records", type=click.IntRange(1, MOST), help="End after so many; without it, at the end."
)
@option("--each", is_flag=True, help="Make a Python object of each LogMessage.")
@storage_options_option
@connection_options
@output_option
def consume(
    *,
    topic: str,
    records: int | None,
    each: bool,
    storage_options: NamedValues,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Read TOPIC from its beginning: as columns, or as objects."""
    from memq import Consumer  # noqa: PLC0415 - loads Arrow

    ends, about = _prepare(bootstrap, token, topic)
    read = stored_bytes = 0
    with Consumer(bootstrap, topic=topic, storage_options=storage_options, token=token) as consumer:
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


@bench.command(epilog="memq bench e2e load --rate 50000 --seconds 30")
@click.argument("topic", type=TopicType())
@option("--rate", type=click.IntRange(1, 1_000_000_000), default=10_000, help="Records a second.")
@option("--seconds", type=click.FloatRange(0.1, 86_400), default=10.0, help="For how long.")
@value_bytes_option
@table_options(SHAPING_OPTIONS)
@storage_options_option
@connection_options
@output_option
def e2e(
    *,
    topic: str,
    rate: int,
    seconds: float,
    value_bytes: int,
    given: dict[str, str],
    storage_options: NamedValues,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Write to TOPIC at a steady rate and read it at the same time.

    Latencies are those of records, from being written to being in the hands of the reader.
    """
    from memq import Consumer, Producer  # noqa: PLC0415 - loads Arrow

    ends, about = _prepare(bootstrap, token, topic, given)
    records = max(1, round(rate * seconds))
    with (
        Consumer(bootstrap, topic=topic, storage_options=storage_options, token=token) as consumer,
        Producer(bootstrap, topic=topic, **_arguments(given, token)) as producer,
    ):
        consumer.assign(ends)
        started_s = time.monotonic()
        latencies_us = write_and_read(producer, consumer, rate, random_values(records, value_bytes))
        took_s = time.monotonic() - started_s
    rates = _rates(records, records * value_bytes, took_s)
    show_one(rates | _quantiles_ms(latencies_us) | about, output)


def _prepare(
    bootstrap: str, token: str, topic: str, given: dict[str, str] | None = None
) -> tuple[dict[int, int], Row]:
    """Make the topic if there is none.

    Returns:
        Where each read partition ends, and what the figures depend on.
    """
    with connect_admin(bootstrap, token) as admin:
        if topic not in [info.config.name for info in admin.list_topics()]:
            admin.create_topic(topic)
        config = admin.describe_topic(topic).config
        ends = {each.partition: each.end for each in admin.offsets(topic)}
    shaping = () if given is None else SHAPING_OPTIONS
    values = [(row, (given or {}).get(row.name, row.default)) for row in shaping]
    about: Row = {
        row.field: value if row.kind == "text" else row.parse(value) for row, value in values
    }
    names = ("batch_bytes", "batch_age_ms", "write_partitions", "read_partitions")
    about |= {name: getattr(config, name) for name in names}
    about |= {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return ends, about


def _arguments(given: dict[str, str], token: str) -> ProducerArguments:
    return cast("ProducerArguments", given | {"token": token, "client": "memq bench"})


def _rates(records: int, size_bytes: int, seconds: float) -> Row:
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "megabytes_per_s": round(size_bytes / seconds / 1e6, 1),
    }


def _quantiles_ms(latencies_us: list[Any]) -> Row:
    """Return the median, the 99th percentile and the greatest, in milliseconds."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    import pyarrow.compute as pc  # noqa: PLC0415

    found = pc.quantile(pa.chunked_array(latencies_us, pa.int64()), q=[0.5, 0.99, 1.0])
    names = ("latency_p50_ms", "latency_p99_ms", "latency_p100_ms")
    values = (None if value is None else round(value / 1_000, 3) for value in found.to_pylist())
    return dict(zip(names, values, strict=True))


# -- load -----------------------------------------------------------------------------------


def random_values(records: int, value_bytes: int) -> Iterator[bytes]:
    """Return so many values of that size, which no compression makes smaller."""
    some = [os.urandom(value_bytes) for _ in range(min(records, DISTINCT_VALUES))]
    return islice(cycle(some), records)


def write_all(producer: Producer, values: Iterator[bytes]) -> list[int]:
    """Write as fast as the producer takes it, and wait for the acks.

    Returns:
        Microseconds of each Message, from its first record to its ack.

    Raises:
        MemqError: a Message failed.
    """
    took_us: list[int] = []
    latest = None
    for value in values:
        delivery = producer.write(value)
        if delivery is not latest:
            delivery.add_done_callback(partial(_ended, took_us, time.perf_counter_ns()))
            latest = delivery
    producer.flush()  # the last callback has been called when this returns
    return took_us


def _ended(took_us: list[int], started_ns: int, _: Delivery) -> None:
    took_us.append((time.perf_counter_ns() - started_ns) // 1_000)


def write_and_read(
    producer: Producer, consumer: Consumer, rate: int, values: Iterator[bytes]
) -> list[pa.Array]:
    """Write values at a steady rate, and read them at the same time.

    Returns:
        Microseconds of each record, from being written to being here, in arrays.

    Raises:
        MemqError: a Message failed.
        RequestTimeoutError: nothing came for a long time.
    """
    latencies_us: list[pa.Array] = []
    written = read = 0
    is_writing = True
    started_s = time.monotonic()
    while is_writing or read < written:
        due = int((time.monotonic() - started_s) * rate) + 1 - written
        some = list(islice(values, due))
        now_us = time.time_ns() // 1_000
        for value in some:
            producer.write(value, timestamp=now_us)
        written += len(some)
        is_writing = len(some) == due
        batch = consumer.poll(TICK_S if is_writing else PATIENCE_S)
        if batch is not None:
            latencies_us.append(_ages_us(batch))
            read += len(batch)
        elif not is_writing:
            producer.flush()  # raises why
            raise RequestTimeoutError(
                f"nothing came for {PATIENCE_S:g} s; {read} of {counted(written, 'record')} did"
            )
    return latencies_us


def _ages_us(batch: Batch) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    import pyarrow.compute as pc  # noqa: PLC0415

    now = pa.scalar(time.time_ns() // 1_000, pa.int64())
    return pc.subtract(now, batch.to_arrow()["timestamp"].cast(pa.int64())).combine_chunks()
