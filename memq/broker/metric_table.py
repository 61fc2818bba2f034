"""Every metric of a broker, once: Prometheus' objects, the reference and the checks follow.

Names are those that Prometheus shows. A label `topic` stands for a topic of which a write partition
runs here.
"""

from __future__ import annotations

from typing import NamedTuple


class MetricRow(NamedTuple):
    """One metric.

    Attributes:
        kind: counter, gauge or histogram.
        name: of the metric.
        labels: separated by a space.
        meaning: in one sentence.
        watch: what to look for where no alert does (`memq.broker.alerts`).
    """

    kind: str
    name: str
    labels: str
    meaning: str
    watch: str = ""

    @property
    def series(self) -> str:
        """Name of a series, for which a histogram has an ending."""
        return f"{self.name}_bucket" if self.kind == "histogram" else self.name


_TABLE = """\
gauge | memq_ready | | 1 while /ready says so. |
gauge | memq_service_up | service | 0 while storage, queue, zookeeper or disk refuses. |
gauge | memq_stored_through_seconds | topic | Watermark, seconds since 1970. |
counter | memq_batches_failed_total | topic | Batches that missed their deadline; not acked. |
histogram | memq_batch_publish_seconds | topic | From first Message to notification. |
histogram | memq_batch_stage_seconds | stage | The same: open, wait, put, publish. |
counter | memq_messages_received_total | topic | Valid Messages, with duplicates. |
counter | memq_bytes_received_total | topic | Their bytes. | it stops
counter | memq_batches_published_total | topic | Batches published. | it stops
counter | memq_records_published_total | topic | LogMessages in those. |
counter | memq_bytes_published_total | topic | Bytes of those. |
counter | memq_messages_repeated_total | topic | Duplicates, acked and not published again. |
counter | memq_requests_refused_total | code | Errors by code. |
gauge | memq_disk_free_bytes | folder | Free on a local disk. |
gauge | memq_tls_certificate_not_after_seconds | listener | When its certificate expires. |
gauge | memq_memory_used_bytes | | Messages between socket and storage. |
gauge | memq_memory_idle_bytes | | Memory kept for later Messages. |
gauge | memq_memory_limit_bytes | | Bound of the sum of those. |
gauge | memq_answer_bytes | | Large answers in memory. |
gauge | memq_answer_limit_bytes | | Bound of those. |
gauge | memq_connections | | Open connections. | near max_connections
counter | memq_connections_closed_total | reason | Connections that the broker closed. |
counter | memq_network_bytes_total | direction | Bytes from clients (in) and to them (out). |
counter | memq_cross_zone_bytes_total | direction | Those of clients in another zone. |
counter | memq_throttled_seconds_total | quota limit | Time that clients had to wait. |
counter | memq_access_log_lost_total | | Lines of the access log not written. |
gauge | memq_cluster_brokers | state | Brokers expected (registered, not stopped), present. |
counter | memq_storage_requests_total | kind | Requests to an object store. |
counter | memq_storage_bytes_total | kind | Bytes of objects in these. |
counter | memq_uploads_attempted_total | topic | PUTs of Batches, with retries and hedges.
counter | memq_uploads_hedged_total | | Uploads made a second time, in parallel. |
gauge | memq_group_lag_batches | group topic partition | Batches that the group has not committed. |
gauge | memq_group_lag_records | group topic partition | LogMessages in those. |
gauge | memq_group_lag_bytes | group topic partition | Bytes of those. |
gauge | memq_group_lag_seconds | group topic partition | Age of the oldest LogMessage in those. |
gauge | memq_group_removed | group topic partition | 1 where retention removed what was not read. |
gauge | memq_group_lag_left_out | | Groups without lag metrics: there are too many. |
gauge | memq_build_info | version | Always 1. |
"""

METRICS = {
    row.name: row
    for line in _TABLE.splitlines()
    for row in [MetricRow(*map(str.strip, line.split("|")))]
}
"""Each metric by its name, in the order of the reference."""
