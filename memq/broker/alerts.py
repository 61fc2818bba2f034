"""When somebody must look: alerts on the metrics of brokers, as rules of Prometheus.

Each alert has a heading in docs/runbook.md that says what it means and what to do. Thresholds are
for the default options of topics: raise them where batch_age or upload_deadline are longer.

A counter appears with the first thing that it counts, and shows no increase then: an error that
happens once, and never again, raises no alert.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from memq.broker.metric_table import METRICS

_MADE = """\
# Made by `memq generate alerts`, from memq/broker/alerts.py. Prometheus takes the file as it is
# (rule_files), the operator its groups in a PrometheusRule. docs/runbook.md says what to do.
groups:
  - name: memq
    rules:
"""


class Alert(NamedTuple):
    """One alert.

    Attributes:
        name: of it, and of its heading in the runbook.
        severity: critical (wakes somebody), warning or info.
        lasts: for how long `expr` must hold.
        summary: what is told, as a template of Prometheus.
        expr: in PromQL.
    """

    name: str
    severity: str
    lasts: str
    summary: str
    expr: str

    @property
    def runbook(self) -> str:
        """Where it says what to do."""
        return f"docs/runbook.md#{self.name.lower()}"

    def metrics(self) -> list[str]:
        """Return the metrics that decide it."""
        words = set(re.findall(r"\w+", self.expr))
        return [row.name for row in METRICS.values() if row.series in words]


# Name, severity, duration and what is told of each; in the next line what must hold.
_TABLE = """\
MemqBrokerDown | critical | 2m | Broker {{ $labels.instance }} does not answer.
    up{job=~".*memq.*"} == 0
MemqBrokerLost | warning | 2m | {{ $value }} brokers are lost: memq cluster describe names them.
    max(memq_cluster_brokers{state="expected"}) - max(memq_cluster_brokers{state="present"}) > 0
MemqNotReady | warning | 5m | Broker {{ $labels.instance }} is not ready, and no service refuses it.
    memq_ready == 0 unless on (instance) memq_service_up == 0
MemqServiceRefuses | critical | 1m | {{ $labels.service }} refuses broker {{ $labels.instance }}; memq status says how.
    memq_service_up == 0
MemqDiskFills | warning | 1h | The disk of {{ $labels.folder }} at {{ $labels.instance }} is full within a day.
    predict_linear(memq_disk_free_bytes[6h], 86400) < 0
MemqWatermarkStands | critical | 1m | Batches of {{ $labels.topic }} not stored or published for {{ $value }} s.
    time() - memq_stored_through_seconds > 60
MemqBatchesFail | critical | 0s | Batches of {{ $labels.topic }} were not stored by their deadline; producers resend.
    increase(memq_batches_failed_total[5m]) > 0
MemqAcksSlow | warning | 5m | One in a hundred acks of {{ $labels.topic }} takes more than {{ $value }} s.
    histogram_quantile(0.99, sum by (le, topic) (rate(memq_batch_publish_seconds_bucket[5m]))) > 10
MemqRequestsFail | critical | 0s | Broker {{ $labels.instance }} answers with the error {{ $labels.code }}.
    sum by (instance, code) (increase(memq_requests_refused_total{code=~"storage|queue|corrupt_data|data_loss|internal"}[5m])) > 0
MemqUnauthorized | warning | 0s | Clients of broker {{ $labels.instance }} are not who they say.
    sum by (instance) (increase(memq_connections_closed_total{reason="unauthorized"}[5m])) > 0 or sum by (instance) (increase(memq_requests_refused_total{code="unauthorized"}[5m])) > 0
MemqStoreRefuses | warning | 10m | The object store refuses puts, which are made again and again.
    sum(rate(memq_storage_requests_total{kind="put"}[10m])) > 1.5 * sum(rate(memq_batches_published_total[10m])) + 0.1
MemqMemoryFull | warning | 1m | Broker {{ $labels.instance }} holds producers back.
    memq_memory_used_bytes > 0.9 * memq_memory_limit_bytes
MemqAnswersFull | warning | 1m | Clients of broker {{ $labels.instance }} do not read their answers.
    memq_answer_bytes >= memq_answer_limit_bytes
MemqConnectionsRefused | warning | 0s | Broker {{ $labels.instance }} closes connections ({{ $labels.reason }}).
    sum by (instance, reason) (increase(memq_connections_closed_total{reason=~"too_many|protocol"}[5m])) > 0
MemqCertificateEnds | warning | 0s | The certificate of listener {{ $labels.listener }} expires within 14 days.
    memq_tls_certificate_not_after_seconds - time() < 14 * 86400 >= 3 * 86400
MemqCertificateEndsSoon | critical | 0s | The certificate of listener {{ $labels.listener }} expires within 3 days.
    memq_tls_certificate_not_after_seconds - time() < 3 * 86400
MemqAccessLogLost | warning | 0s | Broker {{ $labels.instance }} cannot write its access log.
    increase(memq_access_log_lost_total[5m]) > 0
MemqGroupBehind | warning | 5m | Group {{ $labels.group }} is {{ $value }} s behind in {{ $labels.topic }}.
    memq_group_lag_seconds > 600
MemqGroupMissedBatches | critical | 0s | Retention removed what group {{ $labels.group }} had not read of {{ $labels.topic }}.
    memq_group_removed == 1
MemqLagLeftOut | info | 15m | The lag of {{ $value }} groups is not among the metrics; memq lag shows it.
    memq_group_lag_left_out > 0
"""  # noqa: E501 - a query is a line


def _read(lines: list[str]) -> tuple[Alert, ...]:
    heads = (each.split(" | ") for each in lines[::2])
    exprs = map(str.strip, lines[1::2])
    return tuple(Alert._make([*head, expr]) for head, expr in zip(heads, exprs, strict=True))


ALERTS = _read(_TABLE.splitlines())


def rules_text() -> str:
    """Return the alerts as a file of rules, in YAML. A text in JSON is one in YAML."""
    return _MADE + "".join(
        f"      - alert: {each.name}\n"
        f"        expr: {json.dumps(each.expr)}\n"
        f"        for: {each.lasts}\n"
        f"        labels: {{severity: {each.severity}}}\n"
        f"        annotations:\n"
        f"          summary: {json.dumps(each.summary)}\n"
        f"          runbook: {each.runbook}\n"
        for each in ALERTS
    )
