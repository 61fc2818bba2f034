"""The reference of every metric, as Markdown, made from the table that makes the metrics.

`make docs` writes it to `docs/metrics.md`; a test keeps that file equal to the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from memq.broker.alerts import ALERTS
from memq.broker.metric_table import METRICS, MetricRow

_INTRODUCTION = """\
# Metrics

Generated from the code by `make docs`.

Brokers serve these at `/metrics` of the [admin HTTP](operations.md#what-the-admin-http-says).
Counters start with the process. Metrics with a label `topic` exist while a write partition of it
runs here. The usual `process_…` metrics are there too.

- The watermark is now if nothing is in flight. Many duplicates are a sign of a bad network.
- `memq_batch_publish_seconds` is the latency of `acks=all`. Of its stages `open` is until the Batch
  is sealed, `wait` for a thread, `put` to the storage, and `publish` to the queue.
- Codes of errors are those of the [protocol](protocol.md#errors). Reasons of closed connections are
  `stalled`, `unread`, `handshake_timeout`, `too_many`, `shutdown`, or a code.
- Idle memory is at most a quarter of the bound. It is kept on purpose.
- Kinds of requests to an object store are `put`, `get`, `list` and `delete`. Second uploads are
  made by [hedging](object-storage.md#hedging).
- Cross-zone bytes are those of clients in another `zone`: a large part means that a zone lacks read
  brokers or write partitions. Clients wait because of [quotas](security.md#quotas).
- [Lag](operations.md#lag) has no metrics beyond 1,000 read partitions of groups: see `memq lag`.

| metric | kind | meaning | alert, or look when |
| --- | --- | --- | --- |
"""


def render() -> str:
    """The page."""
    return _INTRODUCTION + "".join(map(_row, METRICS.values()))


def _row(row: MetricRow) -> str:
    labels = f"{{{','.join(row.labels.split())}}}" if row.labels else ""
    watch = [
        f"[{each.name}](runbook.md#{each.name.lower()})"
        for each in ALERTS
        if row.name in each.metrics()
    ]
    watch += [row.watch] if row.watch else []
    return f"| `{row.name}{labels}` | {row.kind} | {row.meaning} | {', '.join(watch)} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
