"""The broker's counters, for Prometheus."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from memq.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memq.core.clock import ClockReading
    from memq.core.wire.messages import PartitionLag
    from memq.core.write_partition import RingBatch

M = TypeVar("M", Counter, Gauge, Histogram)

_BYTES = "_bytes"
_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GroupLagRow(NamedTuple):
    """How far a group is from the end of one read partition."""

    group: str
    topic: str
    lag: PartitionLag


class Traffic:
    """Bytes that come from clients and go to them.

    A counter's own lock would cost more than the rest of what is done for a small frame, so they
    are added to it when somebody looks.
    """

    __slots__ = ("_counter", "received", "sent")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.received = self.sent = 0

    def count(self) -> None:
        """Add them to the counter."""
        for direction, count in (("in", self.received), ("out", self.sent)):
            self._counter.labels(direction).inc(count)
        self.received = self.sent = 0


# The time at which a counter was made, in another series for each: nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]


_LAG_GAUGES = {
    "memq_group_lag_batches": "Batches that the group has not committed.",
    "memq_group_lag_records": "LogMessages in those.",
    "memq_group_lag_bytes": "Bytes of those.",
    "memq_group_lag_seconds": "Age of the oldest LogMessage in those.",
    "memq_group_removed": "1 where retention has removed what the group would have read next.",
}


class LagGauges(Collector):
    """The lag of groups as it was looked up last; what is not among the rows has no series.

    Attributes:
        rows: a group and a read partition each.
        left_out: groups that there is no room for.
        now_us: the time, microseconds since 1970 UTC, to tell ages by.
    """

    def __init__(self) -> None:
        self.rows: list[GroupLagRow] = []
        self.left_out = 0
        self.now_us = 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, as Prometheus wants them."""
        labels = ["group", "topic", "partition"]
        gauges = [GaugeMetricFamily(*each, labels=labels) for each in _LAG_GAUGES.items()]
        for group, topic, lag in self.rows:
            age_s, removed = lag.age_s(self.now_us), lag.offset < lag.start
            values = (lag.batches, lag.records, lag.size_bytes, age_s, removed)
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric([group, topic, str(lag.partition)], value)
        yield from gauges
        yield GaugeMetricFamily(
            "memq_group_lag_left_out", "Groups whose lag is not shown.", self.left_out
        )


class StorageRequests(Collector):
    """What was asked of an object store, which bills it.

    Attributes:
        counts: as the storage has them (`StorageHandler.requests`).
        hedges: uploads that were made a second time.
    """

    def __init__(self) -> None:
        self.counts: Mapping[str, int] = {}
        self.hedges: Callable[[], int] = lambda: 0

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters, as Prometheus wants them."""
        sizes = {kind for kind in self.counts if kind.endswith(_BYTES)}
        requests = {kind: self.counts[kind] for kind in self.counts.keys() - sizes}
        carried = {kind.removesuffix(_BYTES): self.counts[kind] for kind in sizes}
        asked, held = "Requests to an object store.", "Bytes of objects in these."
        yield _counters("memq_storage_requests", asked, "kind", requests)
        yield _counters("memq_storage_bytes", held, "kind", carried)
        yield CounterMetricFamily(
            "memq_uploads_hedged", "Uploads made a second time, in parallel.", self.hedges()
        )


def _counters(name: str, doc: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, doc, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


class Metrics:
    """Counters of one broker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.totals: dict[str, tuple[int, int]] = {}  # records and bytes published, by topic
        self._of_topics: list[Counter | Gauge | Histogram] = []
        counter, gauge = partial(self._made, Counter), partial(self._made, Gauge)
        histogram = partial(self._made, Histogram, buckets=_LATENCY_BUCKETS_S)
        self.messages = counter("memq_messages_received", "Messages received.", "topic")
        self.bytes = counter("memq_bytes_received", "Bytes of Messages received.", "topic")
        self.refused = counter("memq_requests_refused", "Requests refused.", "code")
        self.duplicates = counter(
            "memq_messages_repeated",
            "Duplicates of published Messages, not published again.",
            "topic",
        )
        self.batches = counter("memq_batches_published", "Batches published.", "topic")
        self.records = counter("memq_records_published", "LogMessages published.", "topic")
        self.bytes_stored = counter("memq_bytes_published", "Bytes of Batches.", "topic")
        self.batches_failed = counter(
            "memq_batches_failed", "Batches that missed their deadline; nothing was acked.", "topic"
        )
        self.connections_closed = counter(
            "memq_connections_closed", "Connections that the broker closed.", "reason"
        )
        self.access_lost = counter(
            "memq_access_log_lost", "Lines of the access log that were not written."
        )
        self.throttled = counter(
            "memq_throttled_seconds", "Time for which clients had to wait.", "quota", "limit"
        )
        self.connections = gauge("memq_connections", "Open connections.")
        self.memory = gauge("memq_memory_used_bytes", "Bytes of Messages held.")
        self.memory_idle = gauge("memq_memory_idle_bytes", "Bytes kept for later Messages.")
        self.memory_limit = gauge("memq_memory_limit_bytes", "Bound of the sum of those.")
        self.answers = gauge("memq_answer_bytes", "Bytes of large answers held.")
        self.answers_limit = gauge("memq_answer_limit_bytes", "Bound of those.")
        self.watermark = gauge(
            "memq_stored_through_seconds",
            "Watermark: everything acked before this time is published.",
            "topic",
        )
        self.up = gauge("memq_service_up", "0 while it refuses.", "service")
        self.ready = gauge("memq_ready", "1 while /ready says so.")
        self.free = gauge("memq_disk_free_bytes", "Bytes free on a disk.", "folder")
        self.certificate_ends = gauge(
            "memq_tls_certificate_not_after_seconds",
            "When the certificate of a listener expires, seconds since 1970.",
            "listener",
        )
        gauge("memq_build_info", "Always 1.", "version").labels(__version__).set(1)
        self.brokers = gauge(
            "memq_cluster_brokers",
            "Brokers of the cluster that are there, and that have registered and not stopped.",
            "state",
        )
        what = "From a Batch's first Message to its notification."
        self.latency = histogram("memq_batch_publish_seconds", what, "topic")
        self._stages = histogram("memq_batch_stage_seconds", "The same by stage.", "stage")
        self.lag = LagGauges()
        self.storage = StorageRequests()
        self.traffic = Traffic(
            counter("memq_network_bytes", "Bytes from clients and to them.", "direction")
        )
        self.traffic_across_zones = Traffic(
            counter("memq_cross_zone_bytes", "Those of clients in other zones.", "direction")
        )
        for collector in (self.lag, self.storage):
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)

    def published(self, topic: str, batch: RingBatch, now: ClockReading) -> None:
        """Count a Batch that was published."""
        sealed = batch.sealed
        assert sealed is not None  # noqa: S101 - only sealed Batches are published
        records, size_bytes = self.totals.get(topic, (0, 0))
        self.totals[topic] = (records + sealed.records, size_bytes + sealed.size_bytes)
        self.batches.labels(topic).inc()
        self.records.labels(topic).inc(sealed.records)
        self.bytes_stored.labels(topic).inc(sealed.size_bytes)
        self.latency.labels(topic).observe((now.mono_ms - batch.opened.mono_ms) / 1000)
        begun_ms = batch.opened.mono_ms
        for stage, ended_ms in (
            ("open", batch.sealed_mono_ms),
            ("wait", batch.put_mono_ms),
            ("put", batch.stored_mono_ms),
            ("publish", now.mono_ms),
        ):
            self._stages.labels(stage).observe((ended_ms - begun_ms) / 1000)
            begun_ms = ended_ms

    def keep(self, topics: Collection[str]) -> None:
        """Let go of the series of all topics but these: nothing of the others runs here."""
        for metric in self._of_topics:
            samples = [sample for family in metric.collect() for sample in family.samples]
            for topic in {sample.labels["topic"] for sample in samples}.difference(topics):
                metric.remove(topic)
        self.totals = {topic: each for topic, each in self.totals.items() if topic in topics}
        self.lag.rows = [row for row in self.lag.rows if row.topic in topics]

    def render(self) -> bytes:
        """Render the text that Prometheus reads."""
        self.traffic.count()
        self.traffic_across_zones.count()
        return generate_latest(self.registry)

    def _made(self, kind: type[M], name: str, doc: str, *labels: str, **options: Any) -> M:
        metric = kind(name, doc, labels, registry=self.registry, **options)
        if "topic" in labels:
            self._of_topics.append(metric)
        return metric
