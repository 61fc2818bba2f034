"""Process the past of a topic, once more or for the first time, on demand.

Trigger `memq_backfill` with a window of time, such as a month, or with range keys (as the runs of
`memq_process_ranges` show them). The first run is a dry run: it lists the ranges with their Batches
and bytes, in the log and as the XCom `backfill`. Trigger it again with `dry_run` off, and Spark
processes them, oldest first, each in a mapped task named by its range.

What has its manifest is left out. So a backfill that was stopped goes on when it is triggered again
in the same way. To process also what is done, set `again`: each range replaces its own files with
the same rows. Whole ranges are processed, as they were planned: all that touch what you ask for.
What is older than the first plan is cut into ranges here.

What to set up: what `memq_ranges` needs.
"""

from pathlib import Path

from airflow_provider_memq.pipeline import MemqPipeline

SETTINGS = Path(__file__).with_name("memq.yaml")
NOTIFIERS = []  # who is told, such as [SmtpNotifier(to="oncall@example.org", …)]

dags = MemqPipeline.from_yaml(SETTINGS, notifiers=NOTIFIERS).backfill(doc_md=__doc__)
