"""What a workload costs a month: a model of MemQ's bill, and of Kafka's beside it.

A workload and a list of prices give lines: an amount, its unit and dollars. Each formula follows
the requests that the code makes, and was compared with what a real S3 server counted
(`tests/integration/storage/test_cost.py`). `docs/cost.md` says what is left out.

Megabytes and gigabytes are 10^6 and 10^9 bytes. A month has 30.4 days.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from memq.core.options import Option, options_of
from memq.core.units import DAY_MS, GIB, KIB, MIB, MINUTE_MS
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

DAYS = 30.4  # of a month
HOURS = DAYS * 24
MONTH_S = DAYS * 86_400

PART_BYTES = 8 * MIB  # of a GET of a whole Batch: PART_BYTES in memq/storage/object_store.py
WHOLE_BYTES = 64 * MIB  # a longer read first asks where the object ends
RANGE_BYTES = 1 * MIB  # of a GET of Spark: READ_BYTES in memq/spark/worker.py
PAGE_KEYS = 1_000  # of a LIST

MB_PER_VCPU = 150.0  # a second into a broker: half of what benchmarks/object_store.py finds
USED = 0.5  # of the machines' capacity: the rest is for peaks, and for what a lost machine carried
DISK_USED = 0.7  # of Kafka's disks, at most
KAFKA_LOCAL_MS = DAY_MS / 4  # that tiered storage keeps on disks
REPLICAS = 3  # of Kafka
LEAST = 3  # servers of Kafka, of ZooKeeper, and brokers of a cluster: one in each zone
PARTITION_MB = 50.0  # a second of a write partition: its ring of uploads carries three times that
NOTIFICATION_BYTES = 1_000  # on the wire and in the queue, with its part of a transaction
WORST_HEDGES = 0.05  # what hedging may cost at most: EXTRA_SHARE in memq/runtime/hedging.py


_Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Size = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in dollars, and the machines that they are for.

    Attributes:
        date: when they were true.
        region: where.
        source: from where they are.
        put_per_1000: PUT requests.
        get_per_1000: GET requests.
        list_per_1000: LIST requests.
        object_gb_month: a GB in the object store.
        disk_gb_month: a GB on a disk.
        cross_zone_gb: a GB from one zone into another, both directions together.
        broker_hour: an instance for a broker.
        broker_vcpus: that it has.
        broker_network_mb_per_second: its network for good, each direction.
        small_hour: an instance for ZooKeeper.
    """

    date: str
    region: str
    source: str
    put_per_1000: _Price
    get_per_1000: _Price
    list_per_1000: _Price
    object_gb_month: _Price
    disk_gb_month: _Price
    cross_zone_gb: _Price
    broker_hour: _Price
    broker_vcpus: _Size
    broker_network_mb_per_second: _Size
    small_hour: _Price


def _number(low: float, high: float) -> Callable[[str], float]:
    """Read a number within limits, which "nan" is not."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= (found := float(text)) <= high:
                return found
        raise ConfigError(f"{text!r}: expected a number from {low:g} to {high:g}")

    return read


@dataclass(frozen=True)
class Workload:
    """What is sent, kept and read.

    Attributes:
        mb_per_second: 10^6 bytes a second that producers send, compressed, over all topics.
        topics: How many topics share it, all alike.
        write_partitions: Of each topic; 0 for one for each 50 MB/s.
        batch_bytes: A Batch is sealed at this size.
        batch_age_ms: A Batch is sealed this long after its first Message.
        message_bytes: Size of a Message on average, as it is sent.
        readers: Groups that read everything, each Batch as a whole.
        ranged_readers: Spark jobs that read everything, Message by Message.
        zone_share: Part of producers' bytes that goes to another zone; 0 with `zone` set.
        retention_ms: How long everything is kept.
        compression: How many times larger all is in a Kafka that compresses nothing.
        hedges: PUTs and GETs that are made a second time, for each one.
        orphan_scans: Scans for orphans a day, in each broker.
        embedded: One broker with the embedded queue, in place of a cluster.
    """

    mb_per_second: Annotated[float, Option("text", None, read=_number(0.001, 1e7))]
    topics: Annotated[int, Option("count", 1, 1, 1_000_000)]
    write_partitions: Annotated[int, Option("count", 0, 0, 1_000_000)]
    batch_bytes: Annotated[int, Option("size", "8MiB", KIB, GIB)]
    batch_age_ms: Annotated[int, Option("duration", "200ms", 1, 10 * MINUTE_MS)]
    message_bytes: Annotated[int, Option("size", "1000000B", 1, 64 * MIB)]
    readers: Annotated[float, Option("text", "1", read=_number(0, 1e6))]
    ranged_readers: Annotated[float, Option("text", "0", read=_number(0, 1e6))]
    zone_share: Annotated[float, Option("text", "0.67", read=_number(0, 1))]
    retention_ms: Annotated[int, Option("duration", "7d", 10_000, 3650 * DAY_MS)]
    compression: Annotated[float, Option("text", "1", read=_number(1, 1e3))]
    hedges: Annotated[float, Option("text", "0.03", read=_number(0, 1))]
    orphan_scans: Annotated[float, Option("text", "1", read=_number(0, 1e6))]
    embedded: Annotated[bool, Option("flag", default=False)]

    @property
    def batches_per_second(self) -> float:
        """Batches, by bytes or by age, whichever seals sooner."""
        each = self.write_partitions or ceil(self.mb_per_second / self.topics / PARTITION_MB)
        streams = self.topics * each
        messages = self.mb_per_second * 1e6 / self.message_bytes / streams
        by_bytes = messages / max(1, self.batch_bytes // self.message_bytes)
        # It begins with a Message, so the wait for that comes on top of its age.
        by_age = messages / (1 + messages * self.batch_age_ms / 1000)
        return max(by_bytes, by_age) * streams

    @property
    def retained_gb(self) -> float:
        """Data retained."""
        return self.mb_per_second * self.retention_ms / 1e6


WORKLOAD_OPTIONS = options_of(Workload)


class Line(NamedTuple):
    """One line of a bill, a month.

    Attributes:
        item: what is paid for.
        amount: of it.
        unit: of the amount.
        dollars: for all of it.
    """

    item: str
    amount: float
    unit: str
    dollars: float


def whole_gets(size_bytes: float) -> int:
    """GETs of a reader that takes a Batch as a whole: consumers, `read_range`, exports."""
    return max(1, round(size_bytes / PART_BYTES)) + (size_bytes > WHOLE_BYTES)


def ranged_gets(size_bytes: float, messages: float) -> int:
    """GETs of Spark for a Batch: its index, then its Messages, up to 1 MiB at a time."""
    together = max(1.0, RANGE_BYTES * messages // max(1.0, size_bytes))
    return 1 + ceil(messages / together)


def list_requests(objects: float) -> int:
    """LISTs of a scan for orphans, which goes over all objects once."""
    return max(1, ceil(objects / PAGE_KEYS))


def brokers(load: Workload, prices: Prices) -> int:
    """Brokers that carry the load, by CPU or by network; a cluster has `LEAST`.

    Raises:
        ConfigError: with the embedded queue there is but one, and it cannot.
    """
    limit = min(MB_PER_VCPU * prices.broker_vcpus, prices.broker_network_mb_per_second)
    needed = ceil(load.mb_per_second * (1 + load.hedges) / (limit * USED))
    if load.embedded and needed > 1:
        most = f"for up to {limit * USED / (1 + load.hedges):.0f} MB/s; leave out --embedded"
        rate = f"{load.mb_per_second:g} MB/s need {needed} brokers"
        raise ConfigError(f"{rate}, and an embedded queue has one, {most}")
    return 1 if load.embedded else max(LEAST, needed)


def memq_bill(load: Workload, prices: Prices) -> list[Line]:
    """Return the bill of MemQ, a month."""
    batches, count = load.batches_per_second, brokers(load, prices)
    gb, size_bytes = load.mb_per_second / 1e3 * MONTH_S, load.mb_per_second * 1e6 / batches
    gets = load.readers * whole_gets(size_bytes)
    gets += load.ranged_readers * ranged_gets(size_bytes, size_bytes / load.message_bytes)
    more = (1 + load.hedges) * batches * MONTH_S
    # One that asked its storage nothing for a second asks once.
    probes = max(0.0, count - batches) * MONTH_S
    lists = count * DAYS * load.orphan_scans * list_requests(batches * load.retention_ms / 1e3)
    lines = [
        _line("PUT requests", more, "requests", prices.put_per_1000 / 1e3),
        _line("GET requests", more * gets + probes, "requests", prices.get_per_1000 / 1e3),
        _line("LIST requests", lists, "requests", prices.list_per_1000 / 1e3),
        _line("objects", load.retained_gb, "GB", prices.object_gb_month),
        _line("brokers", count, "instances", HOURS * prices.broker_hour),
        _line("between zones", gb * load.zone_share, "GB", prices.cross_zone_gb),
    ]
    if not load.embedded:
        rate = batches * NOTIFICATION_BYTES / 1e6
        queue = kafka_bill(replace(load, mb_per_second=rate, compression=1), prices, tuned=False)
        dollars = total(queue) + LEAST * HOURS * prices.small_hour
        lines.append(Line("Kafka and ZooKeeper", LEAST * 2, "instances or more", dollars))
    return lines


def _line(item: str, amount: float, unit: str, price: float) -> Line:
    return Line(item, amount, unit, amount * price)


def kafka_bill(load: Workload, prices: Prices, *, tuned: bool) -> list[Line]:
    """Return the bill of Kafka in three zones, a month.

    Args:
        load: the workload.
        prices: of everything.
        tuned: readers fetch from followers in their zone, data is compressed, and tiered storage
            keeps most of it in the object store; else as it comes.
    """
    load = replace(load, mb_per_second=load.mb_per_second * (1 if tuned else load.compression))
    rate, readers, away = load.mb_per_second, load.readers + load.ranged_readers, 2 / 3
    busiest = max(REPLICAS, REPLICAS - 1 + readers + tuned) * rate
    count = max(LEAST, ceil(busiest / (prices.broker_network_mb_per_second * USED)))
    crossing = REPLICAS - 1 + (load.zone_share if tuned else away * (1 + readers))
    local = min(1, KAFKA_LOCAL_MS / load.retention_ms) if tuned else 1
    disk = load.retained_gb * local * REPLICAS / DISK_USED
    return [
        _line("brokers", count, "instances", HOURS * prices.broker_hour),
        _line("disks", disk, "GB", prices.disk_gb_month),
        _line("objects", load.retained_gb if tuned else 0, "GB", prices.object_gb_month),
        _line("between zones", rate / 1e3 * MONTH_S * crossing, "GB", prices.cross_zone_gb),
    ]


def total(lines: list[Line]) -> float:
    """Return the sum of a bill in dollars."""
    return sum(each.dollars for each in lines)


def worst(load: Workload) -> Workload:
    """Return the same load where what can go wrong does.

    All producers' bytes cross zones, hedging costs what it may, Batches are half as large, and all
    is read twice.
    """
    new: dict[str, Any] = {"readers": load.readers * 2, "ranged_readers": load.ranged_readers * 2}
    new |= {name: max(1, getattr(load, name) // 2) for name in ("batch_bytes", "batch_age_ms")}
    return replace(load, zone_share=1.0, hedges=WORST_HEDGES, **new)


def sensitivity(load: Workload, prices: Prices) -> list[Line]:
    """Tell what the total changes by when each input is halved or doubled, the most first."""
    usual, found = total(memq_bill(load, prices)), []
    for name, value in vars(load).items():
        most, kind = 1.0 if name == "zone_share" else inf, type(value)
        for how, other in (
            ("halved", max(value / 2, kind is int)),
            ("doubled", min(value * 2, most)),
        ):
            if value and name not in ("embedded", "compression"):  # a choice; of Kafka alone
                changed: dict[str, Any] = {name: kind(other)}
                dollars = total(memq_bill(replace(load, **changed), prices)) - usual
                found.append(Line(f"{name} {how}", 0, "more a month", dollars))
    return sorted(found, key=lambda line: -abs(line.dollars))
