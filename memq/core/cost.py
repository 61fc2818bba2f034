"""What a workload costs a month: a model of MemQ's bill, and of Kafka's beside it.

A workload and a list of prices give lines: an amount, its unit and dollars. Each formula follows
the requests that the code makes, and was compared with what a real S3 server counted
(`tests/integration/storage/test_cost.py`). `docs/cost.md` says what is left out.

Megabytes and gigabytes are 10^6 and 10^9 bytes. A month has 30.4 days.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from memq.core.units import MIB
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DAYS = 30.4  # of a month
MONTH_S = DAYS * 86_400

PART_BYTES = 8 * MIB  # of a GET of a whole Batch: PART_BYTES in memq/storage/object_store.py
WHOLE_BYTES = 64 * MIB  # a longer read first asks where the object ends
RANGE_BYTES = 1 * MIB  # of a GET of Spark: READ_BYTES in memq/spark/worker.py
PAGE_KEYS = 1_000  # of a LIST

MB_PER_VCPU = 150.0  # a second into a broker: half of what benchmarks/object_store.py finds
USED = 0.5  # of the machines' capacity: the rest is for peaks, and for what a lost machine carried
DISK_USED = 0.7  # of Kafka's disks, at most
KAFKA_LOCAL_DAYS = 0.25  # that tiered storage keeps on disks
LEAST = 3  # servers of Kafka, of ZooKeeper, and brokers of a cluster: one in each zone
NOTIFICATION_BYTES = 1_000  # on the wire and in the queue, with its part of a transaction
PROBE_S = 1.0  # a broker that asked its storage nothing for so long asks once
WORST_HEDGES = 0.05  # what hedging may cost at most: EXTRA_SHARE in memq/runtime/hedging.py


@dataclass(frozen=True)
class Prices:
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
    put_per_1000: float
    get_per_1000: float
    list_per_1000: float
    object_gb_month: float
    disk_gb_month: float
    cross_zone_gb: float
    broker_hour: float
    broker_vcpus: float
    broker_network_mb_per_second: float
    small_hour: float

    @classmethod
    def read(cls, table: Mapping[str, object], where: str) -> Prices:
        """Make prices of the table of a file.

        Raises:
            ConfigError: a price is missing, unknown, no number or negative.
        """
        names = {each.name for each in fields(cls)}
        if different := sorted(names ^ table.keys()):
            expected = ", ".join(sorted(names))
            raise ConfigError(f"{where}: {different[0]} is missing or unknown; expected {expected}")
        for each in fields(cls):
            value = table[each.name]
            if each.type == "str":
                sound = isinstance(value, str)
            else:
                sound = type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]
            if not sound:
                wanted = "a text" if each.type == "str" else "a number from 0 on"
                raise ConfigError(f"{where}: {each.name} = {value!r}: expected {wanted}")
        prices = cls(**table)  # type: ignore[arg-type]
        if not (prices.broker_vcpus and prices.broker_network_mb_per_second):
            raise ConfigError(f"{where}: a broker has no vCPU or no network; expected more than 0")
        return prices


@dataclass(frozen=True)
class Workload:
    """What is sent, kept and read.

    Attributes:
        mb_per_second: as producers send it, compressed, over all topics.
        topics: how many, all alike.
        write_partitions: of each topic.
        batch_bytes: at which a Batch is sealed.
        batch_age_ms: after which it is.
        message_bytes: of a Message on average, as it is sent.
        readers: groups that read everything, each Batch as a whole.
        ranged_readers: Spark jobs that read everything, Message by Message.
        zone_share: of producers' bytes that go to a broker of another zone.
        retention_days: how long everything is kept.
        compression: how many times larger it is where nothing compresses, as in a Kafka by default.
        hedges: PUTs and GETs that are made a second time, for each one.
        replicas: of Kafka.
        embedded: one broker with the embedded queue, in place of a cluster.
        orphan_scans: a day, of each broker.
    """

    mb_per_second: float
    topics: int = 1
    write_partitions: int = 1
    batch_bytes: int = 8 * MIB
    batch_age_ms: int = 200
    message_bytes: int = 1_000_000
    readers: float = 1
    ranged_readers: float = 0
    zone_share: float = 2 / 3
    retention_days: float = 7
    compression: float = 1
    hedges: float = 0.03
    replicas: int = 3
    embedded: bool = False
    orphan_scans: float = 1

    @property
    def batches_per_second(self) -> float:
        """Batches, by bytes or by age, whichever seals sooner."""
        streams = self.topics * self.write_partitions
        messages = self.mb_per_second * 1e6 / self.message_bytes / streams
        by_bytes = messages / max(1, self.batch_bytes // self.message_bytes)
        # It begins with a Message, so the wait for that comes on top of its age.
        by_age = messages / (1 + messages * self.batch_age_ms / 1000)
        return max(by_bytes, by_age) * streams

    @property
    def batch_size_bytes(self) -> float:
        """Size of a Batch on average."""
        return self.mb_per_second * 1e6 / self.batches_per_second

    @property
    def objects(self) -> float:
        """Batches retained."""
        return self.batches_per_second * self.retention_days * 86_400


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


class Requests(NamedTuple):
    """Requests to an object store, of any stretch of time."""

    puts: float = 0
    gets: float = 0
    lists: float = 0

    def dollars(self, prices: Prices) -> float:
        """Return what they cost."""
        return (
            self.puts * prices.put_per_1000
            + self.gets * prices.get_per_1000
            + self.lists * prices.list_per_1000
        ) / 1000


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
    if not load.embedded:
        return max(LEAST, needed)
    if needed > 1:
        raise ConfigError(
            f"{load.mb_per_second:g} MB/s need {needed} brokers, and an embedded queue has one, "
            f"for up to {limit * USED / (1 + load.hedges):.0f} MB/s; choose the queue kafka"
        )
    return 1


def requests_per_second(load: Workload, prices: Prices) -> Requests:
    """Return what brokers and readers ask of the store each second, on average."""
    batches, size_bytes = load.batches_per_second, load.batch_size_bytes
    each = load.readers * whole_gets(size_bytes)
    each += load.ranged_readers * ranged_gets(size_bytes, size_bytes / load.message_bytes)
    count, more = brokers(load, prices), 1 + load.hedges
    probes = max(0.0, count / PROBE_S - batches)
    lists = count * load.orphan_scans * list_requests(load.objects) / 86_400
    return Requests(batches * more, batches * each * more + probes, lists)


def memq_bill(load: Workload, prices: Prices) -> list[Line]:
    """Return the bill of MemQ, a month."""
    asked, count = requests_per_second(load, prices), brokers(load, prices)
    puts, gets, lists = (each * MONTH_S for each in asked)
    stored = load.mb_per_second * 86.4 * load.retention_days
    crossed = load.mb_per_second / 1e3 * MONTH_S * load.zone_share
    hours = DAYS * 24
    lines = [
        Line("PUT requests", puts, "requests", puts / 1000 * prices.put_per_1000),
        Line("GET requests", gets, "requests", gets / 1000 * prices.get_per_1000),
        Line("LIST requests", lists, "requests", lists / 1000 * prices.list_per_1000),
        Line("objects", stored, "GB", stored * prices.object_gb_month),
        Line("brokers", count, "instances", count * hours * prices.broker_hour),
        Line("between zones", crossed, "GB", crossed * prices.cross_zone_gb),
    ]
    if not load.embedded:
        # Every broker reads a topic's state; notifications are read by each reader's long polls.
        notified = replace(
            load, mb_per_second=load.batches_per_second * NOTIFICATION_BYTES / 1e6, compression=1
        )
        queue = sum(each.dollars for each in kafka_bill(notified, prices, tuned=False))
        queue += LEAST * hours * prices.small_hour
        lines.append(Line("Kafka and ZooKeeper", LEAST * 2, "instances or more", queue))
    return lines


def kafka_bill(load: Workload, prices: Prices, *, tuned: bool) -> list[Line]:
    """Return the bill of Kafka in three zones, a month.

    Args:
        load: the workload.
        prices: of everything.
        tuned: readers fetch from followers in their zone, data is compressed, and tiered storage
            keeps most of it in the object store; else as it comes.
    """
    rate = load.mb_per_second * (1 if tuned else load.compression)
    consumers, away = load.readers + load.ranged_readers, 2 / 3
    written, sent = rate * load.replicas, rate * (load.replicas - 1 + consumers + tuned)
    busiest = max(written, sent) / (prices.broker_network_mb_per_second * USED)
    count, hours = max(LEAST, ceil(busiest)), DAYS * 24
    crossing = load.replicas - 1 + (load.zone_share if tuned else away * (1 + consumers))
    crossed = rate / 1e3 * MONTH_S * crossing
    local_days = min(load.retention_days, KAFKA_LOCAL_DAYS) if tuned else load.retention_days
    disk = rate * 86.4 * local_days * load.replicas / DISK_USED
    lines = [
        Line("brokers", count, "instances", count * hours * prices.broker_hour),
        Line("disks", disk, "GB", disk * prices.disk_gb_month),
        Line("between zones", crossed, "GB", crossed * prices.cross_zone_gb),
    ]
    if tuned:
        tiered = rate * 86.4 * load.retention_days
        lines.insert(2, Line("objects", tiered, "GB", tiered * prices.object_gb_month))
    return lines


def total(lines: list[Line]) -> float:
    """Return the sum of a bill in dollars."""
    return sum(each.dollars for each in lines)


def worst(load: Workload) -> Workload:
    """Return the same load where what can go wrong does.

    All producers' bytes cross zones, hedging costs what it may, Batches are half as large, and all
    is read twice.
    """
    return replace(
        load,
        zone_share=1.0,
        hedges=WORST_HEDGES,
        batch_bytes=max(load.batch_bytes // 2, 1),
        batch_age_ms=max(load.batch_age_ms // 2, 1),
        readers=load.readers * 2,
        ranged_readers=load.ranged_readers * 2,
    )


def sensitivity(load: Workload, prices: Prices) -> Iterator[tuple[str, float, float]]:
    """Yield each input with the total when it is halved and when it is doubled."""
    for each in fields(load):
        value = getattr(load, each.name)
        if isinstance(value, bool) or not value or each.name in ("compression", "replicas"):
            continue
        most = 1.0 if each.name == "zone_share" else float("inf")
        totals = [
            total(memq_bill(replace(load, **{each.name: kind(min(changed, most))}), prices))
            for kind in [type(value)]
            for changed in (max(value / 2, kind is int), value * 2)
        ]
        yield each.name, totals[0], totals[1]
