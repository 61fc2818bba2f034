"""Process old ranges of a topic once more, on demand.

Trigger `memq_replay` with the range keys you want (as the runs of `memq_process_ranges` show them),
or with a window of time. The first run is a dry run: it lists the ranges with their Batches and
bytes, in the log and as the task's result. Trigger it again with `dry_run` off, and each of them
gets a new run of `memq_process_ranges`, which replaces its own files with the same rows.

Whole ranges are replayed, as they were planned: all that touch what you ask for. The plan itself
does not move.

What to set up: what `memq_ranges` needs.
"""

from __future__ import annotations

from pathlib import Path

from airflow_provider_memq.pipeline import MemqPipeline

SETTINGS = Path(__file__).with_name("memq.yaml")
NOTIFIERS = []  # who is told, such as [SmtpNotifier(to="oncall@example.org", …)]

dags = MemqPipeline.from_yaml(SETTINGS, notifiers=NOTIFIERS).replay(doc_md=__doc__)
