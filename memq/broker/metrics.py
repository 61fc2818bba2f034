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

from memq.broker.metric_table import METRICS
from memq.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memq.core.clock import ClockReading
    from memq.core.wire.messages import PartitionLag
    from memq.core.write_partition import RingBatch

M = TypeVar("M", Counter, Gauge, Histogram)
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)

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


_LAG_GAUGES = (
    "memq_group_lag_batches",
    "memq_group_lag_records",
    "memq_group_lag_bytes",
    "memq_group_lag_seconds",
    "memq_group_removed",
)


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
        gauges = [_family(GaugeMetricFamily, name) for name in _LAG_GAUGES]
        for group, topic, lag in self.rows:
            age_s, removed = lag.age_s(self.now_us), lag.offset < lag.start
            values = (lag.batches, lag.records, lag.size_bytes, age_s, removed)
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric([group, topic, str(lag.partition)], value)
        yield from gauges
        left_out = _family(GaugeMetricFamily, "memq_group_lag_left_out")
        left_out.add_metric([], self.left_out)
        yield left_out


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
        for name, counts in (
            ("memq_storage_requests_total", requests),
            ("memq_storage_bytes_total", carried),
        ):
            family = _family(CounterMetricFamily, name)
            for kind, count in sorted(counts.items()):
                family.add_metric([kind], count)
            yield family
        hedged = _family(CounterMetricFamily, "memq_uploads_hedged_total")
        hedged.add_metric([], self.hedges())
        yield hedged


def _family(kind: type[F], name: str) -> F:
    row = METRICS[name]
    return kind(name, row.meaning, labels=row.labels.split())


class Metrics:
    """Counters of one broker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.totals: dict[str, tuple[int, int]] = {}  # records and bytes published, by topic
        self._of_topics: list[Counter | Gauge | Histogram] = []
        counter, gauge = partial(self._made, Counter), partial(self._made, Gauge)
        histogram = partial(self._made, Histogram, buckets=_LATENCY_BUCKETS_S)
        self.messages = counter("memq_messages_received_total")
        self.bytes = counter("memq_bytes_received_total")
        self.refused = counter("memq_requests_refused_total")
        self.duplicates = counter("memq_messages_repeated_total")
        self.batches = counter("memq_batches_published_total")
        self.records = counter("memq_records_published_total")
        self.bytes_stored = counter("memq_bytes_published_total")
        self.attempted = counter("memq_uploads_attempted_total")
        self.batches_failed = counter("memq_batches_failed_total")
        self.connections_closed = counter("memq_connections_closed_total")
        self.access_lost = counter("memq_access_log_lost_total")
        self.throttled = counter("memq_throttled_seconds_total")
        self.connections = gauge("memq_connections")
        self.memory = gauge("memq_memory_used_bytes")
        self.memory_idle = gauge("memq_memory_idle_bytes")
        self.memory_limit = gauge("memq_memory_limit_bytes")
        self.answers = gauge("memq_answer_bytes")
        self.answers_limit = gauge("memq_answer_limit_bytes")
        self.watermark = gauge("memq_stored_through_seconds")
        self.up = gauge("memq_service_up")
        self.ready = gauge("memq_ready")
        self.free = gauge("memq_disk_free_bytes")
        self.certificate_ends = gauge("memq_tls_certificate_not_after_seconds")
        gauge("memq_build_info").labels(__version__).set(1)
        self.brokers = gauge("memq_cluster_brokers")
        self.latency = histogram("memq_batch_publish_seconds")
        self._stages = histogram("memq_batch_stage_seconds")
        self.lag = LagGauges()
        self.storage = StorageRequests()
        self.traffic = Traffic(counter("memq_network_bytes_total"))
        self.traffic_across_zones = Traffic(counter("memq_cross_zone_bytes_total"))
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

    def _made(self, kind: type[M], name: str, **options: Any) -> M:
        row = METRICS[name]
        labels = row.labels.split()
        metric = kind(name, row.meaning, labels, registry=self.registry, **options)
        if "topic" in labels:
            self._of_topics.append(metric)
        return metric
