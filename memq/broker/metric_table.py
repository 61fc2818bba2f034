"""Every metric of a broker, once: Prometheus' objects, the reference and the checks follow.

Names are those that Prometheus shows. A label `topic` stands for a topic of which a write partition
runs here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class MetricRow(NamedTuple):
    """One metric.

    Attributes:
        kind: as Prometheus has it.
        labels: separated by a space.
        name: of the metric.
        meaning: in one sentence.
        watch: what to look for where no alert does (`memq.broker.alerts`).
    """

    kind: Literal["counter", "gauge", "histogram"]
    labels: str
    name: str
    meaning: str
    watch: str = ""

    @property
    def series(self) -> str:
        """Name of a series, for which a histogram has an ending."""
        return f"{self.name}_bucket" if self.kind == "histogram" else self.name


def _gauge(name: str, labels: str, meaning: str, watch: str = "") -> MetricRow:
    return MetricRow("gauge", labels, name, meaning, watch)


def _counter(name: str, labels: str, meaning: str, watch: str = "") -> MetricRow:
    return MetricRow("counter", labels, name, meaning, watch)


def _histogram(name: str, labels: str, meaning: str) -> MetricRow:
    return MetricRow("histogram", labels, name, meaning)


_GROUP = "group topic partition"

_ROWS = (
    _gauge("memq_ready", "", "1 while /ready says so."),
    _gauge("memq_service_up", "service", "0 while storage, queue, zookeeper or disk refuses."),
    _gauge("memq_stored_through_seconds", "topic", "Watermark, seconds since 1970."),
    _counter(
        "memq_batches_failed_total", "topic", "Batches that missed their deadline; not acked."
    ),
    _histogram("memq_batch_publish_seconds", "topic", "From first Message to notification."),
    _histogram("memq_batch_stage_seconds", "stage", "The same: open, wait, put, publish."),
    _counter("memq_messages_received_total", "topic", "Valid Messages, with duplicates."),
    _counter("memq_bytes_received_total", "topic", "Their bytes.", "it stops"),
    _counter("memq_batches_published_total", "topic", "Batches published.", "it stops"),
    _counter("memq_records_published_total", "topic", "LogMessages in those."),
    _counter("memq_bytes_published_total", "topic", "Bytes of those."),
    _counter("memq_messages_repeated_total", "topic", "Duplicates, acked and not published again."),
    _counter("memq_requests_refused_total", "code", "Errors by code."),
    _gauge("memq_disk_free_bytes", "folder", "Free on a local disk."),
    _gauge("memq_tls_certificate_not_after_seconds", "listener", "When its certificate expires."),
    _gauge("memq_memory_used_bytes", "", "Messages between socket and storage."),
    _gauge("memq_memory_idle_bytes", "", "Memory kept for later Messages."),
    _gauge("memq_memory_limit_bytes", "", "Bound of the sum of those."),
    _gauge("memq_answer_bytes", "", "Large answers in memory."),
    _gauge("memq_answer_limit_bytes", "", "Bound of those."),
    _gauge("memq_connections", "", "Open connections.", "near max_connections"),
    _counter("memq_connections_closed_total", "reason", "Connections that the broker closed."),
    _counter("memq_network_bytes_total", "direction", "Bytes from clients (in) and to them (out)."),
    _counter("memq_cross_zone_bytes_total", "direction", "Those of clients in another zone."),
    _counter("memq_throttled_seconds_total", "quota limit", "Time that clients had to wait."),
    _counter("memq_access_log_lost_total", "", "Lines of the access log not written."),
    _gauge("memq_cluster_brokers", "state", "Brokers expected (registered, not stopped), present."),
    _counter("memq_storage_requests_total", "kind", "Requests to an object store."),
    _counter("memq_storage_bytes_total", "kind", "Bytes of objects in these."),
    _counter("memq_uploads_hedged_total", "", "Uploads made a second time, in parallel."),
    _gauge("memq_group_lag_batches", _GROUP, "Batches that the group has not committed."),
    _gauge("memq_group_lag_records", _GROUP, "LogMessages in those."),
    _gauge("memq_group_lag_bytes", _GROUP, "Bytes of those."),
    _gauge("memq_group_lag_seconds", _GROUP, "Age of the oldest LogMessage in those."),
    _gauge("memq_group_removed", _GROUP, "1 where retention removed what was not read."),
    _gauge("memq_group_lag_left_out", "", "Groups without lag metrics: there are too many."),
    _gauge("memq_build_info", "version", "Always 1."),
)

METRICS = {row.name: row for row in _ROWS}
"""Each metric by its name, in the order of the reference."""
