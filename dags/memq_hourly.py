"""Process each hour of a topic once it is complete; and hours of the past, by backfill.

`memq_hourly` runs for each hour. It waits, with no worker slot, until the topic's watermark has
passed the end of the hour, so that nothing that belongs to it can still come; turns the hour into
one exact range of offsets per read partition; and has Spark turn each into Parquet files.

An hour names the same Batches whenever it is asked, so any hour that retention has not removed can
be processed again, or for the first time (all on one line):

    airflow backfill create --dag-id memq_hourly --reprocess-behavior completed
        --from-date 2026-01-02T00:00:00Z --to-date 2026-01-02T02:00:00Z

Hours that pass while Airflow is down or the DAG is paused are left out, unless the setting
`hourly_since` says since when every hour is wanted.

Use this, or `memq_ranges`, or both: they write to folders of their own.

What to set up: a connection `memq_default` to a broker (`memq dev` is enough), and the topic, which
`memq.yaml` beside this file names. Spark runs on this machine unless there is a connection
`memq_spark`. When a task fails, it is logged as critical; name your notifiers below.
"""

from pathlib import Path

from airflow_provider_memq.pipeline import MemqPipeline

SETTINGS = Path(__file__).with_name("memq.yaml")
NOTIFIERS = []  # who is told, such as [SmtpNotifier(to="oncall@example.org", …)]

dags = MemqPipeline.from_yaml(SETTINGS, notifiers=NOTIFIERS).hourly(doc_md=__doc__)
