"""Process everything that is published to a topic: each range of offsets once, with Spark.

Two DAGs:

- `memq_plan_ranges` wakes up when something was published (and every ten minutes, to be sure),
  looks how far the topic is planned, and emits the ranges of offsets that come next.
- `memq_process_ranges` runs once for each range. Spark turns exactly this range into Parquet files
  in a folder of its own; then the offsets of a consumer group follow, as far as every range is
  processed.

What to set up: a connection `memq_default` to a broker (`memq dev` is enough), and the topic, which
`memq.yaml` beside this file names. Spark runs on this machine unless there is a connection
`memq_spark`. When a task fails, it is logged as critical; name your notifiers below.

To stop for a while, pause either DAG. Ranges that are planned while `memq_process_ranges` is paused
get their runs some minutes after it goes on: the planner emits again what has none.

To run a range again, clear its DAG run, or use `memq_backfill`: it replaces its own files with
the same rows, and no others. To see what would be planned, trigger `memq_plan_ranges` with
`dry_run`.
"""

from pathlib import Path

from airflow_provider_memq.pipeline import MemqPipeline

SETTINGS = Path(__file__).with_name("memq.yaml")
NOTIFIERS = []  # who is told, such as [SmtpNotifier(to="oncall@example.org", …)]

dags = MemqPipeline.from_yaml(SETTINGS, notifiers=NOTIFIERS).ranges(doc_md=__doc__)
