"""A dashboard of the metrics of brokers, as Grafana imports it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_SCHEMA = 39  # of Grafana 10.4; later ones read it
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3  # of a panel, in Grafana's grid of 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A graph.

    Attributes:
        title: above it.
        unit: as Grafana names it.
        legend: of a line.
        expr: in PromQL.
    """

    title: str
    unit: str
    legend: str
    expr: str


_MEMORY = "memq_memory_used_bytes / memq_memory_limit_bytes"
_P99 = "histogram_quantile(0.99, sum by (le, {0}) (rate({1}_bucket[5m])))"


def _rate(counter: str, by: str) -> str:
    return f"sum by ({by}) (rate({counter}[5m]))"


PANELS = (
    Panel("Ready", "short", "{{instance}}", "memq_ready"),
    Panel("Services", "short", "{{service}} {{instance}}", "memq_service_up"),
    Panel(
        "Watermark age", "s", "{{topic}}", "time() - min by (topic) (memq_stored_through_seconds)"
    ),
    Panel("Received", "Bps", "{{topic}}", _rate("memq_bytes_received_total", "topic")),
    Panel("Batches published", "ops", "{{topic}}", _rate("memq_batches_published_total", "topic")),
    Panel("Batches failed", "ops", "{{topic}}", _rate("memq_batches_failed_total", "topic")),
    Panel("Acks, p99", "s", "{{topic}}", _P99.format("topic", "memq_batch_publish_seconds")),
    Panel("Stages, p99", "s", "{{stage}}", _P99.format("stage", "memq_batch_stage_seconds")),
    Panel("Errors", "ops", "{{code}}", _rate("memq_requests_refused_total", "code")),
    Panel(
        "Lag of groups",
        "s",
        "{{group}} {{topic}}",
        "max by (group, topic) (memq_group_lag_seconds)",
    ),
    Panel(
        "Memory used",
        "percentunit",
        "{{instance}}",
        "memq_memory_used_bytes / memq_memory_limit_bytes",
    ),
    Panel("Disk free", "bytes", "{{instance}} {{folder}}", "memq_disk_free_bytes"),
    Panel("Connections", "short", "{{instance}}", "memq_connections"),
    Panel("Network", "Bps", "{{direction}}", _rate("memq_network_bytes_total", "direction")),
    Panel("Store requests", "ops", "{{kind}}", _rate("memq_storage_requests_total", "kind")),
)


def dashboard_text() -> str:
    """Return the dashboard as JSON."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    made = {
        "uid": "memq",
        "title": "MemQ",
        "schemaVersion": _SCHEMA,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [_panel(number, each) for number, each in enumerate(PANELS)],
    }
    return json.dumps(made, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    query = {"refId": "A", "expr": panel.expr, "legendFormat": panel.legend}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [query | {"datasource": _SOURCE}],
    }
